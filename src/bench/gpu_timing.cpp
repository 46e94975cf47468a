// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_timing.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/gpu.h"

namespace fmmformer::bench {
namespace {

/// A graph, and how often it is replayed for one duration. Launching the first costs the host a few
/// microseconds, in which the GPU waits: 0.5 % of one millisecond's worth of replays, a quarter of
/// that of four's. Replays beyond the first hundred of a very short graph change no median.
struct Replays {
  std::unique_ptr<ReplayedGraph> graph;
  int in_a_row = 1;

  Replays(const Work& work, const Clock& clock) : graph(std::make_unique<ReplayedGraph>(work)) {
    constexpr double kLongEnough = 4e-3;
    constexpr double kMost = 100;
    const Work once = [this] { graph->replay(); };
    clock(once);
    in_a_row = static_cast<int>(std::clamp(std::ceil(kLongEnough / clock(once)), 1.0, kMost));
  }

  void run() const {
    for (int i = 0; i < in_a_row; ++i) graph->replay();
  }
};

}  // namespace

Clock event_clock(const c10::Device& device) {
  return [device](const Work& work) {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    // BACKEND_DEFAULT is the kind that keeps time.
    c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    return begin.elapsedTime(end) * 1e-3;
  };
}

GraphAndEager time_graph_and_eager(std::span<const Work> recorded, std::span<const Work> eager,
                                   const c10::Device& device, const TimingPlan& plan) {
  const Clock clock = event_clock(device);
  std::vector<Replays> replays;
  std::vector<Work> works;
  replays.reserve(recorded.size());  // the works hold their addresses
  for (const Work& one : recorded) {
    const Replays& next = replays.emplace_back(one, clock);
    works.emplace_back([&next] { next.run(); });
  }
  works.insert(works.end(), eager.begin(), eager.end());
  const std::vector<Timing> timings = time_in_turns(works, plan, clock);
  const auto first_eager = timings.begin() + static_cast<ptrdiff_t>(recorded.size());
  GraphAndEager both{.graph = {timings.begin(), first_eager},
                     .eager = {first_eager, timings.end()}};
  for (size_t i = 0; i < replays.size(); ++i) {
    both.graph[i] = both.graph[i].per_run(replays[i].in_a_row);
  }
  return both;
}

bool measured_in_memory(const c10::Device& device, const Work& measure) {
  bool fits = true;
  try {
    const OwnStream stream(device);
    measure();
  } catch (const c10::OutOfMemoryError&) {
    fits = false;
  }
  free_cached_gpu_memory();
  return fits;
}

double measure_copy_rate(const c10::Device& device) {
  constexpr int64_t kBytes = int64_t{1} << 30;  // far more than any cache
  const at::Tensor source = at::zeros({kBytes}, at::device(device).dtype(at::kByte));
  const at::Tensor target = at::empty_like(source);
  const Work copy = [&] { target.copy_(source); };
  const TimingPlan plan{.warm_up_seconds = 0.01, .seconds = 0.02, .minimum_repeats = 20};
  const double seconds = time_in_turns({&copy, 1}, plan, event_clock(device)).front().median;
  return 2.0 * static_cast<double>(kBytes) / seconds;
}

}  // namespace fmmformer::bench
