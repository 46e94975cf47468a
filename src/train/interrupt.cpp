// SPDX-License-Identifier: Apache-2.0
#include "train/interrupt.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <stdexcept>

namespace fmmformer::train {
namespace {

struct Watched {
  int number;
  struct sigaction before;
};

std::array<Watched, 2> watched = {{{SIGINT, {}}, {SIGTERM, {}}}};
std::atomic<int> received{0};
std::atomic<bool> installed{false};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may use no lock");

// Runs inside a signal handler: sigaction and lock-free atomics are all it may use.
void on_signal(int number) {
  received.store(number);
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (const Watched& one : watched) {
    if (one.before.sa_handler != SIG_IGN) sigaction(one.number, &action, nullptr);
  }
}

}  // namespace

InterruptGuard::InterruptGuard() {
  if (installed.exchange(true)) {
    throw std::logic_error("InterruptGuard: there is one already; only one may live at a time");
  }
  received.store(0);
  for (Watched& one : watched) sigaction(one.number, nullptr, &one.before);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // a write under way is not disturbed
  for (const Watched& one : watched) {
    if (one.before.sa_handler != SIG_IGN) sigaction(one.number, &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (const Watched& one : watched) sigaction(one.number, &one.before, nullptr);
  installed.store(false);
}

int InterruptGuard::signal() const { return received.load(); }

}  // namespace fmmformer::train
