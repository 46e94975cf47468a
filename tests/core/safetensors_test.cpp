// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "fmmformer/core/atomic_file.h"
#include "temporary_folder.h"

namespace fmmformer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using NamedViews = std::vector<std::pair<std::string, SafeTensorView>>;

template <typename T>
SafeTensorView view(const std::string& dtype, std::vector<int64_t> shape,
                    const std::vector<T>& values) {
  return {dtype, std::move(shape), std::as_bytes(std::span(values))};
}

std::string bytes_in(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// A file with this header and this many bytes of data.
std::string file_bytes(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, 'x');
}

/// What the reader says about a file of these bytes; "" when it accepts them.
std::string reader_says(const TemporaryFolder& folder, const std::string& bytes) {
  std::ofstream(folder / "f", std::ios::binary) << bytes;
  try {
    read_safetensors(folder / "f");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

std::string small_file(const TemporaryFolder& folder) {
  const std::vector<float> a = {1, 2, 3};
  const std::vector<uint8_t> b = {4, 5};
  write_safetensors(folder / "small", {{"a", view("F32", {3}, a)}, {"b", view("U8", {2}, b)}},
                    {{"kind", "test"}});
  return bytes_in(folder / "small");
}

TEST(SafeTensors, ComeBackAsTheyWereWritten) {
  const TemporaryFolder folder;
  const std::vector<double> a = {1.5, -2.5};
  const std::vector<int32_t> b = {1, 2, 3, 4, 5, 6};
  write_safetensors(folder / "f",
                    {{"a", view("F64", {2}, a)}, {"b/c \"ü\"", view("I32", {2, 3}, b)}},
                    {{"key", "value\n"}});
  const SafeTensorsFile file = read_safetensors(folder / "f");
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].first, "a");
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"key", "value\n"}}));
  const SafeTensor* found = file.find("b/c \"ü\"");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->dtype, "I32");
  EXPECT_EQ(found->shape, (std::vector<int64_t>{2, 3}));
  ASSERT_EQ(found->data.size(), 24u);
  EXPECT_EQ(std::memcmp(found->data.data(), b.data(), 24), 0);
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(SafeTensors, HoldEmptyTensorsScalarsAndNoTensorAtAll) {
  const TemporaryFolder folder;
  const std::vector<float> none, one = {7};
  write_safetensors(folder / "f", {{"empty", view("F32", {0}, none)},
                                   {"empty matrix", view("F32", {3, 0}, none)},
                                   {"scalar", view("F32", {}, one)},
                                   {"last", view("F32", {0, 2}, none)}});
  const SafeTensorsFile file = read_safetensors(folder / "f");
  ASSERT_EQ(file.tensors.size(), 4u);
  EXPECT_EQ(file.find("empty matrix")->shape, (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(file.find("scalar")->data.size(), 4u);
  write_safetensors(folder / "nothing", {});
  EXPECT_TRUE(read_safetensors(folder / "nothing").tensors.empty());
}

TEST(SafeTensors, EveryTensorIsAlignedToItsElements) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> bytes = {1};
  const std::vector<double> doubles = {2};
  const std::vector<uint16_t> halves = {3};
  write_safetensors(folder / "f", {{"byte", view("BOOL", {1}, bytes)},
                                   {"half", view("BF16", {1}, halves)},
                                   {"double", view("F64", {1}, doubles)}});
  const std::string text = bytes_in(folder / "f");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  const SafeTensorsFile file = read_safetensors(folder / "f");
  EXPECT_EQ(file.tensors[0].first, "double");
  EXPECT_EQ(file.tensors[1].first, "half");
  EXPECT_EQ(file.tensors[2].first, "byte");
}

TEST(SafeTensors, KnowEveryElementType) {
  const TemporaryFolder folder;
  for (const auto& [dtype, size] : std::map<std::string, int64_t>{{"F64", 8},
                                                                  {"F32", 4},
                                                                  {"F16", 2},
                                                                  {"BF16", 2},
                                                                  {"I64", 8},
                                                                  {"I32", 4},
                                                                  {"U8", 1},
                                                                  {"BOOL", 1}}) {
    EXPECT_EQ(safetensors_element_size(dtype), size);
    const std::vector<std::byte> data(static_cast<size_t>(3 * size));
    write_safetensors(folder / dtype, {{"t", view(dtype, {3}, data)}});
    EXPECT_EQ(read_safetensors(folder / dtype).find("t")->data, data);
  }
}

TEST(SafeTensors, WriterRefusesWhatCannotBeStored) {
  const TemporaryFolder folder;
  const std::vector<float> two = {1, 2};
  const auto says = [&](const NamedViews& tensors,
                        std::map<std::string, std::string> metadata = {}) {
    try {
      write_safetensors(folder / "f", tensors, metadata);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(says({{"t", view("F32", {3}, two)}}),
              AllOf(HasSubstr("'t'"), HasSubstr("8 bytes"), HasSubstr("12")));
  EXPECT_THAT(says({{"t", view("F33", {2}, two)}}), AllOf(HasSubstr("F33"), HasSubstr("BF16")));
  EXPECT_THAT(says({{"t", view("F32", {-2}, two)}}), HasSubstr("-2"));
  EXPECT_THAT(says({{"__metadata__", view("F32", {2}, two)}}), HasSubstr("reserved"));
  EXPECT_THAT(says({{"t", view("F32", {2}, two)}, {"t", view("F32", {2}, two)}}),
              HasSubstr("twice"));
  EXPECT_THAT(says({{"\xff", view("F32", {2}, two)}}), HasSubstr("UTF-8"));
  EXPECT_THAT(says({}, {{"key", "\xff"}}), HasSubstr("UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(folder / "f"));
}

TEST(SafeTensors, FileCutAtAnyByteIsRefused) {
  const TemporaryFolder folder;
  const std::string bytes = small_file(folder);
  ASSERT_EQ(reader_says(folder, bytes), "");
  for (size_t length = 0; length < bytes.size(); ++length) {
    const std::string said = reader_says(folder, bytes.substr(0, length));
    EXPECT_THAT(said, AllOf(HasSubstr((folder / "f").string()), HasSubstr("write it again")))
        << "cut to " << length << " of " << bytes.size() << " bytes";
  }
}

TEST(SafeTensors, BitFlipsInTheHeaderAreRefusedOrReadAsAWholeFile) {
  const TemporaryFolder folder;
  const std::string bytes = small_file(folder);
  for (size_t bit = 0; bit < 8 * (bytes.size() - 14); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    std::ofstream(folder / "f", std::ios::binary) << damaged;
    try {
      // A flip inside a name or a metadata text leaves a legal file: it then has all of the data.
      size_t total = 0;
      for (const auto& [name, tensor] : read_safetensors(folder / "f").tensors)
        total += tensor.data.size();
      EXPECT_EQ(total, 14u) << "bit " << bit;
    } catch (const std::invalid_argument&) {
    }
  }
}

TEST(SafeTensors, TrailingBytesAreRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(reader_says(folder, small_file(folder) + "x"),
              HasSubstr("1 bytes follow the last tensor"));
}

TEST(SafeTensors, HeaderLongerThanTheFileIsRefusedWithoutAllocatingIt) {
  const TemporaryFolder folder;
  EXPECT_THAT(reader_says(folder, std::string(8, '\xff') + "{}"), HasSubstr("header claims"));
}

TEST(SafeTensors, EachBrokenHeaderIsNamed) {
  const TemporaryFolder folder;
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const auto one = [&](const std::string& text) {
    return reader_says(folder, file_bytes(R"({"t":)" + text + "}", 8));
  };
  const auto two = [&](const std::string& a, const std::string& b) {
    return reader_says(folder, file_bytes(R"({"a":)" + a + R"(,"b":)" + b + "}", 8));
  };
  EXPECT_EQ(one(entry("F32", "[2]", "[0,8]")), "");
  EXPECT_EQ(two(entry("F32", "[1]", "[4,8]"), entry("F32", "[1]", "[0,4]")), "");
  EXPECT_THAT(one(entry("F31", "[2]", "[0,8]")), AllOf(HasSubstr("'t'"), HasSubstr("F31")));
  EXPECT_THAT(one(entry("F32", "[3]", "[0,8]")), HasSubstr("its shape takes 12 bytes"));
  EXPECT_THAT(one(entry("F32", "[2]", "[8,0]")), HasSubstr("8..0"));
  EXPECT_THAT(one(entry("F32", "[2]", "[0,8,8]")), HasSubstr("no pair"));
  EXPECT_THAT(one(entry("F32", "[-2]", "[0,8]")), HasSubstr("whole number"));
  EXPECT_THAT(one(entry("F32", "[2.0]", "[0,8]")), HasSubstr("whole number"));
  EXPECT_THAT(one(entry("F32", "2", "[0,8]")), HasSubstr("shape is no list"));
  EXPECT_THAT(one(entry("F32", "[4294967296,4294967296]", "[0,8]")), HasSubstr("2^64"));
  EXPECT_THAT(one(entry("F32", "[18446744073709551615]", "[0,8]")), HasSubstr("2^63"));
  EXPECT_THAT(one(entry("F32", "[4]", "[0,16]")), HasSubstr("cut short"));
  EXPECT_THAT(one("[]"), HasSubstr("wants dtype"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2]})"), HasSubstr("wants dtype"));
  EXPECT_THAT(two(entry("U8", "[2]", "[0,2]"), entry("F32", "[1]", "[4,8]")), HasSubstr("hole"));
  EXPECT_THAT(two(entry("U8", "[6]", "[0,6]"), entry("F32", "[1]", "[4,8]")),
              HasSubstr("overlaps"));
  const auto header = [&](const std::string& text) {
    return reader_says(folder, file_bytes(text, 0));
  };
  EXPECT_EQ(header("{}"), "");
  EXPECT_THAT(header(""), HasSubstr("begin with '{'"));
  EXPECT_THAT(header("[]"), HasSubstr("begin with '{'"));
  EXPECT_THAT(header("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(header("{\"\xff\":1}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(header(R"({"__metadata__":1})"), HasSubstr("no object"));
  EXPECT_THAT(header(R"({"__metadata__":{"step":1}})"), HasSubstr("'step' is no text"));
  EXPECT_THAT(header(R"({"t":)" + entry("F32", "[0]", "[0,0]") + R"(,"t":)" +
                     entry("F32", "[0]", "[0,0]") + "}"),
              HasSubstr("'t' twice"));
  EXPECT_THAT(header(R"({"t":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
              HasSubstr("nested too deeply"));
}

TEST(SafeTensors, MissingFileAndFolderAreNamed) {
  const TemporaryFolder folder;
  for (const std::filesystem::path& path : {folder / "missing", folder.path()}) {
    try {
      read_safetensors(path);
      ADD_FAILURE() << path << " was read";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }
}

}  // namespace
}  // namespace fmmformer
