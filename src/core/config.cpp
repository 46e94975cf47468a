// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace fmmformer {
namespace {

std::string number_text(double value) {
  // The shortest text that reads back as the same number.
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

std::string place(std::string_view source, const toml::source_region& region) {
  std::string text(source);
  if (region.begin) text += ":" + std::to_string(region.begin.line);
  return text;
}

ConfigValue from_toml(const toml::node& node, std::string_view source) {
  ConfigValue value;
  value.where = place(source, node.source());
  if (const auto* table = node.as_table()) {
    ConfigValue::Table entries;
    for (const auto& [key, entry] : *table) {
      entries.emplace_back(std::string(key.str()), from_toml(entry, source));
    }
    value.data = std::move(entries);
  } else if (const auto* array = node.as_array()) {
    ConfigValue::List list;
    for (const auto& entry : *array) list.push_back(from_toml(entry, source));
    value.data = std::move(list);
  } else if (const auto* text = node.as_string()) {
    value.data = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.data = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.data = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.data = boolean->get();
  } else {
    throw ConfigError(value.where + ": dates and times are not used in a config");
  }
  return value;
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump();  // TOML's basic strings know all of JSON's escapes
}

bool is_bare_key(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-';
  });
}

std::string key_text(const std::string& key) { return is_bare_key(key) ? key : quoted(key); }

std::string toml_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = number_text(value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // else it would be an integer
  return text;
}

std::string toml_text(const ConfigValue& value) {
  struct Text {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return toml_number(v); }
    std::string operator()(const std::string& v) const { return quoted(v); }
    std::string operator()(const ConfigValue::List& list) const {
      std::string text = "[";
      for (const ConfigValue& element : list) {
        if (text.size() > 1) text += ", ";
        text += toml_text(element);
      }
      return text + "]";
    }
    std::string operator()(const ConfigValue::Table& table) const {
      std::string text = "{";
      for (const auto& [key, entry] : table) {
        text += (text.size() > 1 ? ", " : " ") + key_text(key) + " = " + toml_text(entry);
      }
      return text + (table.empty() ? "}" : " }");
    }
  };
  return std::visit(Text{}, value.data);
}

void write_table(const ConfigValue::Table& table, const std::string& path, std::string& out) {
  // Plain entries first: after a [table] line they would belong to that table.
  for (const auto& [key, entry] : table) {
    if (!entry.is_table()) out += key_text(key) + " = " + toml_text(entry) + "\n";
  }
  for (const auto& [key, entry] : table) {
    if (!entry.is_table()) continue;
    const std::string full = path.empty() ? key_text(key) : path + "." + key_text(key);
    out += (out.empty() ? "[" : "\n[") + full + "]\n";
    write_table(entry.table(), full, out);
  }
}

nlohmann::ordered_json json_of(const ConfigValue& value) {
  return std::visit(
      [](const auto& held) -> nlohmann::ordered_json {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, ConfigValue::Table>) {
          auto object = nlohmann::ordered_json::object();
          for (const auto& [key, entry] : held) object[key] = json_of(entry);
          return object;
        } else if constexpr (std::is_same_v<Held, ConfigValue::List>) {
          auto array = nlohmann::ordered_json::array();
          for (const ConfigValue& element : held) array.push_back(json_of(element));
          return array;
        } else {
          return held;
        }
      },
      value.data);
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// A whole value is in one place: an override has no lines.
void set_place(ConfigValue& value, const std::string& where) {
  value.where = where;
  if (value.is_table()) {
    for (auto& [key, entry] : value.table()) set_place(entry, where);
  } else if (auto* list = std::get_if<ConfigValue::List>(&value.data)) {
    for (ConfigValue& element : *list) set_place(element, where);
  }
}

/// The value that TOML reads in `text`, else the text itself.
ConfigValue value_from_text(std::string_view text, const std::string& where) {
  ConfigValue value{std::string(text), where};
  try {
    const toml::table parsed = toml::parse("value = " + std::string(text));
    if (parsed.size() == 1) value = from_toml(*parsed.get("value"), where);
  } catch (const std::exception&) {  // no TOML, or a date: a text
  }
  set_place(value, where);
  return value;
}

}  // namespace

