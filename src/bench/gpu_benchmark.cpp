// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_benchmark.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "bench/floor.h"
#include "bench/gpu.h"
#include "bench/gpu_timing.h"
#include "fmmformer/attention/fmm_decode.h"

namespace fmmformer::bench {
namespace {

/// Softmax in bf16 takes 35 ms at this length; fp32, without tensor cores, many times that.
int64_t longest_on_gpu(const Peer& peer, c10::ScalarType dtype) {
  return peer.is_fmm || dtype == c10::kFloat ? peer.longest : 65536;
}

std::string why_not(const Peer& peer, const GpuRow& row, const GpuBenchmarkOptions& options) {
  const int64_t longest = longest_on_gpu(peer, row.dtype);
  if (row.attention_case.length > longest && !options.run_slow_peers)
    return "too slow beyond length " + std::to_string(longest) + "; ask with --peers";
  return peer.is_fmm ? reason_against(peer, row.attention_case) : "";
}

/// What a peer is given. Softmax knows neither our mask nor our dropout: it runs without them,
/// which is its fastest.
CaseTensors inputs_for(const Peer& peer, const GpuRow& row, const c10::Device& device) {
  AttentionCase plain = row.attention_case;
  plain.layout = peer.best_layout;
  plain.mask = MaskPattern::kNone;
  plain.near_dropout = 0;
  return make_inputs(plain, row.dtype, kTimedSeed, device);
}

/// Ours first, then the peers that run.
struct Candidates {
  std::vector<CaseTensors> tensors;
  std::vector<AttentionFunction> functions;
  std::vector<GpuPeerResult*> results;  // of the peers

  std::vector<Work> works() const {
    std::vector<Work> list;
    for (size_t i = 0; i < functions.size(); ++i)
      list.emplace_back([this, i] { run_forward_backward(functions[i], tensors[i]); });
    return list;
  }
};

Candidates candidates_of(GpuRow& row, const GpuBenchmarkOptions& options) {
  Candidates candidates;
  candidates.tensors = {make_inputs(row.attention_case, row.dtype, kTimedSeed, options.device)};
  candidates.functions = {fmm_attention};
  row.peers.reserve(options.peers.size());  // the candidates hold their addresses
  for (const Peer* peer : options.peers) {
    row.peers.push_back({.name = std::string(peer->name), .why_not = why_not(*peer, row, options)});
    if (!row.peers.back().why_not.empty()) continue;
    candidates.tensors.push_back(inputs_for(*peer, row, options.device));
    candidates.functions.emplace_back(peer->run);
    candidates.results.push_back(&row.peers.back());
  }
  return candidates;
}

void measure(GpuRow& row, const GpuBenchmarkOptions& options) {
  const Candidates candidates = candidates_of(row, options);
  const std::vector<Work> works = candidates.works();
  std::vector<Work> recorded = works;
  recorded.emplace_back([&] { run_forward(fmm_attention, candidates.tensors.front()); });
  const auto [replayed, eager] =
      time_graph_and_eager(recorded, works, options.device, options.plan);
  row.forward = replayed.back();
  for (size_t i = 0; i < works.size(); ++i) {
    const GpuMeasurement measured{.graph = replayed[i],
                                  .eager = eager[i],
                                  .peak_bytes = peak_gpu_bytes(options.device, works[i])};
    if (i == 0) {
      row.ours = measured;
    } else {
      candidates.results[i - 1]->measured = measured;
    }
  }
}

/// Runs `measure` for a row's numbers.
void fill(GpuRow& row, const GpuBenchmarkOptions& options, const Work& measure) {
  row.floor =
      floor_bytes(row.attention_case, row.dtype, Pass::kForwardBackward) / options.copy_rate;
  if (!measured_in_memory(options.device, measure)) row.failure = "out of memory";
}

}  // namespace

std::optional<double> GpuRow::limit_seconds() const {
  if (!attention_case.gpu_limit || dtype == c10::kHalf) return std::nullopt;
  return attention_case.gpu_limit->seconds * (dtype == c10::kFloat ? kFp32Factor : 1);
}

std::optional<int64_t> GpuRow::limit_bytes() const {
  const std::optional<GpuLimit>& limit = attention_case.gpu_limit;
  if (!limit || limit->peak_bytes == 0 || dtype == c10::kFloat) return std::nullopt;
  return limit->peak_bytes;
}

bool GpuRow::is_within_limits() const {
  return ours.graph.median <= limit_seconds().value_or(ours.graph.median) &&
         ours.peak_bytes <= limit_bytes().value_or(ours.peak_bytes);
}

const GpuMeasurement* GpuRow::peer(std::string_view name) const {
  const auto found = std::ranges::find(peers, name, &GpuPeerResult::name);
  return found != peers.end() && found->measured ? &*found->measured : nullptr;
}

GpuRow measure_gpu_case(const AttentionCase& attention_case, c10::ScalarType dtype,
                        const GpuBenchmarkOptions& options) {
  GpuRow row{.attention_case = attention_case, .dtype = dtype};
  fill(row, options, [&] { measure(row, options); });
  return row;
}

GpuRow measure_gpu_case(const FastWeightCase& one, c10::ScalarType dtype,
                        const GpuBenchmarkOptions& options) {
  GpuRow row{.attention_case = one.attention, .shape = shape_text(one), .dtype = dtype};
  fill(row, options, [&] {
    const FastWeightTensors tensors = make_inputs(one, dtype, kTimedSeed, options.device);
    const Work both = [&] { evaluate(fast_weight_attention, tensors); };
    const Work forward = [&] {
      const c10::NoGradGuard no_gradients;
      fast_weight_attention(tensors.inputs, tensors.options);
    };
    const Work recorded[] = {both, forward};
    const auto [replayed, eager] =
        time_graph_and_eager(recorded, {&both, 1}, options.device, options.plan);
    row.forward = replayed[1];
    row.ours = {.graph = replayed[0],
                .eager = eager[0],
                .peak_bytes = peak_gpu_bytes(options.device, both)};
  });
  return row;
}

Timing measure_gpu_step(c10::ScalarType dtype, const GpuBenchmarkOptions& options) {
  const c10::NoGradGuard no_gradients;
  const OwnStream stream(options.device);
  AttentionCase prompt = case_named("gpu_65536_r3_band30");
  prompt.length = 64;
  const CaseTensors tensors = make_inputs(prompt, dtype, kTimedSeed, options.device);
  FmmState state = fmm_attention_prefill(tensors.inputs, tensors.weights, tensors.options).second;
  const AttentionInputs token{.q = tensors.inputs.q.select(1, 0),
                              .k = tensors.inputs.k.select(1, 0),
                              .v = tensors.inputs.v.select(1, 0)};
  const Work step = [&] { fmm_attention_step(token, state, tensors.weights, tensors.options); };
  return time_graph_and_eager({&step, 1}, {}, options.device, options.plan).graph.front();
}

}  // namespace fmmformer::bench
