// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "fmmformer/core/atomic_file.h"
#include "fmmformer/core/named_enum.h"

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace fmmformer {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kChecksum = "fmmformer.checksum";  // of the data, among our own metadata
constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kAlignment = 8;  // of the data: the widest element
// The limit of the format's own library. A damaged length then cannot make us allocate all memory.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// FNV-1a, 64 bits: finds what a bad disk or a bad copy does to a file, not what an enemy does.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes)
      hash_ = (hash_ ^ static_cast<uint64_t>(byte)) * 0x100000001B3;
  }
  std::string text() const {
    std::ostringstream stream;
    stream << std::hex << hash_;
    return stream.str();
  }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

struct ElementType {
  std::string_view name;
  int64_t size;
};
constexpr std::array<ElementType, 8> kElementTypes = {{{"F64", 8},
                                                       {"F32", 4},
                                                       {"F16", 2},
                                                       {"BF16", 2},
                                                       {"I64", 8},
                                                       {"I32", 4},
                                                       {"U8", 1},
                                                       {"BOOL", 1}}};

/// Bytes of a tensor of this type and shape. Throws std::invalid_argument when there can be no such
/// tensor.
uint64_t byte_size(std::string_view dtype, const std::vector<int64_t>& shape) {
  uint64_t size = static_cast<uint64_t>(safetensors_element_size(dtype));
  // A 0 anywhere makes the tensor empty, however large the other extents are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) size = 0;
  for (const int64_t extent : shape) {
    if (extent < 0) {
      throw std::invalid_argument("an extent is " + std::to_string(extent) +
                                  ", allowed: 0 or more");
    }
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(extent), &size)) {
      throw std::invalid_argument("its shape has more than 2^64 bytes");
    }
  }
  return size;
}

struct Entry {
  std::string name;
  SafeTensor tensor;  // without its data
  uint64_t begin = 0;
  uint64_t end = 0;
};

[[noreturn]] void reject(const std::string& what) { throw std::invalid_argument(what); }

Json parse_header(const std::string& text) {
  // The format's own library insists on the brace; padding comes after the header, not before it.
  if (text.empty() || text.front() != '{') reject("its header does not begin with '{'");
  // nlohmann keeps the last of two equal keys; here two tensors of one name mean that the file is
  // damaged.
  std::vector<std::set<std::string>> keys;
  const auto check = [&keys](int depth, Json::parse_event_t event, Json& value) {
    if (depth > 4) reject("its header is nested too deeply");
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const std::string key = value.get<std::string>();
      if (!keys.back().insert(key).second) reject("its header names '" + key + "' twice");
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::parse_error&) {
    reject("its header is not valid JSON");
  }
}

uint64_t whole_number(const Json& value, const std::string& what) {
  if (!value.is_number_unsigned()) reject(what + " is no whole number of 0 or more");
  return value.get<uint64_t>();
}

Entry parse_entry(const std::string& name, const Json& value) {
  const std::string who = "tensor '" + name + "': ";
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    reject(who + "wants dtype, shape and data_offsets, and nothing else");
  }
  const Json& dtype = value["dtype"];
  const Json& shape = value["shape"];
  const Json& offsets = value["data_offsets"];
  if (!dtype.is_string()) reject(who + "dtype is no text");
  if (!shape.is_array()) reject(who + "shape is no list");
  if (!offsets.is_array() || offsets.size() != 2) reject(who + "data_offsets is no pair");
  Entry entry{.name = name, .tensor = {.dtype = dtype.get<std::string>(), .shape = {}, .data = {}}};
  for (const Json& extent : shape) {
    const uint64_t number = whole_number(extent, who + "an extent");
    if (number > static_cast<uint64_t>(INT64_MAX)) reject(who + "an extent is beyond 2^63");
    entry.tensor.shape.push_back(static_cast<int64_t>(number));
  }
  entry.begin = whole_number(offsets[0], who + "an offset");
  entry.end = whole_number(offsets[1], who + "an offset");
  uint64_t wanted = 0;
  try {
    wanted = byte_size(entry.tensor.dtype, entry.tensor.shape);
  } catch (const std::invalid_argument& error) {
    reject(who + error.what());
  }
  if (entry.end < entry.begin || entry.end - entry.begin != wanted) {
    reject(who + "its shape takes " + std::to_string(wanted) + " bytes, its offsets are " +
           std::to_string(entry.begin) + ".." + std::to_string(entry.end));
  }
  return entry;
}

/// Every byte of the data belongs to exactly one tensor; entries come back in the order of their
/// bytes.
void sort_and_check_offsets(std::vector<Entry>& entries, uint64_t data_bytes) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) {
      reject("tensor '" + entry.name + "' begins at byte " + std::to_string(entry.begin) +
             (entry.begin > covered ? ", which leaves a hole after byte "
                                    : ", which overlaps the one before, up to byte ") +
             std::to_string(covered));
    }
    covered = entry.end;
  }
  if (covered > data_bytes) {
    reject("it is cut short: its tensors take " + std::to_string(covered) + " bytes, there are " +
           std::to_string(data_bytes));
  }
  if (covered < data_bytes) {
    reject(std::to_string(data_bytes - covered) + " bytes follow the last tensor");
  }
}

