// SPDX-License-Identifier: Apache-2.0
// A call of the operator on a GPU: how it is cut into segments and passes (call_plan.cpp), where
// the states of segments lie (call_states.cpp), and the sweeps in their order (fmm_cuda.cpp).
//
// Everything runs on the current stream and device, allocates from torch's allocator alone and
// never waits for the GPU, so that a CUDA graph can hold it. How the work is cut depends on the
// shape alone: the sums are the same bits on every run.
//
// Small calls take the GPU less time than the host: what is asked of torch here counts.
#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <tuple>
#include <vector>

#include "attention/fmm/cuda/empty_tensors.h"
#include "attention/fmm/cuda/sweep.h"
#include "attention/fmm/fmm_schema.h"
#include "attention/problem.h"

namespace fmmformer::cuda {

using Tensors5 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// One pass over the sequence: a block of v's channels, some feature maps, perhaps the near field.
struct Pass {
  int64_t first_channel, channels;
  int first_map, maps;
  bool near;
  bool first_of_block, last_of_block;  // among the passes over the same channels
  bool first, last;
};

class Call {
 public:
  /// The arguments outlive the call.
  Call(const Problem& problem, const AttentionInputs& inputs, const BlendWeights& weights);

  /// Whether fp32 has better kernels for the call, once its rows lie one behind the other: in fp16,
  /// which has none of its own but those that take every call; and in bf16 where a block of this
  /// GPU has no room for them.
  bool is_better_in_fp32() const { return better_in_fp32_; }

  Tensors5 forward(Keep keep);
  Tensors5 backward(const at::Tensor& grad_out, const ForwardResult& saved);

 private:
  /// Memory of passes' sums: alive until all of a pass is launched.
  using Scratch = std::vector<at::Tensor>;

  // call_plan.cpp ---------------------------------------------------------------------------------
  Walks suitable_walks(const SweepArgs& everything, const Gpu& gpu) const;
  bool fp32_has_better_walks(const Gpu& gpu) const;
  bool lacks_room_for_roles(const Gpu& gpu) const;
  void cut(const Gpu& gpu);
  void plan_passes(const Gpu& gpu);
  bool near_goes_alone(const Gpu& gpu) const;
  bool stages_tiles() const;  // whether the band reaches beyond the rows kept beside a chunk
  /// What all sweeps of the call have in common.
  SweepArgs common_args() const;
  /// ... and those of a pass.
  SweepArgs args_of(const Pass& pass, bool keys_are_rows) const;
  Pass everything_at_once() const;

  // call_states.cpp -------------------------------------------------------------------------------
  int64_t pairs() const { return problem_.batch * problem_.heads; }
  int64_t all_segments() const { return pairs() * segments_; }
  /// Two-sided far fields need sums over all segments, causal ones over those before.
  bool shares_states() const;
  /// A block that has all of a sequence's strips, or a cluster, makes the sums by itself.
  bool sums_keys_first() const;
  /// A state's rows in memory, and how long they are: the head's, or as many as kernels that walk
  /// chunks have room for, of D as of Dv (fewer_channels.cuh). And all numbers of a pass's entry.
  bool walks_chunks() const;
  int64_t state_rows() const;
  int64_t state_row_length(const Pass& pass) const;
  int64_t state_size(const Pass& pass) const;
  /// Room for the states of so many entries in one pass, as States whose maps count from the pass's
  /// first.
  States scratch_states(const Pass& pass, int64_t entries, Scratch& scratch) const;
  /// ... of all segments, which may have several, of parts of them (cuda::sum_parts).
  States segment_states(const Pass& pass, Scratch& scratch) const;
  int parts_of_segment() const;
  int64_t all_parts() const { return all_segments() * parts_of_segment(); }
  States in_parts(States states) const;
  /// Whether segments are summed up for all passes at once.
  bool sums_all_maps() const { return limits_.sums_all_maps && passes_.size() > 1; }
  /// What is summed up before the sweeps of a pass: its maps, or before the first pass all of them.
  bool begins_with_sums(const Pass& pass) const { return pass.first || !sums_all_maps(); }
  Pass summed_pass(const Pass& pass) const;
  States states_at(float* sums, const Pass& pass, int64_t entries) const;
  States tensor_states(const at::Tensor& sums, const at::Tensor& key_sums, const Pass& pass) const;
  /// Sums over the keys of every segment, or the queries; `states`: room for them.
  void sum_segments(SweepArgs args, const States& states, bool of_queries) const;
  /// How a segment's sweep finds its start in what `joined` returns.
  StateSource joined_source(Scan scan) const;
  /// The states that the segments' sweeps begin with, from the states of every segment.
  States joined(const SweepArgs& args, States states, Scan scan, const Pass& pass,
                Scratch& scratch) const;
  /// What segments begin with, from their keys.
  States key_states(const SweepArgs& args, const States& states, const Pass& pass,
                    Scratch& scratch) const;

