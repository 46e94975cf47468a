// SPDX-License-Identifier: Apache-2.0
// Timing on a GPU: by events on its own stream rather than by the host's clock.
#pragma once

#include <c10/core/Device.h>

#include "bench/statistics.h"

namespace fmmformer::bench {

/// The seconds between an event before and one after the work, on the device's current stream,
/// which is waited for.
Clock event_clock(const c10::Device& device);

/// Timings of work in two forms.
struct GraphAndEager {
  std::vector<Timing> graph, eager;
};

/// `recorded`: each piece of work as a graph, replayed several times in a row where it is short:
/// the GPU's own time. Inputs that fit in its cache stay there between replays, as a layer's do
/// that were just computed. `eager`: as a user's script would run it, launch by launch. All of them
/// in turns, since a GPU's clock changes as it grows warm.
GraphAndEager time_graph_and_eager(std::span<const Work> recorded, std::span<const Work> eager,
                                   const c10::Device& device, const TimingPlan& plan);

/// Bytes read and written a second when a large tensor is copied: the yardstick for memory floors,
/// measured in the same run as what it is compared with.
double measure_copy_rate(const c10::Device& device);

/// Runs `measure`, on a stream of its own, and gives back what its tensors held. False where the
/// GPU has too little memory for it.
bool measured_in_memory(const c10::Device& device, const Work& measure);

}  // namespace fmmformer::bench
