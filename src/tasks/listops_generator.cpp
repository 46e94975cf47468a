// SPDX-License-Identifier: Apache-2.0
#include "tasks/listops_generator.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace fmmformer::tasks {
namespace {

constexpr double kOperatorShare = 0.25;
constexpr int kMaxTrees = 1'000'000;

// Half the sum of the two in the middle; digits only, so the fraction is cut off.
int median(std::span<int> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

int value_of(ListOpsToken operation, std::span<int> arguments) {
  switch (operation) {
    case kListOpsMin:
      return std::ranges::min(arguments);
    case kListOpsMax:
      return std::ranges::max(arguments);
    case kListOpsMedian:
      return median(arguments);
    case kListOpsSumModulo:
      return std::accumulate(arguments.begin(), arguments.end(), 0) % 10;
    default:
      throw std::logic_error("listops: not an operator");
  }
}

// Writes a tree's tokens and knows its value. Decisions are asked for in the order of the published
// generator: an operator's kind comes after all its arguments.
class TreeWriter {
 public:
  TreeWriter(const ListOpsOptions& options, Dice& dice, std::vector<uint8_t>& tokens)
      : options_(options), dice_(dice), tokens_(tokens) {}

  int write(int depth) {
    const bool is_operator = depth < options_.max_depth && dice_.uniform() <= kOperatorShare;
    return is_operator ? write_operator(depth) : write_digit();
  }

 private:
  int write_digit() {
    const int digit = dice_.below(10);
    tokens_.push_back(static_cast<uint8_t>(kListOpsDigit0 + digit));
    return digit;
  }

  int write_operator(int depth) {
    const size_t place = tokens_.size();
    tokens_.push_back(0);
    const int count = 2 + dice_.below(options_.max_arguments - 1);
    const size_t first = arguments_.size();
    for (int i = 0; i < count; ++i) {
      const int argument = write(depth + 1);
      arguments_.push_back(argument);
    }
    const auto operation = static_cast<ListOpsToken>(kListOpsMin + dice_.below(4));
    tokens_[place] = operation;
    tokens_.push_back(kListOpsClose);
    const int value = value_of(operation, std::span(arguments_).subspan(first));
    arguments_.resize(first);
    return value;
  }

  const ListOpsOptions& options_;
  Dice& dice_;
  std::vector<uint8_t>& tokens_;
  std::vector<int> arguments_;  // a stack: those of the operators that are open
};

// More of either and the rare tree that grows at every turn has no bounds.
constexpr int kMostLevels = 10, kMostArguments = 10;

void check(const ListOpsOptions& options) {
  const bool has_room = options.min_length >= 0 && options.max_length >= options.min_length + 2;
  const bool has_shape = options.max_depth >= 1 && options.max_depth <= kMostLevels &&
                         options.max_arguments >= 2 && options.max_arguments <= kMostArguments;
  if (has_room && has_shape) return;
  throw std::invalid_argument(
      "listops: min_length is " + std::to_string(options.min_length) + ", max_length " +
      std::to_string(options.max_length) + ", max_depth " + std::to_string(options.max_depth) +
      ", max_arguments " + std::to_string(options.max_arguments) +
      "; both limits of the length are excluded, so they must be at least 2 apart; allowed depths "
      "are 1.." +
      std::to_string(kMostLevels) + ", arguments 2.." + std::to_string(kMostArguments));
}

}  // namespace

ListOpsExample make_listops_example(const ListOpsOptions& options, Dice& dice) {
  check(options);
  ListOpsExample example;
  for (int tree = 0; tree < kMaxTrees; ++tree) {
    example.tokens.clear();
    example.label = TreeWriter(options, dice, example.tokens).write(1);
    const auto length = std::ssize(example.tokens);
    if (length > options.min_length && length < options.max_length) return example;
  }
  throw std::invalid_argument("listops: none of " + std::to_string(kMaxTrees) +
                              " trees has more than " + std::to_string(options.min_length) +
                              " and fewer than " + std::to_string(options.max_length) +
                              " tokens; allow a wider range or deeper trees");
}

ListOpsExample make_listops_example(const ListOpsOptions& options, uint64_t seed, int64_t index) {
  SeededDice dice(derive_seed(seed, "listops", index));
  return make_listops_example(options, dice);
}

void generate_listops(const GenerateRequest& request, const ListOpsOptions& options,
                      const std::function<void(const ListOpsExample&)>& sink) {
  generate_in_order(
      request, [&](int64_t i) { return make_listops_example(options, request.seed, i); }, sink);
}

std::string listops_text(std::span<const uint8_t> tokens) {
  std::string text;
  text.reserve(3 * tokens.size());
  for (const uint8_t token : tokens) {
    if (!text.empty()) text += ' ';
    text += kListOpsWords.at(token);
  }
  return text;
}

std::string listops_line(const ListOpsExample& example) {
  return listops_text(example.tokens) + '\t' + std::to_string(example.label) + '\n';
}

}  // namespace fmmformer::tasks
