// SPDX-License-Identifier: Apache-2.0
// Timing on a GPU: by events on its own stream rather than by the host's clock.
#pragma once

#include <c10/core/Device.h>

#include "bench/statistics.h"

namespace fmmformer::bench {

/// The seconds between an event before and one after the work, on the device's current stream,
/// which is waited for.
Clock event_clock(const c10::Device& device);

/// Each piece of work as a graph, replayed in turns and, where it is short, several times in a row:
/// the GPU's own time. Inputs that fit in its cache stay there between replays, as a layer's do
/// that were just computed.
std::vector<Timing> time_replayed(std::span<const Work> candidates, const c10::Device& device,
                                  const TimingPlan& plan);

/// Bytes read and written a second when a large tensor is copied: the yardstick for memory floors,
/// measured in the same run as what it is compared with.
double measure_copy_rate(const c10::Device& device);

}  // namespace fmmformer::bench
