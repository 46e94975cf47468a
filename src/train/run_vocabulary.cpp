// SPDX-License-Identifier: Apache-2.0
#include "train/run_vocabulary.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace fmmformer::train {
namespace {

using Json = nlohmann::ordered_json;

/// "1368 words, 1a2b3c4d"
std::string text_of(const Json& vocabulary) {
  return std::to_string(vocabulary.value("size", int64_t{0})) + " " +
         vocabulary.value("level", "") + "s, " + vocabulary.value("fingerprint", "");
}

}  // namespace

Json vocabulary_record(const tasks::Vocabulary& vocabulary) {
  std::array<char, 16> fingerprint;
  std::snprintf(fingerprint.data(), fingerprint.size(), "%08x", vocabulary.fingerprint());
  return {{"level", enum_name(vocabulary.level())},
          {"size", vocabulary.size()},
          {"fingerprint", fingerprint.data()}};
}

void check_vocabulary(const RunPaths& run, const ExperimentConfig& experiment,
                      const std::string& way_out) {
  if (experiment.task.name != tasks::TaskName::kWikitext) return;
  const std::string& folder = experiment.task.wikitext.data;
  const Json now = vocabulary_record(tasks::Vocabulary::read(folder));
  const Json record = run.read_record();
  const auto before = record.find("vocabulary");
  const auto fail = [&](const std::string& trained_on, const std::string& holds) {
    throw std::invalid_argument("the run '" + run.folder().string() + "' was trained on " +
                                trained_on + " than '" + folder + "' holds now (" + holds + "); " +
                                way_out);
  };
  if (before != record.end() && before->is_object()) {
    if (*before == now) return;
    const bool same_size = before->value("size", Json()) == now["size"];
    fail("another vocabulary (" + text_of(*before) + ")",
         text_of(now) + (same_size ? ": other words, or in another order" : ""));
  }
  if (now["size"] == experiment.model.vocabulary) return;
  fail("another vocabulary (" + std::to_string(experiment.model.vocabulary) + " tokens)",
       text_of(now));
}

}  // namespace fmmformer::train
