// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/crc32c.h"

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>
#include <string>

#include "core/temporary_folder.h"

namespace fmmformer {
namespace {

TEST(Crc32c, HasThePublishedValues) {
  // RFC 3720, B.4, and the check value of the polynomial.
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Crc32c, GoesOnWhereItEnded) {
  const std::string text = "the same bytes in two pieces";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32c(text.substr(cut), crc32c(text.substr(0, cut))), crc32c(text));
  }
}

TEST(Crc32c, OfAFileIsThatOfItsBytes) {
  const TemporaryFolder folder;
  const std::string text(3'000'001, 'x');
  std::ofstream(folder / "file") << text;
  EXPECT_EQ(crc32c_of_file(folder / "file"), crc32c(text));
  EXPECT_THROW(crc32c_of_file(folder / "none"), std::runtime_error);
}

}  // namespace
}  // namespace fmmformer
