// SPDX-License-Identifier: Apache-2.0
// From a TOML file, overrides and a struct's list of fields (fields.h) to a checked config, and
// back:
//
//   const auto config = load_config<TrainConfig>("configs/copy/softmax.toml", {"train.steps=500"});
//   write_file_atomically(run / "config.toml", to_toml(config_value(config)));
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fmmformer/core/fields.h"

namespace fmmformer {

/// The user's config is wrong; the text says where, what came, what is allowed.
class ConfigError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// What a TOML file can hold (but dates), in the order of the file.
struct ConfigValue {
  using List = std::vector<ConfigValue>;
  using Table = std::vector<std::pair<std::string, ConfigValue>>;
  std::variant<Table, bool, int64_t, double, std::string, List> data;
  std::string where;  // "file.toml:12", for error texts; empty: made by the program

  bool is_table() const { return std::holds_alternative<Table>(data); }
  const Table& table() const { return std::get<Table>(data); }
  Table& table() { return std::get<Table>(data); }
  /// The entry of a table, or nullptr.
  const ConfigValue* find(std::string_view key) const;
};

/// Throw ConfigError with file and line when the text is no TOML or the file cannot be read.
ConfigValue parse_toml(std::string_view text, std::string_view source);
ConfigValue read_toml_file(const std::filesystem::path& path);

/// "a.b=c" sets key b of table a, which need not exist yet. c is read as TOML; what is no TOML is
/// taken as a text, so that a.b=elu needs no quotes.
void apply_override(ConfigValue& root, std::string_view assignment);

std::string to_toml(const ConfigValue& table);
std::string to_json(const ConfigValue& value, int indent = 2);

/// One row of a help text or a report.
struct FieldDescription {
  std::string path;  // "model.attention.bandwidth"
  std::string kind;  // "integer", "number", "text", "true or false", "one of a, b", "list of ..."
  std::string initial;  // its value, as TOML; empty: none
  std::string allowed;  // "1..8"; empty: anything
  std::string help;
};

// ---- templates over a config's fields ----------------------------------------------------------

namespace config_detail {

std::string at(const ConfigValue& value, const std::string& path);  // "file.toml:3: model.dim"
[[noreturn]] void wrong_kind(const ConfigValue& value, const std::string& path,
                             const std::string& wanted);
[[noreturn]] void out_of_range(const std::string& where, double value, const Range& range);
void refuse_unknown_keys(const ConfigValue& table, const std::string& path,
                         const std::vector<std::string>& known);
ConfigValue list_from_text(const ConfigValue& text);
bool is_none(const ConfigValue& value);
std::string text_of(const ConfigValue& value);  // as TOML, for help

inline std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

/// Calls f(key, field, range, help), with an endless range for a field that has none.
template <typename F>
struct EveryField {
  F& f;
  void operator()(std::string_view key, auto& field, std::string_view help) {
    f(key, field, Range{}, help);
  }
  void operator()(std::string_view key, auto& field, Range range, std::string_view help) {
    f(key, field, range, help);
  }
};

template <typename T>
std::string kind_of() {
  if constexpr (kIsOptional<T>) {
    return kind_of<typename T::value_type>() + ", or left out";
  } else if constexpr (kIsVector<T>) {
    return "list of: " + kind_of<typename T::value_type>();
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "integer";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else if constexpr (NamedEnum<T>) {
    return "one of " + join_names(enum_names<T>());
  } else {
    static_assert(Config<T>, "a field of this type cannot be in a config; see fields.h");
    return "table";
  }
}

template <typename T>
void check_range(const std::string& where, const T& value, const Range& range) {
  if constexpr (kIsOptional<T>) {
    if (value) check_range(where, *value, range);
  } else if constexpr (kIsVector<T>) {
    for (const auto& element : value) check_range(where, element, range);
  } else if constexpr (std::is_arithmetic_v<T>) {
    const double number = static_cast<double>(value);
    if (!range.contains(number)) out_of_range(where, number, range);
  }
}

template <typename T>
void read_field(const ConfigValue& value, const std::string& path, T& field);

template <Config T>
struct Reader {
  const ConfigValue& table;
  const std::string& path;
  std::vector<std::string> known = {};

  void operator()(std::string_view key, auto& field, std::string_view help) {
    (*this)(key, field, Range{}, help);
  }
  template <typename Field>
  void operator()(std::string_view key, Field& field, Range range, std::string_view) {
    known.emplace_back(key);
    const ConfigValue* entry = table.find(key);
    if (!entry) return;
    const std::string full = join(path, key);
    read_field(*entry, full, field);
    check_range(at(*entry, full), field, range);
  }
};

template <typename T>
void read_field(const ConfigValue& value, const std::string& path, T& field) {
  if constexpr (kIsOptional<T>) {
    if (is_none(value)) {
      field.reset();
    } else {
      typename T::value_type inner{};
      read_field(value, path, inner);
      field = std::move(inner);
    }
  } else if constexpr (kIsVector<T>) {
    if (std::holds_alternative<std::string>(value.data)) {  // --set feature_maps=elu,elu_flip
      return read_field(list_from_text(value), path, field);
    }
    const auto* list = std::get_if<ConfigValue::List>(&value.data);
    if (!list) wrong_kind(value, path, kind_of<T>());
    T read(list->size());
    for (size_t i = 0; i < list->size(); ++i) {
      read_field((*list)[i], path + "[" + std::to_string(i) + "]", read[i]);
    }
    field = std::move(read);
  } else if constexpr (std::is_same_v<T, double>) {
    if (const auto* integer = std::get_if<int64_t>(&value.data)) {
      field = static_cast<double>(*integer);
    } else if (const auto* number = std::get_if<double>(&value.data)) {
      field = *number;
    } else {
      wrong_kind(value, path, kind_of<T>());
    }
  } else if constexpr (std::is_same_v<T, int64_t>) {
    const auto* number = std::get_if<double>(&value.data);  // 1e4 is a float to TOML
    if (const auto* integer = std::get_if<int64_t>(&value.data)) {
      field = *integer;
    } else if (number && *number > -0x1p53 && *number < 0x1p53 &&
               *number == static_cast<double>(static_cast<int64_t>(*number))) {
      field = static_cast<int64_t>(*number);
    } else {
      wrong_kind(value, path, kind_of<T>());
    }
  } else if constexpr (NamedEnum<T>) {
    const auto* name = std::get_if<std::string>(&value.data);
    if (!name) wrong_kind(value, path, kind_of<T>());
    try {
      field = enum_from_name<T>(*name);
    } catch (const std::invalid_argument& error) {
      throw ConfigError(at(value, path) + ": " + error.what());
    }
  } else if constexpr (Config<T>) {
    if (!value.is_table()) wrong_kind(value, path, kind_of<T>());
    Reader<T> reader{value, path};
    T::fields(field, reader);
    refuse_unknown_keys(value, path, reader.known);
  } else {
    const auto* same = std::get_if<T>(&value.data);
    if (!same) wrong_kind(value, path, kind_of<T>());
    field = *same;
  }
}

template <typename T>
ConfigValue value_of(const T& field) {
  if constexpr (kIsVector<T>) {
    ConfigValue::List list;
    for (const auto& element : field) list.push_back(value_of<typename T::value_type>(element));
    return {std::move(list), {}};
  } else if constexpr (NamedEnum<T>) {
    return {std::string(enum_name(field)), {}};
  } else if constexpr (Config<T>) {
    ConfigValue::Table table;
    auto add = [&](std::string_view key, const auto& inner, Range, std::string_view) {
      if constexpr (kIsOptional<std::decay_t<decltype(inner)>>) {
        if (inner) table.emplace_back(key, value_of(*inner));
      } else {
        table.emplace_back(key, value_of(inner));
      }
    };
    EveryField visit{add};
    T::fields(field, visit);
    return {std::move(table), {}};
  } else {
    return {field, {}};
  }
}

/// Calls f(path, field, range, help) for every field that is no table, in order.
template <typename T, typename F>
void for_each_field(T& config, const std::string& path, F& f) {
  auto descend = [&](std::string_view key, auto& field, Range range, std::string_view help) {
    if constexpr (Config<std::remove_const_t<std::remove_reference_t<decltype(field)>>>) {
      for_each_field(field, join(path, key), f);
    } else {
      f(join(path, key), field, range, help);
    }
  };
  EveryField visit{descend};
  std::remove_const_t<T>::fields(config, visit);
}

}  // namespace config_detail

/// Sets the fields that `table` names and leaves the others; throws ConfigError for an unknown key
/// (naming the nearest), a value of the wrong kind or out of its range.
template <Config T>
void read_config(const ConfigValue& table, T& config) {
  config_detail::read_field(table, "", config);
}

/// The config as a table; read_config gives it back unchanged.
template <Config T>
ConfigValue config_value(const T& config) {
  return config_detail::value_of(config);
}

/// Throws ConfigError when a number is out of its field's range: for configs made by a program.
template <Config T>
void check_config(const T& config) {
  auto check = [](const std::string& path, const auto& field, const Range& range,
                  std::string_view) { config_detail::check_range(path, field, range); };
  config_detail::for_each_field(config, "", check);
}

/// Every field, tables in turn, with the values of `config`.
template <Config T>
std::vector<FieldDescription> describe_fields(const T& config = {}) {
  std::vector<FieldDescription> rows;
  auto add = [&](const std::string& path, const auto& field, const Range& range,
                 std::string_view help) {
    using Field = std::decay_t<decltype(field)>;
    FieldDescription row{path, config_detail::kind_of<Field>(), "", "", std::string(help)};
    if constexpr (kIsOptional<Field>) {
      if (field) row.initial = config_detail::text_of(config_detail::value_of(*field));
    } else {
      row.initial = config_detail::text_of(config_detail::value_of(field));
    }
    if (range.text() != Range{}.text()) row.allowed = range.text();
    rows.push_back(std::move(row));
  };
  config_detail::for_each_field(config, "", add);
  return rows;
}

/// A file, then the overrides ("a.b=c") in order, over the struct's own defaults.
template <Config T>
T load_config(const std::filesystem::path& path, const std::vector<std::string>& overrides = {}) {
  ConfigValue root = read_toml_file(path);
  for (const std::string& assignment : overrides) apply_override(root, assignment);
  T config{};
  read_config(root, config);
  return config;
}

}  // namespace fmmformer
