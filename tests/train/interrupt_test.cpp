// SPDX-License-Identifier: Apache-2.0
#include "train/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>

namespace fmmformer::train {
namespace {

/// Runs the action in a process of its own; its status as of waitpid.
int status_of(const std::function<int()>& action) {
  const pid_t child = fork();
  if (child == 0) _exit(action());
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(InterruptGuard, TheFirstSignalOnlySetsAFlag) {
  for (const int number : {SIGINT, SIGTERM}) {
    const InterruptGuard guard;
    EXPECT_FALSE(guard.requested());
    raise(number);
    EXPECT_TRUE(guard.requested());
    EXPECT_EQ(guard.signal(), number);
  }
}

TEST(InterruptGuard, TheSecondEndsTheProcess) {
  const int status = status_of([] {
    const InterruptGuard guard;
    raise(SIGINT);
    if (!guard.requested()) return 1;
    raise(SIGTERM);
    return 2;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST(InterruptGuard, PutsBackWhatWasThere) {
  struct sigaction before, after;
  sigaction(SIGINT, nullptr, &before);
  {
    const InterruptGuard guard;
    raise(SIGINT);
  }
  sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  EXPECT_FALSE(InterruptGuard().requested());
}

TEST(InterruptGuard, LeavesAnIgnoredSignalIgnored) {
  const int status = status_of([] {
    signal(SIGINT, SIG_IGN);
    const InterruptGuard guard;
    raise(SIGINT);
    if (guard.requested()) return 1;
    raise(SIGTERM);
    if (guard.signal() != SIGTERM) return 2;
    raise(SIGINT);
    return 0;
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(InterruptGuard, ThereIsOneAtATime) {
  const InterruptGuard guard;
  EXPECT_THROW(InterruptGuard(), std::logic_error);
  raise(SIGINT);
  EXPECT_TRUE(guard.requested());
}

}  // namespace
}  // namespace fmmformer::train
