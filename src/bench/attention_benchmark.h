// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/floor.h"
#include "bench/peers.h"
#include "bench/statistics.h"

namespace fmmformer::bench {

struct BenchmarkOptions {
  std::optional<c10::ScalarType> dtype;  // none: the case's first
  Pass pass = Pass::kForwardBackward;
  std::vector<const Peer*> peers;
  bool run_slow_peers = false;  // also beyond the length that a peer is meant for
  TimingPlan plan;
  double product_rate = 0;  // of this machine, measured in this run
};

struct PeerResult {
  std::string name;
  std::optional<Timing> timing = {};  // none: it was not run
  double ratio = 0;                   // its time over ours, from the same run
  int64_t peak_bytes = 0;
  std::string why_not = {};
};

/// One row of the benchmark: our operator and its peers on one case, timed side by side.
struct BenchmarkRow {
  AttentionCase attention_case;
  c10::ScalarType dtype = c10::kFloat;
  Timing ours = {};
  int64_t peak_bytes = 0;  // beyond the inputs
  double floor = 0;        // seconds
  std::vector<PeerResult> peers = {};

  double times_floor() const { return ours.median / floor; }
  double product_share() const { return floor / ours.median; }
  double tokens_per_second() const;
};

BenchmarkRow measure_case(const AttentionCase& attention_case, const BenchmarkOptions& options);

/// A variant of the plain case and how many times the plain case's time it takes.
struct VariantRow {
  std::string name;
  std::string shape;
  c10::ScalarType dtype = c10::kFloat;
  Timing timing = {};
  double times_plain = 0;
};

/// Times the plain case (the first row, 1.0), every variant of it, and it on one thread, all
/// interleaved.
std::vector<VariantRow> measure_variants(const BenchmarkOptions& options);

}  // namespace fmmformer::bench
