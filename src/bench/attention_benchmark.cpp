// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_benchmark.h"

#include <ATen/Parallel.h>

#include <memory>

#include "bench/memory.h"

namespace fmmformer::bench {
namespace {

Work make_work(AttentionFunction attention, CaseTensors tensors, Pass pass) {
  // Shared, because std::function copies what it holds.
  auto held = std::make_shared<const CaseTensors>(std::move(tensors));
  if (pass == Pass::kForward) return [attention, held] { run_forward(attention, *held); };
  return [attention, held] { run_forward_backward(attention, *held); };
}

std::string why_not(const Peer& peer, const AttentionCase& c, const BenchmarkOptions& options) {
  if (c.length > peer.longest && !options.run_slow_peers) {
    return "too slow or too large beyond length " + std::to_string(peer.longest) +
           "; ask with --peers";
  }
  return reason_against(peer, c);
}

}  // namespace

double BenchmarkRow::tokens_per_second() const {
  return static_cast<double>(attention_case.batch * attention_case.length) / ours.median;
}

BenchmarkRow measure_case(const AttentionCase& attention_case, const BenchmarkOptions& options) {
  BenchmarkRow row{.attention_case = attention_case,
                   .dtype = options.dtype.value_or(attention_case.dtypes.front())};
  row.floor = floor_seconds(attention_case, options.pass, options.product_rate);
  const CaseTensors tensors = make_inputs(attention_case, row.dtype, kTimedSeed);
  std::vector<Work> candidates = {make_work(fmm_attention, tensors, options.pass)};
  std::vector<size_t> peer_of_candidate;
  for (const Peer* peer : options.peers) {
    row.peers.push_back({.name = std::string(peer->name),

                         .why_not = why_not(*peer, attention_case, options)});
    if (!row.peers.back().why_not.empty()) continue;
    peer_of_candidate.push_back(row.peers.size() - 1);
    candidates.push_back(make_work(peer->run, in_layout(tensors, peer->best_layout), options.pass));
  }
  const std::vector<Timing> timings = time_in_turns(candidates, options.plan);
  row.ours = timings.front();
  row.peak_bytes = peak_tensor_bytes(candidates.front());
  for (size_t i = 0; i < peer_of_candidate.size(); ++i) {
    PeerResult& peer = row.peers[peer_of_candidate[i]];
    peer.timing = timings[i + 1];
    peer.ratio = timings[i + 1].median / row.ours.median;
    peer.peak_bytes = peak_tensor_bytes(candidates[i + 1]);
  }
  return row;
}

std::vector<VariantRow> measure_variants(const BenchmarkOptions& options) {
  std::vector<VariantRow> rows;
  std::vector<Work> candidates;
  const auto add = [&](const AttentionCase& c, std::string name) {
    const c10::ScalarType dtype = c.dtypes.front();
    rows.push_back({.name = std::move(name), .shape = shape_text(c), .dtype = dtype});
    candidates.push_back(make_work(fmm_attention, make_inputs(c, dtype, kTimedSeed), options.pass));
  };
  const AttentionCase& plain = case_named(kPlainCase);
  add(plain, plain.name);
  for (const AttentionCase& variant : cases_with_tag(CaseTag::kVariant)) add(variant, variant.name);
  const int threads = at::get_num_threads();
  if (threads > 1) {
    add(plain, "with_one_thread");
    candidates.back() = [work = candidates.front(), threads] {
      at::set_num_threads(1);
      work();
      at::set_num_threads(threads);
    };
  }
  const std::vector<Timing> timings = time_in_turns(candidates, options.plan);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].timing = timings[i];
    rows[i].times_plain = timings[i].median / timings.front().median;
  }
  return rows;
}

}  // namespace fmmformer::bench
