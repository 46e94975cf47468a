// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

namespace fmmformer::cli {

/// One line at the foot of a terminal that is written over and over; nothing in a pipe.
class LiveLine {
 public:
  bool on_terminal() const { return on_terminal_; }
  void show(const std::string& text) const {
    if (on_terminal_) std::fprintf(stderr, "\r\033[K%s", text.c_str());
  }
  void clear() const { show(""); }

 private:
  bool on_terminal_ = isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
};

}  // namespace fmmformer::cli
