// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <string>

#include "fmmformer/core/crc32c.h"

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace fmmformer::train {
namespace {

constexpr std::string_view kNamePrefix = "events.out.tfevents.";

// Field numbers of TensorFlow's event.proto and summary.proto.
enum EventField { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SummaryField { kValue = 1 };
enum ValueField { kTag = 1, kSimpleValue = 2 };
enum SessionLogField { kStatus = 1 };
constexpr uint64_t kSessionStart = 1;

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <typename Number>
void put_raw(std::string& out, Number number) {
  const auto bytes = std::bit_cast<std::array<char, sizeof(Number)>>(number);
  out.append(bytes.data(), bytes.size());
}

void put_varint(std::string& out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) out.push_back(static_cast<char>(number | 0x80));
  out.push_back(static_cast<char>(number));
}

void put_key(std::string& out, int field, WireType type) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | type);
}

std::string number_field(int field, uint64_t number) {
  std::string out;
  put_key(out, field, kVarint);
  put_varint(out, number);
  return out;
}

std::string bytes_field(int field, std::string_view bytes) {
  std::string out;
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  return out.append(bytes);
}

std::string record_of(std::string_view data) {
  std::string length;
  put_raw(length, static_cast<uint64_t>(data.size()));
  std::string out = length;
  put_raw(out, masked_crc(crc32c(length)));
  out.append(data);
  put_raw(out, masked_crc(crc32c(data)));
  return out;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The second in the name of an event file, or 0.
int64_t second_of(const std::string& name) {
  int64_t second = 0;
  if (name.starts_with(kNamePrefix)) {
    std::from_chars(name.data() + kNamePrefix.size(), name.data() + name.size(), second);
  }
  return second;
}

std::filesystem::path new_path(const std::filesystem::path& folder) {
  int64_t second = static_cast<int64_t>(seconds_now());
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    // A run that is resumed within the second, or after the clock was set back.
    second = std::max(second, second_of(entry.path().filename().string()) + 1);
  }
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  std::array<char, 32> digits;
  std::snprintf(digits.data(), digits.size(), "%010lld", static_cast<long long>(second));
  return folder / (std::string(kNamePrefix) + digits.data() + "." + host.data() + "." +
                   std::to_string(getpid()));
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, std::optional<int64_t> resume_step) {
  create_folder(folder);
  file_ = OpenFile(new_path(folder), O_RDWR | O_CREAT | O_EXCL | O_APPEND);
  append_event(0, bytes_field(kFileVersion, "brain.Event:2"));
  if (resume_step) {
    // TensorBoard drops what it has of this step and later ones.
    append_event(*resume_step + 1, bytes_field(kSessionLog, number_field(kStatus, kSessionStart)));
  }
}

void EventFile::scalar(std::string_view tag, int64_t step, double value) {
  std::string entry = bytes_field(kTag, tag);
  put_key(entry, kSimpleValue, kFixed32);
  put_raw(entry, static_cast<float>(value));
  append_event(step, bytes_field(kSummary, bytes_field(kValue, entry)));
}

void EventFile::append_event(int64_t step, std::string_view content) {
  std::string event;
  put_key(event, kWallTime, kFixed64);
  put_raw(event, seconds_now());
  if (step != 0) event += number_field(kStep, static_cast<uint64_t>(step));
  event += content;
  file_.append(record_of(event));
}

}  // namespace fmmformer::train
