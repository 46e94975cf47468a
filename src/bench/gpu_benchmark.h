// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "bench/fast_weight_cases.h"
#include "bench/peers.h"
#include "bench/statistics.h"

namespace fmmformer::bench {

struct GpuBenchmarkOptions {
  c10::Device device = c10::Device(c10::kCUDA, 0);
  std::vector<const Peer*> peers;
  bool run_slow_peers = false;  // also beyond the length that a peer is meant for
  // Turns of many runs: a script makes one eager call after the other. After graphs, during which
  // the host sleeps, its threads and caches take a few calls to be as awake as they are there.
  TimingPlan plan = {
      .warm_up_seconds = 0.02, .seconds = 0.15, .runs_per_turn = 20, .maximum_repeats = 100};
  double copy_rate = 0;  // bytes a second, measured in this run
};

/// Forward and backward of one candidate.
struct GpuMeasurement {
  Timing graph = {};       // replayed: the GPU's own time
  Timing eager = {};       // through autograd: what a user's script meets
  int64_t peak_bytes = 0;  // beyond the inputs
};

struct GpuPeerResult {
  std::string name;
  std::optional<GpuMeasurement> measured = {};  // none: it was not run
  std::string why_not = {};
};

/// One row of the benchmark: our operator and its peers on one case, timed side by side.
struct GpuRow {
  AttentionCase attention_case;
  std::string shape = {};  // as text; "": shape_text(attention_case)
  c10::ScalarType dtype = c10::kBFloat16;
  GpuMeasurement ours = {};
  Timing forward = {};  // alone, replayed
  double floor = 0;     // seconds: floor_bytes() at the copy rate
  std::vector<GpuPeerResult> peers = {};
  std::string failure = {};  // why there are no numbers: "out of memory"

  /// What the case may take in this type, where it has a limit.
  std::optional<double> limit_seconds() const;
  std::optional<int64_t> limit_bytes() const;
  bool is_within_limits() const;
  double times_floor() const { return ours.graph.median / floor; }
  /// How much longer than the replayed graph it takes from a program, in seconds.
  double eager_extra() const { return ours.eager.median - ours.graph.median; }
  /// Null where the peer was not run.
  const GpuMeasurement* peer(std::string_view name) const;
};

GpuRow measure_gpu_case(const AttentionCase& attention_case, c10::ScalarType dtype,
                        const GpuBenchmarkOptions& options);

/// The same for fast-weight attention, which has no peer in C++.
GpuRow measure_gpu_case(const FastWeightCase& one, c10::ScalarType dtype,
                        const GpuBenchmarkOptions& options);

/// One decoding step (one sequence, 8 heads of 64, 3 + 30) as a replayed graph.
Timing measure_gpu_step(c10::ScalarType dtype, const GpuBenchmarkOptions& options);

}  // namespace fmmformer::bench
