// SPDX-License-Identifier: Apache-2.0
// One download as a process of its own, which tests kill, race and starve of disk space:
//   fetch_once FOLDER NAME SHA256 ADDRESS [LARGEST_FILE_BYTES]
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tasks/fetch/download.h"

int main(int argc, char** argv) {
  using namespace fmmformer::tasks::fetch;
  if (argc < 5) return 2;
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  if (argc > 5) {
    const rlimit limit = {std::strtoul(argv[5], nullptr, 10), RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
  }
  try {
    download({.name = argv[2], .addresses = {argv[4]}, .sha256 = argv[3]}, {.folder = argv[1]},
             {.on_notice = [](const std::string& text) { std::printf("%s\n", text.c_str()); }});
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
