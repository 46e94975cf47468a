// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tasks/dice.h"
#include "tasks/generate.h"
#include "tasks/listops_tokens.h"

namespace fmmformer::tasks {

struct ListOpsOptions {
  int min_length = 500;  // tokens, operators and closing brackets included; both limits excluded
  int max_length = 2000;
  int max_depth = 10;      // at most 10; a node that deep is a digit, the root has depth 1
  int max_arguments = 10;  // at most 10; an operator has at least 2
};

struct ListOpsExample {
  std::vector<uint8_t> tokens;
  int label = 0;  // 0 .. 9: what the expression is worth

  bool operator==(const ListOpsExample&) const = default;
};

/// Example `index` of the data set that `seed` names, drawn as Long Range Arena's generator draws:
///
///   node(depth) = a digit 0 .. 9, with probability 3/4, and always at max_depth
///               | [OP node(depth + 1) .. ]   OP of MIN, MAX, MED, SM; 2 .. max_arguments of them
///
/// SM is the sum modulo 10, MED the median, rounded down where it lies between two. Trees are
/// drawn until one has min_length < tokens < max_length (at the defaults every twelfth has).
///
/// The published generator also drops trees that it has drawn before, which a function of the
/// index cannot. It does not matter: a tree of more than 500 tokens has at least 167 digits, so two
/// equal ones among 100,000 are less likely than one in 10^150.
/// Throws std::invalid_argument when the options admit no tree, or none is found in a million.
ListOpsExample make_listops_example(const ListOpsOptions& options, uint64_t seed, int64_t index);
ListOpsExample make_listops_example(const ListOpsOptions& options, Dice& dice);

/// Examples in order, made by several threads; the same for any number of them.
void generate_listops(const GenerateRequest& request, const ListOpsOptions& options,
                      const std::function<void(const ListOpsExample&)>& sink);

/// "[MAX 2 9 [MIN 4 7 ] 0 ]": the published form without its round brackets, which the rest implies
/// and which every reader drops.
std::string listops_text(std::span<const uint8_t> tokens);

/// A line of the TSV, under the header "Source\tTarget": text, tab, label, line feed.
std::string listops_line(const ListOpsExample& example);

}  // namespace fmmformer::tasks
