// SPDX-License-Identifier: Apache-2.0
#include "cli/live_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

namespace fmmformer::cli {
namespace {

int64_t terminal_columns() {
  winsize size = {};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

std::string fitted_line(std::string_view text, int64_t columns) {
  // The last column stays free: a letter there would have some terminals begin a new line.
  const auto room = static_cast<size_t>(columns > 1 ? columns - 1 : 1);
  if (text.size() <= room) return std::string(text);
  const size_t gap = text.substr(0, room + 2).rfind("  ");
  return std::string(text.substr(0, gap == std::string_view::npos ? room : gap));
}

LiveLine::LiveLine() : on_terminal_(isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {}

void LiveLine::show(const std::string& text) const {
  if (!on_terminal_) return;
  const int64_t columns = terminal_columns();
  // In a window that has become narrower the line before takes several rows.
  const auto rows_above = shown_ == 0 ? 0 : (static_cast<int64_t>(shown_) - 1) / columns;
  if (rows_above > 0) std::fprintf(stderr, "\033[%ldA", rows_above);
  const std::string line = fitted_line(text, columns);
  std::fprintf(stderr, "\r\033[J%s", line.c_str());
  shown_ = line.size();
}

}  // namespace fmmformer::cli