  /// Whether forward can keep what its segments begin with, for the query sweep to begin with too.
  /// Several passes of chunks are one a map, over all channels; others might keep more than they
  /// save.
  bool keeps_starts() const;
  /// Numbers that are kept for one pass, and for all.
  int64_t starts_size(const Pass& pass) const;
  int64_t starts_size() const;
  /// A pass's part of what is kept, which lies pass by pass.
  States starts_in(const at::Tensor& memory, const Pass& pass) const;
  /// They are in far_sums; far_key_sums is empty, and its shape says where segments begin: backward
  /// may cut the sequence otherwise, since strides need not survive autograd's hooks for saved
  /// tensors.
  at::DimVector cut_as_shape() const { return {0, segments_, limits_.chunk, parts_of_segment()}; }
  bool has_starts(const ForwardResult& saved) const;
  /// Whether forward can leave something for gradients of both sides in one sweep: the states
  /// before all chunks (and what dropout leaves of the band), the tickets that blocks draw, or
  /// both. It is in far_sums, and far_key_sums' shape, of one dimension more than cut_as_shape()
  /// has, says so.
  bool keeps_chunk_states() const { return gradient_segments_ > 0; }
  int64_t chunk_states_size() const;
  at::DimVector chunks_as_shape() const;
  bool has_chunk_states(const ForwardResult& saved) const;

  // fmm_cuda.cpp ----------------------------------------------------------------------------------
  /// What forward makes for backward beside the output; far_sums and far_key_sums as `keep` says.
  struct Kept {
    at::Tensor log_sum_exp, normalisers, far_sums, far_key_sums;
    bool state = false, starts = false, chunk_states = false;  // which of them
  };
  Kept empty_kept(Keep keep) const;
  /// Where kernels write the state that is kept; and what they wrote becomes what is kept.
  struct StateTensors {
    at::Tensor sums, key_sums;
  };
  StateTensors room_for_state(const Kept& kept) const;
  void take_state(const Kept& kept, const StateTensors& made) const;
  /// What backward returns, and what its sweeps hand on.
  struct Gradients {
    at::Tensor q, k, v, near_weight, far_weight;
    at::Tensor between_sweeps;  // row_dots or records, and weight_sums
    float *row_dots = nullptr, *records = nullptr, *weight_sums = nullptr;
    bool wants_weights = false;
    at::Tensor partial_q, partial_k, partial_v;  // of several passes
  };
  Gradients empty_gradients(bool both_sides) const;
  SweepArgs backward_args(const Pass& pass, bool keys_are_rows, const at::Tensor& grad_out,
                          const ForwardResult& saved, const Gradients& gradients) const;
  /// The sums of the passes over one block of v's channels; `memory` outlives them.
  Partial block_partial(const Pass& pass, at::Tensor& memory) const;
  /// Whether a query sweep is all of backward.
  bool is_joint_backward() const { return limits_.value_pieces > 0 && segments_ == 1; }
  void plan_joint_backward(SweepArgs& args, const Pass& pass, Scratch& scratch) const;

  const Problem& problem_;
  const AttentionInputs& inputs_;
  const BlendWeights& weights_;
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
  bool precise_;
  bool better_in_fp32_ = false;
  at::Tensor mask_;
  SweepArgs common_;
  PassLimits limits_;
  int64_t segments_ = 1;
  int64_t gradient_segments_ = 0;  // of cuda::gradient_sweep; 0: it does not serve the call
  int forward_segments_ = 0;  // of a forward sweep that makes their starts itself; 0: none does
  std::vector<Pass> passes_;
};

}  // namespace fmmformer::cuda
