// SPDX-License-Identifier: Apache-2.0
#include "bench/fast_weight_benchmark.h"

#include <c10/core/GradMode.h>

#include <memory>

#include "bench/fast_weight_peers.h"
#include "bench/memory.h"

namespace fmmformer::bench {
namespace {

// Which of them is best depends on the shape and on the machine's BLAS.
constexpr int64_t kChunks[] = {32, 64, 128};

std::string peer_name(int64_t chunk) { return "chunks_" + std::to_string(chunk); }

Work make_work(const FastWeightFunction& attention, const FastWeightTensors& tensors, Pass pass) {
  auto held = std::make_shared<const FastWeightTensors>(tensors);
  return [attention, held, pass] {
    if (pass == Pass::kForwardBackward) {
      evaluate(attention, *held);
      return;
    }
    const c10::NoGradGuard no_gradients;
    attention(held->inputs, held->options);
  };
}

}  // namespace

double floor_operations(const FastWeightCase& one, Pass pass) {
  const AttentionCase& c = one.attention;
  const auto state = static_cast<double>(c.head_dim * c.channels());
  const auto rows = static_cast<double>(c.batch * c.length * c.heads);
  return rows * state * (pass == Pass::kForward ? 6 : 6 + 12);
}

std::vector<std::string> fast_weight_peers() {
  std::vector<std::string> names;
  for (const int64_t chunk : kChunks) names.push_back(peer_name(chunk));
  return names;
}

BenchmarkRow measure_case(const FastWeightCase& one, const BenchmarkOptions& options) {
  BenchmarkRow row{.attention_case = one.attention,
                   .dtype = options.dtype.value_or(one.attention.dtypes.front())};
  row.floor = floor_operations(one, options.pass) / options.product_rate;
  const FastWeightTensors tensors = make_inputs(one, row.dtype, kTimedSeed);
  std::vector<Work> candidates = {make_work(fast_weight_attention, tensors, options.pass)};
  for (const int64_t chunk : kChunks) {
    const auto peer = [chunk](const FastWeightInputs& inputs, const FastWeightOptions& given) {
      return chunk_loop(inputs, given, chunk);
    };
    candidates.push_back(make_work(peer, tensors, options.pass));
    row.peers.push_back({.name = peer_name(chunk)});
  }
  const std::vector<Timing> timings = time_in_turns(candidates, options.plan);
  row.ours = timings.front();
  row.peak_bytes = peak_tensor_bytes(candidates.front());
  for (size_t i = 0; i < row.peers.size(); ++i) {
    row.peers[i].timing = timings[i + 1];
    row.peers[i].ratio = timings[i + 1].median / row.ours.median;
    row.peers[i].peak_bytes = peak_tensor_bytes(candidates[i + 1]);
  }
  return row;
}

}  // namespace fmmformer::bench
