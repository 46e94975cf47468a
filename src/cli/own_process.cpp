// SPDX-License-Identifier: Apache-2.0
#include "cli/own_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace fmmformer::cli {
namespace {

enum : int { kWorked = 0, kThrew = 1 };

[[noreturn]] void run_child(const std::function<std::string()>& work, int out) {
  std::string answer;
  int code = kWorked;
  try {
    answer = work();
  } catch (const std::exception& error) {
    answer = error.what();
    code = kThrew;
  }
  std::fflush(nullptr);
  for (size_t sent = 0; sent < answer.size();) {
    const ssize_t count = write(out, answer.data() + sent, answer.size() - sent);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) _exit(kThrew);
    sent += static_cast<size_t>(count);
  }
  _exit(code);  // what runs at the end of a program is the parent's to run
}

std::string read_all(int in) {
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = read(in, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "cannot read a pipe");
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

}  // namespace

std::string in_own_process(const std::function<std::string()>& work) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot make a pipe");
  std::fflush(nullptr);  // else the child would write it once more
  const pid_t child = fork();
  if (child < 0) {
    const int why = errno;
    close(ends[0]), close(ends[1]);
    throw std::system_error(why, std::generic_category(), "cannot start a process");
  }
  if (child == 0) {
    close(ends[0]);
    run_child(work, ends[1]);
  }
  close(ends[1]);
  std::string answer = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    throw std::runtime_error(std::string("the process that measured was ended: ") +
                             strsignal(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != kWorked) {
    throw std::runtime_error(answer.empty() ? "the process that measured ended without a word"
                                            : answer);
  }
  return answer;
}

}  // namespace fmmformer::cli
