// SPDX-License-Identifier: Apache-2.0
// Far states of segments: where they lie, how they are summed, and what forward keeps of them.
#include <c10/cuda/CUDAException.h>

#include "attention/fmm/cuda/call.h"

namespace fmmformer::cuda {

constexpr int64_t kSegmentsToSum = 8;  // a sweep adds up so many states by itself; more get a scan

bool Call::shares_states() const {
  return problem_.feature_maps() > 0 && (!problem_.options.causal || segments_ > 1);
}

bool Call::sums_keys_first() const {
  const bool by_itself = common_.clusters || (common_.walks == Walks::kStrips && segments_ == 1);
  return shares_states() && !by_itself;
}

bool Call::walks_chunks() const {
  return common_.walks == Walks::kChunks || common_.walks == Walks::kWarpgroups;
}
int64_t Call::state_rows() const { return walks_chunks() ? limits_.value_dim : problem_.head_dim; }
int64_t Call::state_row_length(const Pass& pass) const {
  return walks_chunks() ? limits_.value_dim : pass.channels;
}
int64_t Call::state_size(const Pass& pass) const {
  return pass.maps * state_rows() * (state_row_length(pass) + 1);
}

States Call::scratch_states(const Pass& pass, int64_t entries, Scratch& scratch) const {
  scratch.push_back(empty_tensor({entries * state_size(pass)}, at::kFloat));
  return states_at(scratch.back().data_ptr<float>(), pass, entries);
}

States Call::segment_states(const Pass& pass, Scratch& scratch) const {
  return in_parts(scratch_states(pass, all_parts(), scratch));
}

int Call::parts_of_segment() const {
  const bool in_parts = limits_.sums_in_parts && segments_ > 1 && segments_ <= kSegmentsToSum;
  return in_parts ? sum_parts(pairs(), segments_) : 1;
}

States Call::in_parts(States states) const {
  states.parts = parts_of_segment();
  return states;
}

Pass Call::summed_pass(const Pass& pass) const {
  if (!sums_all_maps()) return pass;
  Pass all = passes_.front();
  all.maps = static_cast<int>(problem_.feature_maps());
  return all;
}

States Call::states_at(float* sums, const Pass& pass, int64_t entries) const {
  const int64_t rows = state_rows(), row_length = state_row_length(pass);
  float* key_sums = sums + entries * pass.maps * rows * row_length;
  // The kernels count maps from the operator's first.
  return {.sums = sums - pass.first_map * rows * row_length,
          .key_sums = key_sums - pass.first_map * rows,
          .maps = pass.maps,
          .rows = rows,
          .row_length = row_length};
}

States Call::tensor_states(const at::Tensor& sums, const at::Tensor& key_sums,
                           const Pass& pass) const {
  return {.sums = sums.data_ptr<float>() + pass.first_channel,
          .key_sums = key_sums.data_ptr<float>(),
          .maps = static_cast<int>(problem_.feature_maps()),
          .rows = sums.size(3),
          .row_length = sums.size(4),
          .source = StateSource::kPair};
}

Call::StateTensors Call::room_for_state(const Kept& kept) const {
  if (state_rows() == problem_.head_dim) return {kept.far_sums, kept.far_key_sums};
  const int64_t batch = problem_.batch, heads = problem_.heads, maps = problem_.feature_maps(),
                rows = state_rows();
  return {empty_tensor({batch, heads, maps, rows, rows}, at::kFloat),
          empty_tensor({batch, heads, maps, rows}, at::kFloat)};
}

void Call::take_state(const Kept& kept, const StateTensors& made) const {
  if (made.sums.is_same(kept.far_sums)) return;
  const int64_t rows = problem_.head_dim, row_length = problem_.value_dim;
  kept.far_sums.copy_(made.sums.narrow(3, 0, rows).narrow(4, 0, row_length));
  kept.far_key_sums.copy_(made.key_sums.narrow(3, 0, rows));
}

void Call::sum_segments(SweepArgs args, const States& states, bool of_queries) const {
  args.made = states, args.segments *= states.parts;
  args.has_near = false, args.halo_before = args.halo_after = 0, args.stages_tiles = false;
  C10_CUDA_CHECK(sum_states(args, of_queries, stream_));
}

StateSource Call::joined_source(Scan scan) const {
  if (segments_ > kSegmentsToSum)
    return scan == Scan::kTotal ? StateSource::kPair : StateSource::kOwn;
  return scan == Scan::kBefore  ? StateSource::kBefore
         : scan == Scan::kAfter ? StateSource::kAfter
                                : StateSource::kAll;
}

States Call::joined(const SweepArgs& args, States states, Scan scan, const Pass& pass,
                    Scratch& scratch) const {
  if (segments_ > kSegmentsToSum) {
    States totals;
    if (scan == Scan::kTotal) totals = scratch_states(pass, pairs(), scratch);
    C10_CUDA_CHECK(scan_states(args, states, scan, totals, stream_));
    if (scan == Scan::kTotal) states = totals;
  }
  states.source = joined_source(scan);
  return states;
}

States Call::key_states(const SweepArgs& args, const States& states, const Pass& pass,
                        Scratch& scratch) const {
  sum_segments(args, states, /*of_queries=*/false);
  return joined(args, states, problem_.options.causal ? Scan::kBefore : Scan::kTotal, pass,
                scratch);
}

bool Call::keeps_starts() const {
  return problem_.options.causal && shares_states() &&
         (passes_.size() == 1 || common_.walks == Walks::kChunks);
}

int64_t Call::starts_size(const Pass& pass) const { return all_parts() * state_size(pass); }

int64_t Call::starts_size() const {
  int64_t size = 0;
  for (const Pass& pass : passes_) size += starts_size(pass);
  return size;
}

States Call::starts_in(const at::Tensor& memory, const Pass& pass) const {
  float* sums = memory.data_ptr<float>();
  if (sums_all_maps()) return in_parts(states_at(sums, summed_pass(pass), all_parts()));
  for (const Pass* before = passes_.data(); before != &pass; ++before) sums += starts_size(*before);
  return in_parts(states_at(sums, pass, all_parts()));
}

bool Call::has_starts(const ForwardResult& saved) const {
  return keeps_starts() && saved.far_key_sums.sizes() == at::IntArrayRef(cut_as_shape()) &&
         saved.far_sums.numel() == starts_size();
}

int64_t Call::chunk_states_size() const {
  return chunk_state_bytes(args_of(passes_[0], /*keys_are_rows=*/false)) /
         static_cast<int64_t>(sizeof(float));
}

at::DimVector Call::chunks_as_shape() const {
  return {0, limits_.chunk, (problem_.length + limits_.chunk - 1) / limits_.chunk, 1, 1};
}

// Hooks for saved tensors may bring them back at any address, but the copy engine wants its own.
bool Call::has_chunk_states(const ForwardResult& saved) const {
  return keeps_chunk_states() && saved.far_key_sums.sizes() == at::IntArrayRef(chunks_as_shape()) &&
         saved.far_sums.numel() == chunk_states_size() &&
         reinterpret_cast<uintptr_t>(saved.far_sums.data_ptr()) % 16 == 0;
}

}  // namespace fmmformer::cuda
