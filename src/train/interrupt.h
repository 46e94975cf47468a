// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a request rather than an end.
#pragma once

namespace fmmformer::train {

/// While it lives, the first SIGINT or SIGTERM only sets a flag; the second ends the process at
/// once, as it would without this. A signal that is ignored when it begins (as under nohup) stays
/// ignored. One at a time; the destructor puts back what was there.
class InterruptGuard {
 public:
  /// Throws std::logic_error when there is one already.
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard();

  bool requested() const { return signal() != 0; }
  /// The signal that came, or 0.
  int signal() const;
};

}  // namespace fmmformer::train
