// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_files.h"

#include <array>
#include <cstdio>

#include "fmmformer/core/atomic_file.h"
#include "fmmformer/core/crc32c.h"
#include "train/file_system.h"

namespace fmmformer::train {
namespace {

constexpr const char* kFormat = "fmmformer.checkpoint";
constexpr int kVersion = 1;
constexpr const char* kChecksum = "crc32c";

std::string hexadecimal(uint32_t number) {
  std::array<char, 9> text;
  std::snprintf(text.data(), text.size(), "%08x", number);
  return text.data();
}

[[noreturn]] void reject(const std::string& what) { throw std::invalid_argument(what); }

Json description_of(const std::filesystem::path& file) {
  return {{"bytes", std::filesystem::file_size(file)},
          {kChecksum, hexadecimal(crc32c_of_file(file))}};
}

/// Of everything but itself, in the one way in which this library writes JSON.
std::string checksum_of(Json document) {
  document.erase(kChecksum);
  return hexadecimal(crc32c(document.dump()));
}

}  // namespace

void write_checkpoint_files(const std::filesystem::path& folder, int64_t step,
                            const CheckpointContent& content) {
  write_safetensors(folder / kModelFile, content.model);
  write_safetensors(folder / kOptimizerFile, content.optimizer);
  Json document = {{"format", kFormat},
                   {"version", kVersion},
                   {"step", step},
                   {"best", content.best},
                   {"files",
                    {{kModelFile, description_of(folder / kModelFile)},
                     {kOptimizerFile, description_of(folder / kOptimizerFile)}}},
                   {"state", content.state}};
  document[kChecksum] = checksum_of(document);
  write_file_atomically(folder / kStateFile, document.dump(2) + "\n");
}

CheckpointState read_checkpoint_state(const std::filesystem::path& folder, int64_t step) {
  const Json document = Json::parse(read_text(folder / kStateFile), nullptr, false);
  if (document.is_discarded() || !document.is_object()) {
    reject(std::string(kStateFile) + " is cut short or damaged: it is not valid JSON");
  }
  try {
    if (document.at("format") != kFormat) reject(std::string(kStateFile) + " is of another kind");
    if (document.at("version") != kVersion) {
      reject(std::string(kStateFile) + " has version " + document.at("version").dump() +
             ", this program reads " + std::to_string(kVersion) + "; use the one that wrote it");
    }
    if (document.at(kChecksum) != checksum_of(document)) {
      reject(std::string(kStateFile) + " is not what was written (checksum differs)");
    }
    if (document.at("step") != step) {
      reject(std::string(kStateFile) + " is that of step " + document.at("step").dump());
    }
    return {.best = document.at("best").get<bool>(),
            .files = document.at("files"),
            .state = document.at("state")};
  } catch (const Json::exception& error) {
    reject(std::string(kStateFile) + " is damaged: " + error.what());
  }
}

void check_checkpoint_file(const std::filesystem::path& folder, const CheckpointState& state,
                           const char* file) {
  const Json& wanted = state.files.at(file);
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(folder / file, error);
  if (error) reject(std::string(file) + " cannot be read: " + error.message());
  if (bytes != wanted.at("bytes").get<uint64_t>()) {
    reject(std::string(file) + " has " + std::to_string(bytes) + " bytes, " +
           wanted.at("bytes").dump() + " were written");
  }
  if (hexadecimal(crc32c_of_file(folder / file)) != wanted.at(kChecksum).get<std::string>()) {
    reject(std::string(file) + " is not what was written (checksum differs)");
  }
}

}  // namespace fmmformer::train
