// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fmmformer::cli {

/// What of `text` a line of `columns` has room for: whole parts, which two spaces keep apart.
std::string fitted_line(std::string_view text, int64_t columns);

/// One line at the foot of a terminal that is written over and over; nothing in a pipe.
class LiveLine {
 public:
  LiveLine();
  bool on_terminal() const { return on_terminal_; }
  void show(const std::string& text) const;
  void clear() const { show(""); }

 private:
  bool on_terminal_;
  mutable size_t shown_ = 0;  // letters there now
};

}  // namespace fmmformer::cli