std::string Range::text() const {
  const bool lower = std::isfinite(low), upper = std::isfinite(high);
  if (lower && upper) return number_text(low) + ".." + number_text(high);
  if (lower) return "at least " + number_text(low);
  if (upper) return "at most " + number_text(high);
  return "any number";
}

const ConfigValue* ConfigValue::find(std::string_view key) const {
  if (!is_table()) return nullptr;
  for (const auto& [name, entry] : table()) {
    if (name == key) return &entry;
  }
  return nullptr;
}

ConfigValue parse_toml(std::string_view text, std::string_view source) {
  try {
    ConfigValue root = from_toml(toml::parse(text), source);
    root.where = source;
    return root;
  } catch (const toml::parse_error& error) {
    throw ConfigError(place(source, error.source()) + ": " + std::string(error.description()));
  }
}

ConfigValue read_toml_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  // Asked for its first byte before, because inserting none counts as a failure: an empty file is
  // a config of defaults.
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (!file.is_open() || file.bad() || !text) {
    throw ConfigError(path.string() + ": cannot be read; is it a config file (TOML)?");
  }
  return parse_toml(text.str(), path.string());
}

void apply_override(ConfigValue& root, std::string_view assignment) {
  const std::string where = "--set " + std::string(assignment);
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || trimmed(assignment.substr(0, equals)).empty()) {
    throw ConfigError("'" + where + "': an override looks like table.key=value");
  }
  const ConfigValue value = value_from_text(trimmed(assignment.substr(equals + 1)), where);
  std::string_view rest = trimmed(assignment.substr(0, equals));
  ConfigValue* place = &root;
  while (true) {
    const size_t dot = rest.find('.');
    const std::string key(rest.substr(0, dot));
    if (key.empty()) throw ConfigError("'" + where + "': a part of the key is empty");
    if (!place->is_table()) {
      throw ConfigError("'" + where + "': '" + key + "' would lie in something that is no table");
    }
    auto& table = place->table();
    auto entry =
        std::find_if(table.begin(), table.end(), [&](const auto& e) { return e.first == key; });
    if (entry == table.end()) {
      table.emplace_back(key, ConfigValue{ConfigValue::Table{}, where});
      entry = table.end() - 1;
    }
    place = &entry->second;
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  *place = value;
}

std::string to_toml(const ConfigValue& table) {
  std::string out;
  write_table(table.table(), "", out);
  return out;
}

std::string to_json(const ConfigValue& value, int indent) { return json_of(value).dump(indent); }

namespace config_detail {

std::string at(const ConfigValue& value, const std::string& path) {
  return value.where.empty() ? path : value.where + ": " + path;
}

void wrong_kind(const ConfigValue& value, const std::string& path, const std::string& wanted) {
  throw ConfigError(at(value, path) + " is " + toml_text(value) + "; wanted: " + wanted);
}

void out_of_range(const std::string& where, double value, const Range& range) {
  throw ConfigError(where + " is " + number_text(value) + "; allowed: " + range.text());
}

void refuse_unknown_keys(const ConfigValue& table, const std::string& path,
                         const std::vector<std::string>& known) {
  for (const auto& [key, entry] : table.table()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string text =
        (entry.where.empty() ? "" : entry.where + ": ") + "unknown key '" + join(path, key) + "'";
    if (const std::string near = nearest_name(key, known); !near.empty()) {
      text += "; did you mean '" + join(path, near) + "'?";
    } else {
      text += "; allowed: " + join_names(known);
    }
    throw ConfigError(text);
  }
}

ConfigValue list_from_text(const ConfigValue& text) {
  std::string_view rest = trimmed(std::get<std::string>(text.data));
  if (rest.starts_with('[') && rest.ends_with(']')) rest = trimmed(rest.substr(1, rest.size() - 2));
  ConfigValue::List list;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    list.push_back(value_from_text(trimmed(rest.substr(0, comma)), text.where));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return {std::move(list), text.where};
}

bool is_none(const ConfigValue& value) {
  const auto* text = std::get_if<std::string>(&value.data);
  return text && *text == "none";
}

std::string text_of(const ConfigValue& value) { return toml_text(value); }

}  // namespace config_detail
}  // namespace fmmformer
