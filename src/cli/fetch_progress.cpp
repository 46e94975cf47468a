// SPDX-License-Identifier: Apache-2.0
#include "cli/fetch_progress.h"

#include <cstdio>

#include "cli/train_progress.h"
#include "tasks/fetch/byte_text.h"

namespace fmmformer::cli {
namespace {

using tasks::fetch::byte_text;
using tasks::fetch::Phase;
using tasks::fetch::Progress;

constexpr auto kLiveEvery = std::chrono::milliseconds(100);
constexpr auto kPlainEvery = std::chrono::seconds(10);
constexpr double kRateAfter = 0.5;  // seconds: before that a rate jumps about

const char* doing(Phase phase) {
  switch (phase) {
    case Phase::kDownload:
      return "";
    case Phase::kVerify:
      return "checking ";
    case Phase::kUnpack:
      return "unpacking ";
  }
  return "";
}

}  // namespace

std::string fetch_progress_text(const std::string& name, const Progress& progress,
                                double bytes_per_second) {
  std::string text = doing(progress.phase) + name + "  " + byte_text(progress.done);
  if (progress.total > 0) text += " of " + byte_text(progress.total);
  if (bytes_per_second <= 0) return text;
  text += "  " + byte_text(static_cast<int64_t>(bytes_per_second)) + "/s";
  if (progress.total > progress.done) {
    const auto left = static_cast<double>(progress.total - progress.done);
    text += "  " + duration_text(left / bytes_per_second) + " left";
  }
  return text;
}

tasks::fetch::Listener FetchProgress::listener() {
  return {.on_progress = [this](const Progress& progress) { show(progress); },
          .on_notice = [this](const std::string& text) { print(text); }};
}

void FetchProgress::show(const Progress& progress) {
  const auto now = Clock::now();
  // What is done falls when a server starts over.
  if (!begun_ || progress.phase != first_.phase || progress.done < first_.done) {
    begun_ = true;
    first_ = progress;
    began_ = now;
  }
  const auto every = live_.on_terminal() ? Clock::duration(kLiveEvery) : kPlainEvery;
  if (now - shown_ < every) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - began_).count();
  const auto brought = static_cast<double>(progress.done - first_.done);
  const std::string text =
      fetch_progress_text(name_, progress, seconds < kRateAfter ? 0 : brought / seconds);
  if (live_.on_terminal()) {
    live_.show(text);
  } else {
    print(text);
  }
}

void FetchProgress::print(const std::string& text) const {
  live_.clear();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace fmmformer::cli
