// SPDX-License-Identifier: Apache-2.0
#include "cli/token_input.h"

#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "fmmformer/core/safetensors.h"

namespace fmmformer::cli {
namespace {

using nlohmann::json;

constexpr const char* kForm = R"(one example a line, {"tokens": [1, 2, 3]} or [1, 2, 3])";

std::vector<int64_t> tokens_of(const json& list, const std::string& where) {
  if (!list.is_array())
    throw std::invalid_argument(where + ": no list of tokens; wanted is " + kForm);
  std::vector<int64_t> tokens;
  for (const json& token : list) {
    if (!token.is_number_integer()) {
      throw std::invalid_argument(where + ": " + token.dump() +
                                  " is no token; tokens are integers");
    }
    tokens.push_back(token.get<int64_t>());
  }
  return tokens;
}

std::vector<TokenInput> read_json_lines(std::istream& stream, const std::string& name) {
  std::vector<TokenInput> inputs;
  std::string line;
  for (int64_t number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = name + ":" + std::to_string(number);
    const json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) throw std::invalid_argument(where + ": no JSON; wanted is " + kForm);
    TokenInput input{.where = where};
    if (value.is_object()) {
      if (!value.contains("tokens")) {
        throw std::invalid_argument(where + ": has no \"tokens\"; wanted is " + kForm);
      }
      input.tokens = tokens_of(value.at("tokens"), where);
      if (value.contains("other_tokens"))
        input.other_tokens = tokens_of(value.at("other_tokens"), where);
    } else {
      input.tokens = tokens_of(value, where);
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::vector<std::vector<int64_t>> rows_of(const SafeTensor& tensor, const std::string& where) {
  if (tensor.shape.size() != 2 || (tensor.dtype != "I64" && tensor.dtype != "I32")) {
    throw std::invalid_argument(where + ": tokens must be I64 or I32 and [examples, length]");
  }
  const int64_t length = tensor.shape[1];
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(tensor.shape[0]));
  const std::byte* from = tensor.data.data();
  for (auto& row : rows) {
    for (int64_t i = 0; i < length; ++i) {
      if (tensor.dtype == "I64") {
        int64_t value;
        std::memcpy(&value, from, sizeof value);
        row.push_back(value), from += sizeof value;
      } else {
        int32_t value;
        std::memcpy(&value, from, sizeof value);
        row.push_back(value), from += sizeof value;
      }
    }
  }
  return rows;
}

std::vector<TokenInput> read_tensors(const std::filesystem::path& path) {
  const SafeTensorsFile file = read_safetensors(path);
  const SafeTensor* tokens = file.find("tokens");
  if (tokens == nullptr) throw std::invalid_argument(path.string() + ": has no tensor 'tokens'");
  const auto rows = rows_of(*tokens, path.string());
  std::vector<std::vector<int64_t>> others(rows.size());
  if (const SafeTensor* other = file.find("other_tokens")) others = rows_of(*other, path.string());
  if (others.size() != rows.size()) {
    throw std::invalid_argument(path.string() + ": other_tokens has " +
                                std::to_string(others.size()) + " examples, tokens " +
                                std::to_string(rows.size()));
  }
  std::vector<TokenInput> inputs;
  for (size_t i = 0; i < rows.size(); ++i) {
    inputs.push_back({rows[i], others[i], path.string() + ", example " + std::to_string(i)});
  }
  return inputs;
}

}  // namespace

std::vector<TokenInput> read_token_input(const std::filesystem::path& path) {
  if (path == "-") return read_json_lines(std::cin, "standard input");
  if (std::filesystem::is_directory(path)) {
    throw std::invalid_argument("'" + path.string() + "' is a folder; give a file of tokens");
  }
  if (path.extension() == ".safetensors") return read_tensors(path);
  std::ifstream stream(path);
  if (!stream) throw std::invalid_argument("'" + path.string() + "' cannot be read");
  return read_json_lines(stream, path.string());
}

void check_token_input(const std::vector<TokenInput>& inputs, const TokenLimits& limits) {
  if (inputs.empty()) throw std::invalid_argument("no examples were given");
  for (const TokenInput& input : inputs) {
    if (limits.pair != !input.other_tokens.empty()) {
      throw std::invalid_argument(input.where + (limits.pair ? ": the model compares two texts; "
                                                               "\"other_tokens\" is missing"
                                                             : ": the model takes one text, not "
                                                               "two"));
    }
    for (const auto* tokens : {&input.tokens, &input.other_tokens}) {
      if (tokens == &input.tokens && tokens->empty())
        throw std::invalid_argument(input.where + ": has no tokens");
      if (std::ssize(*tokens) > limits.longest) {
        throw std::invalid_argument(input.where + ": " + std::to_string(tokens->size()) +
                                    " tokens, the model takes up to " +
                                    std::to_string(limits.longest));
      }
      for (const int64_t token : *tokens) {
        if (token < 0 || token >= limits.vocabulary) {
          throw std::invalid_argument(input.where + ": token " + std::to_string(token) +
                                      ", the model knows 0.." +
                                      std::to_string(limits.vocabulary - 1));
        }
      }
    }
  }
}

}  // namespace fmmformer::cli
