// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace fmmformer::tasks::fetch {

enum class Phase { kDownload, kVerify, kUnpack };

struct Progress {
  Phase phase = Phase::kDownload;
  int64_t done = 0;   // bytes
  int64_t total = 0;  // 0: unknown
};

/// Who wants to hear how it goes; either may be left empty.
struct Listener {
  std::function<void(const Progress&)> on_progress;  // many times a second
  std::function<void(const std::string& text)>
      on_notice;  // what a person should know: a retry, a wait

  void progress(const Progress& progress) const {
    if (on_progress) on_progress(progress);
  }
  void notice(const std::string& text) const {
    if (on_notice) on_notice(text);
  }
};

}  // namespace fmmformer::tasks::fetch