SafeTensorsFile read_checked(std::ifstream& stream, uint64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    reject("it is cut short: " + std::to_string(file_bytes) + " bytes, at least 8 are wanted");
  }
  uint64_t header_bytes = 0;
  stream.read(reinterpret_cast<char*>(&header_bytes), kLengthBytes);
  if (header_bytes > file_bytes - kLengthBytes || header_bytes > kMaxHeaderBytes) {
    reject("its header claims " + std::to_string(header_bytes) + " bytes, the file has " +
           std::to_string(file_bytes));
  }
  std::string text(header_bytes, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  const Json header = parse_header(text);

  SafeTensorsFile file;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != kMetadata) {
      entries.push_back(parse_entry(name, value));
      continue;
    }
    if (!value.is_object()) reject("__metadata__ is no object");
    for (const auto& [key, content] : value.items()) {
      if (!content.is_string()) reject("metadata '" + key + "' is no text");
      file.metadata[key] = content.get<std::string>();
    }
  }
  sort_and_check_offsets(entries, file_bytes - kLengthBytes - header_bytes);
  for (Entry& entry : entries) {
    entry.tensor.data.resize(entry.end - entry.begin);
    stream.read(reinterpret_cast<char*>(entry.tensor.data.data()),
                static_cast<std::streamsize>(entry.tensor.data.size()));
    file.tensors.emplace_back(std::move(entry.name), std::move(entry.tensor));
  }
  if (const auto stored = file.metadata.find(std::string(kChecksum));
      stored != file.metadata.end()) {
    Checksum checksum;
    for (const auto& [name, tensor] : file.tensors) checksum.add(tensor.data);
    if (checksum.text() != stored->second)
      reject("its data is not what was written (checksum differs)");
    file.metadata.erase(stored);
    file.checksummed = true;
  }
  if (!stream) reject("it could not be read to its end");
  return file;
}

/// Indices of the tensors, wide elements first.
std::vector<size_t> file_order(const std::vector<std::pair<std::string, SafeTensorView>>& tensors) {
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return safetensors_element_size(tensors[a].second.dtype) >
           safetensors_element_size(tensors[b].second.dtype);
  });
  return order;
}

std::string serialized(const Json& header) {
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::type_error&) {
    reject("write_safetensors: a name or a metadata text is not UTF-8; encode it first");
  }
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) {
    reject("write_safetensors: the header has " + std::to_string(text.size()) +
           " bytes, allowed is " + std::to_string(kMaxHeaderBytes) + "; store less metadata");
  }
  return text;
}

}  // namespace

const SafeTensor* SafeTensorsFile::find(std::string_view name) const {
  for (const auto& [candidate, tensor] : tensors) {
    if (candidate == name) return &tensor;
  }
  return nullptr;
}

int64_t safetensors_element_size(std::string_view dtype) {
  std::vector<std::string> names;
  for (const ElementType& type : kElementTypes) {
    if (type.name == dtype) return type.size;
    names.emplace_back(type.name);
  }
  reject("dtype is '" + std::string(dtype) + "', allowed: " + join_names(names));
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, SafeTensorView>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names;
  for (const auto& [name, view] : tensors) {
    const std::string who = "write_safetensors: tensor '" + name + "': ";
    if (name == kMetadata) reject(who + "the name is reserved; choose another");
    if (!names.insert(name).second) reject(who + "the name is used twice; rename one");
    uint64_t wanted = 0;
    try {
      wanted = byte_size(view.dtype, view.shape);
    } catch (const std::invalid_argument& error) {
      reject(who + error.what());
    }
    if (view.data.size() != wanted) {
      reject(who + "its data has " + std::to_string(view.data.size()) + " bytes, its shape takes " +
             std::to_string(wanted) + "; pass the whole tensor, contiguous");
    }
  }
  Json header = Json::object();
  const std::vector<size_t> order = file_order(tensors);
  Checksum checksum;
  for (const size_t index : order) checksum.add(tensors[index].second.data);
  std::map<std::string, std::string> with_checksum = metadata;
  with_checksum[std::string(kChecksum)] = checksum.text();
  header[std::string(kMetadata)] = with_checksum;
  uint64_t offset = 0;
  for (const size_t index : order) {
    const auto& [name, view] = tensors[index];
    const uint64_t end = offset + view.data.size();
    header[name] = {{"dtype", view.dtype}, {"shape", view.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  const std::string text = serialized(header);
  const uint64_t header_bytes = text.size();
  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(&header_bytes, 1)),
                                                    std::as_bytes(std::span(text))};
  for (const size_t index : order) pieces.push_back(tensors[index].second.data);
  write_file_atomically(path, pieces);
}

SafeTensorsFile read_safetensors(const std::filesystem::path& path) {
  std::error_code error;
  const uint64_t file_bytes = std::filesystem::file_size(path, error);
  if (error) {
    reject("cannot read '" + path.string() + "': " + error.message() + "; give the path of a file");
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    reject("cannot open '" + path.string() + "'; check that you may read it");
  }
  try {
    return read_checked(stream, file_bytes);
  } catch (const std::invalid_argument& problem) {
    reject("'" + path.string() + "' is no intact safetensors file: " + problem.what() +
           "; restore it from a copy or write it again");
  }
}

}  // namespace fmmformer
