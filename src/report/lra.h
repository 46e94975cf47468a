// SPDX-License-Identifier: Apache-2.0
// Long Range Arena in the paper: Table 1, and how its experiments are called here.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace fmmformer::report {

/// In the order of the paper's table.
inline constexpr std::array<std::string_view, 5> kLraTasks = {"listops", "text", "retrieval",
                                                              "image", "pathfinder"};
inline constexpr std::array<std::string_view, 5> kLraRows = {"softmax", "linear", "band5",
                                                             "fmm1_band5", "fmm2_band5"};
inline constexpr std::array<std::string_view, 2> kLraRecipes = {"published", "tuned"};

/// An experiment of the table: lra/TASK/ROW.RECIPE, as its config is named; or its small variant
/// for a CPU, tiny/lra/TASK/ROW.RECIPE, which the paper has no number for.
struct LraName {
  std::string task, row, recipe;
  bool tiny = false;

  std::string preset() const { return "lra/" + task + "/" + row + "." + recipe; }
  std::string text() const { return (tiny ? "tiny/" : "") + preset(); }
  friend bool operator==(const LraName&, const LraName&) = default;
};

/// None for the name of anything else.
std::optional<LraName> lra_name(std::string_view name);

/// The test accuracy, in %, that the paper has for a row; none for a row that it does not have.
std::optional<double> paper_accuracy(std::string_view task, std::string_view row);

/// The same over the five tasks, as the paper prints it.
std::optional<double> paper_average(std::string_view row);

}  // namespace fmmformer::report
