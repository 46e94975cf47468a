// SPDX-License-Identifier: Apache-2.0
// Options of a command from a config's list of fields: --top-k for top_k, with its range and help.
#pragma once

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>

#include "fmmformer/core/fields.h"

namespace fmmformer::cli {

struct FieldOptions {
  CLI::App& app;

  template <typename Number>
  void operator()(std::string_view name, Number& field, Range range, std::string_view help) const {
    std::string flag = "--" + std::string(name);
    std::ranges::replace(flag, '_', '-');
    std::ostringstream text;
    text << help << " (default: " << field << ")";
    app.add_option(flag, field, text.str())
        ->type_name("N")
        ->check([range](const std::string& given) -> std::string {
          Number number{};
          if (CLI::detail::lexical_cast(given, number) &&
              range.contains(static_cast<double>(number))) {
            return "";
          }
          return "got '" + given + "', allowed: " + range.text();
        });
  }
};

/// Numbers alone.
template <Config T>
void add_field_options(CLI::App& app, T& config) {
  T::fields(config, FieldOptions{app});
}

}  // namespace fmmformer::cli
