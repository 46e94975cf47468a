// SPDX-License-Identifier: Apache-2.0
// Lines of columns, and what may stand in them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/data/byte_source.h"

namespace fmmformer::tasks {

/// A file with TABs between its columns, whose last line must have an end: one that has been cut
/// off somewhere does not pass for whole.
class TableReader {
 public:
  /// `form` is what errors say a line should be: "label TAB id TAB text".
  TableReader(const std::filesystem::path& path, std::string form)
      : lines_(path), form_(std::move(form)) {}

  /// Reads the next line; false after the last.
  bool next();

  /// The line's columns, which must be this many.
  std::vector<std::string_view> columns(size_t count) const;
  /// The same, where further TABs belong to the last column.
  std::vector<std::string_view> columns_and_rest(size_t count) const;
  /// How many there are.
  size_t column_count() const;
  uint16_t label(std::string_view column, size_t classes) const;
  /// Fails unless the text is UTF-8: another encoding would give other tokens than everybody has.
  void require_utf8(std::string_view column) const;

  [[noreturn]] void fail(const std::string& what) const { lines_.fail(what); }

 private:
  [[noreturn]] void wrong_count(size_t wanted) const;

  LineReader lines_;
  std::string form_;
  std::string_view line_;
};

/// "1" and "1.0" are 1; none for what is no class below `classes`.
std::optional<uint16_t> label_of(std::string_view text, size_t classes);
/// What an error says about such a text.
std::string wrong_label(std::string_view text, size_t classes);

/// Where UTF-8 ends: the first byte that is none, or text.size().
size_t first_byte_not_utf8(std::string_view text);

/// Without white space around it.
std::string_view stripped(std::string_view text);

}  // namespace fmmformer::tasks
