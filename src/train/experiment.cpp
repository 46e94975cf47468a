// SPDX-License-Identifier: Apache-2.0
#include "train/experiment.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <set>

namespace fmmformer::train {
namespace {

void collect_overrides(const ConfigValue& value, std::set<std::string>& found) {
  if (value.where.starts_with("--set ")) found.insert(value.where);
  if (!value.is_table()) return;
  for (const auto& [key, entry] : value.table()) collect_overrides(entry, found);
}

// Where the user wrote a key, for errors about parts that do not fit each other. Of a table that
// one override changed it is that override: the rest came from a file that fits.
std::string place_of(const ConfigValue& root, std::string_view path) {
  const ConfigValue* value = &root;
  std::string where = root.where;
  for (size_t begin = 0; value != nullptr && begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    value = value->is_table() ? value->find(path.substr(begin, end - begin)) : nullptr;
    if (value != nullptr && !value->where.empty()) where = value->where;
    begin = end + 1;
  }
  std::set<std::string> overrides;
  if (value != nullptr) collect_overrides(*value, overrides);
  if (overrides.size() == 1) where = *overrides.begin();
  return where.empty() ? "" : where + ": ";
}

std::string where_is(const ConfigValue& root, std::string_view path) {
  return place_of(root, path) + std::string(path);
}

bool is_given(const ConfigValue& root, std::string_view table, std::string_view key) {
  const ConfigValue* found = root.find(table);
  return found != nullptr && found->is_table() && found->find(key) != nullptr;
}

// A newer file may have keys and values that this program has never heard of: say that, rather than
// complain about the first of them.
void check_format(const ConfigValue& root) {
  const ConfigValue* format = root.find("format");
  if (format == nullptr) return;
  const auto* number = std::get_if<int64_t>(&format->data);
  if (number != nullptr && *number > kConfigFormat) {
    throw ConfigError(where_is(root, "format") + " is " + std::to_string(*number) +
                      ": written by a newer fmmformer, this one knows formats up to " +
                      std::to_string(kConfigFormat) + "; update the program");
  }
}

// Whether a config is about to become a run, or says what a run is already.
enum class ConfigOf { kNewRun, kRun };

// Whether only the data could say how many tokens there are.
bool has_open_vocabulary(const tasks::TaskConfig& task) {
  return task.name == tasks::TaskName::kWikitext && task.wikitext.vocabulary == 0;
}

void fit_model_to_task(const ConfigValue& root, const tasks::Task& task, bool vocabulary_settled,
                       ModelConfig& model) {
  const auto at_least = [&](std::string_view key, int64_t& value, int64_t needed) {
    if (!is_given(root, "model", key)) value = needed;
    if (value >= needed) return;
    throw ConfigError(where_is(root, "model." + std::string(key)) + " is " + std::to_string(value) +
                      ", the task needs at least " + std::to_string(needed) +
                      "; leave it out to have it follow from the task");
  };
  if (!vocabulary_settled) at_least("vocabulary", model.vocabulary, task.vocabulary());
  at_least("max_length", model.max_length, task.length());
  if (task.classes() > 0) at_least("classes", model.classes, task.classes());
  const ModelKind wanted = task.classes() == 0 ? ModelKind::kLanguageModel
                           : task.is_pair()    ? ModelKind::kPairClassifier
                                               : ModelKind::kSequenceClassifier;
  if (!is_given(root, "model", "kind")) model.kind = wanted;
  if (model.kind != wanted) {
    throw ConfigError(where_is(root, "model.kind") + " is " + std::string(enum_name(model.kind)) +
                      ", the task is for a " + std::string(enum_name(wanted)));
  }
}

void check_model(const ConfigValue& root, const ModelConfig& model) {
  const AttentionConfig& attention = model.attention;
  const BlendFields fields{.near = attention.bandwidth > 0,
                           .kernels = std::ssize(attention.feature_maps)};
  try {
    attention.check();
  } catch (const std::invalid_argument& error) {
    throw ConfigError(where_is(root, "model.attention") + ": " + error.what());
  }
  try {
    if (attention.kind == AttentionKind::kFmm) blend_rule(attention.blend, fields);
  } catch (const std::invalid_argument& error) {
    throw ConfigError(where_is(root, "model.attention") + "." + error.what());
  }
  try {
    model.width_of_head();
  } catch (const std::invalid_argument& error) {
    throw ConfigError(place_of(root, "model") + error.what());
  }
}

void check_experiment(const ConfigValue& root, const ExperimentConfig& experiment) {
  const TrainConfig& train = experiment.train;
  if (train.batch_size % train.accumulate != 0) {
    throw ConfigError(where_is(root, "train.accumulate") + " is " +
                      std::to_string(train.accumulate) + ", it must divide train.batch_size, " +
                      std::to_string(train.batch_size));
  }
  if (experiment.model.kind == ModelKind::kLanguageModel && !experiment.model.attention.causal) {
    throw ConfigError(where_is(root, "model.attention.causal") +
                      " is false: a model that predicts the next token would see it; set it to "
                      "true");
  }
  try {
    check_schedule(experiment.schedule, train.steps);
  } catch (const std::invalid_argument& error) {
    throw ConfigError(where_is(root, "schedule") + ": " + error.what());
  }
  check_model(root, experiment.model);
}

using Json = nlohmann::ordered_json;

void add_differences(const Json& first, const Json& second, const std::string& path,
                     std::vector<ConfigDifference>& found) {
  if (first == second) return;
  if (!first.is_object() || !second.is_object()) {
    const auto text = [](const Json& value) {
      return value.is_discarded() ? std::string("left out") : value.dump();
    };
    found.push_back({path, text(first), text(second)});
    return;
  }
  const Json none(Json::value_t::discarded);
  const auto entry = [&](const Json& table, const std::string& key) -> const Json& {
    return table.contains(key) ? table.at(key) : none;
  };
  std::set<std::string> keys;
  for (const auto& [key, value] : first.items()) keys.insert(key);
  for (const auto& [key, value] : second.items()) keys.insert(key);
  for (const std::string& key : keys) {
    add_differences(entry(first, key), entry(second, key), path.empty() ? key : path + "." + key,
                    found);
  }
}

ExperimentConfig resolve(ConfigValue root, const std::vector<std::string>& overrides,
                         ConfigOf what) {
  for (const std::string& assignment : overrides) apply_override(root, assignment);
  check_format(root);
  ExperimentConfig experiment;
  read_config(root, experiment);
  const auto task = tasks::make_task(experiment.task, 0);
  const bool settled = what == ConfigOf::kRun && is_given(root, "model", "vocabulary") &&
                       has_open_vocabulary(experiment.task);
  fit_model_to_task(root, *task, settled, experiment.model);
  check_experiment(root, experiment);
  return experiment;
}

ExperimentConfig load_file(const std::filesystem::path& path,
                           const std::vector<std::string>& overrides, ConfigOf what) {
  ExperimentConfig experiment = resolve(read_toml_file(path), overrides, what);
  if (experiment.name.empty()) experiment.name = path.stem().string();
  return experiment;
}

}  // namespace

ExperimentConfig load_experiment(const std::filesystem::path& path,
                                 const std::vector<std::string>& overrides) {
  return load_file(path, overrides, ConfigOf::kNewRun);
}

ExperimentConfig load_run_experiment(const std::filesystem::path& path,
                                     const std::vector<std::string>& overrides) {
  return load_file(path, overrides, ConfigOf::kRun);
}

ExperimentConfig parse_experiment(std::string_view text, std::string_view source,
                                  const std::vector<std::string>& overrides) {
  return resolve(parse_toml(text, source), overrides, ConfigOf::kNewRun);
}

std::string experiment_toml(const ExperimentConfig& experiment) {
  return to_toml(config_value(experiment));
}

std::vector<ConfigDifference> differences(const ExperimentConfig& first,
                                          const ExperimentConfig& second) {
  std::vector<ConfigDifference> found;
  const auto values = [](const ExperimentConfig& experiment) {
    Json all = Json::parse(to_json(config_value(experiment)));
    for (const auto* description : {"format", "name", "about", "reproduces"}) {
      all.erase(description);
    }
    return all;
  };
  add_differences(values(first), values(second), "", found);
  return found;
}

}  // namespace fmmformer::train
