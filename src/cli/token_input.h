// SPDX-License-Identifier: Apache-2.0
// Token ids that a user brings, for `predict`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fmmformer::cli {

struct TokenInput {
  std::vector<int64_t> tokens;
  std::vector<int64_t> other_tokens;  // of a pair
  std::string where;                  // "input.jsonl:3", for errors
};

/// One example a line: {"tokens": [1, 2, 3]}, or [1, 2, 3] alone; pairs have "other_tokens" too. Or
/// a safetensors file with an integer tensor `tokens` [examples, length] (and `other_tokens`). "-"
/// reads JSON lines from standard input. Throws std::invalid_argument that names file and line.
std::vector<TokenInput> read_token_input(const std::filesystem::path& path);

struct TokenLimits {
  int64_t vocabulary = 0;
  int64_t longest = 0;
  bool pair = false;
};

/// Throws std::invalid_argument that names the example, the token or length, and what is allowed.
void check_token_input(const std::vector<TokenInput>& inputs, const TokenLimits& limits);

}  // namespace fmmformer::cli
