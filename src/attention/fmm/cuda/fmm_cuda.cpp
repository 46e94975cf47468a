// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the sweeps of a call, in their order.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <torch/library.h>

#include <algorithm>

#include "attention/fmm/cuda/call.h"
#include "attention/fmm/cuda/tensor_views.h"

namespace fmmformer {
namespace cuda {

using at::Tensor;

Partial Call::block_partial(const Pass& pass, Tensor& memory) const {
  if (pass.first_of_block && pass.last_of_block) return {};
  if (pass.first_of_block)
    memory =
        empty_tensor({problem_.batch, problem_.length, problem_.heads, pass.channels}, at::kFloat);
  return {memory.data_ptr<float>(), pass.first_of_block, pass.last_of_block};
}

Call::Kept Call::empty_kept(Keep keep) const {
  const int64_t batch = problem_.batch, heads = problem_.heads, length = problem_.length;
  const int64_t maps = problem_.feature_maps();
  const FmmOptions& options = problem_.options;
  Kept kept;
  kept.chunk_states = keep == Keep::kForBackward && keeps_chunk_states();
  kept.starts = keep == Keep::kForBackward && keeps_starts() && !kept.chunk_states;
  kept.state = maps > 0 && (keep == Keep::kState || !options.causal);
  const auto shape_if = [](bool wanted, at::DimVector shape) {
    return wanted ? shape : at::DimVector{0};
  };
  at::DimVector far_shape{0}, far_key_shape{0};
  if (kept.chunk_states) {
    far_shape = {chunk_states_size()}, far_key_shape = chunks_as_shape();
  } else if (kept.starts) {
    far_shape = {starts_size()}, far_key_shape = cut_as_shape();
  } else if (kept.state) {
    far_shape = {batch, heads, maps, problem_.head_dim, problem_.value_dim};
    far_key_shape = {batch, heads, maps, problem_.head_dim};
  }
  // What both sides' gradients of narrow heads need of rows is among the states.
  const bool keeps_rows = !(kept.chunk_states && common_.walks == Walks::kNarrow);
  const bool row_sums = maps > 0 && options.normaliser == Normaliser::kRowSum;
  // A graph of torch.compile takes them for what the schema says: apart.
  const int64_t most_together = keep == Keep::kForBackward ? kSmallCall : 0;
  auto [log_sum_exp, normalisers, far_sums, far_key_sums] =
      empty_tensors({{shape_if(keeps_rows && options.window.has_value(), {batch, heads, length})},
                     {shape_if(keeps_rows && row_sums, {batch, heads, maps, length})},
                     {far_shape},
                     {far_key_shape}},
                    most_together);
  kept.log_sum_exp = log_sum_exp, kept.normalisers = normalisers;
  kept.far_sums = far_sums, kept.far_key_sums = far_key_sums;
  return kept;
}

Tensors5 Call::forward(Keep keep) {
  const Tensor out =
      empty_tensor({problem_.batch, problem_.length, problem_.heads, problem_.value_dim},
                   inputs_.q.scalar_type());
  const Kept kept = empty_kept(keep);
  if (forward_segments_ > 0 && !kept.state) segments_ = forward_segments_, common_.clusters = true;
  StateTensors state;
  if (kept.state) state = room_for_state(kept);
  Tensor partial;
  Scratch scratch;
  States starts;
  for (const Pass& pass : passes_) {
    if (begins_with_sums(pass)) scratch.clear();
    SweepArgs args = args_of(pass, /*keys_are_rows=*/false);
    args.out = view_of(out, pass.first_channel);
    args.log_sum_exp = kept.log_sum_exp.data_ptr<float>(),
    args.normalisers = kept.normalisers.data_ptr<float>();
    if (pass.maps > 0 && sums_keys_first()) {
      if (begins_with_sums(pass)) {
        const Pass summed = summed_pass(pass);
        const States room =
            kept.starts ? starts_in(kept.far_sums, pass) : segment_states(summed, scratch);
        starts = key_states(args_of(summed, /*keys_are_rows=*/false), room, summed, scratch);
      }
      args.start = starts;
    }
    if (pass.maps > 0 && kept.state) args.made = tensor_states(state.sums, state.key_sums, pass);
    if (kept.chunk_states)
      args.chunk_states = static_cast<unsigned char*>(kept.far_sums.data_ptr());
    args.partial_out = block_partial(pass, partial);
    C10_CUDA_CHECK(forward_sweep(args, stream_));
  }
  if (kept.state) take_state(kept, state);
  return {out, kept.log_sum_exp, kept.normalisers, kept.far_sums, kept.far_key_sums};
}

Call::Gradients Call::empty_gradients(bool both_sides) const {
  const int64_t maps = problem_.feature_maps();
  const auto like = [&](const std::optional<Tensor>& weight) {
    return weight ? empty_tensor(weight->sizes(), weight->scalar_type())
                  : empty_tensor({0}, inputs_.q.scalar_type());
  };
  // Each for itself: results of an operator must not share memory, and may live on one by one.
  auto [dq, dk, dv] =
      empty_tensors({gradient_of(inputs_.q), gradient_of(inputs_.k), gradient_of(inputs_.v)},
                    /*most_together=*/0);
  Gradients gradients{.q = dq,
                      .k = dk,
                      .v = dv,
                      .near_weight = like(weights_.near_weight),
                      .far_weight = like(weights_.far_weight)};
  gradients.wants_weights = gradients.near_weight.numel() + gradients.far_weight.numel() > 0;
  const bool has_records = common_.walks == Walks::kNarrow && !both_sides;
  int64_t between = 0;
  if (has_records) {
    between = pairs() * record_floats(common_.length, common_.all_maps);
  } else if (!both_sides) {
    between = (pairs() * (maps + 1) * problem_.length + 3) / 4 * 4;  // the sums behind it: aligned
  }
  const int64_t sums =
      gradients.wants_weights ? all_segments() * (maps + 1) * problem_.value_dim : 0;
  gradients.between_sweeps = empty_tensor({between + sums}, at::kFloat);
  float* memory = gradients.between_sweeps.data_ptr<float>();
  if (between > 0) (has_records ? gradients.records : gradients.row_dots) = memory;
  if (sums > 0) gradients.weight_sums = memory + between;
  // Without a near field nothing writes its row.
  if (sums > 0 && !problem_.options.window) gradients.between_sweeps.slice(0, between).zero_();
  if (passes_.size() > 1) {
    gradients.partial_q = empty_tensor(
        {problem_.batch, problem_.length, problem_.heads, problem_.head_dim}, at::kFloat);
    gradients.partial_k = at::empty_like(gradients.partial_q);
  }
  return gradients;
}

SweepArgs Call::backward_args(const Pass& pass, bool keys_are_rows, const Tensor& grad_out,
                              const ForwardResult& saved, const Gradients& gradients) const {
  SweepArgs args = args_of(pass, keys_are_rows);
  args.grad_out = view_of(grad_out, pass.first_channel);
  args.dq = view_of(gradients.q), args.dk = view_of(gradients.k),
  args.dv = view_of(gradients.v, pass.first_channel);
  args.log_sum_exp = saved.log_sum_exp.data_ptr<float>();
  args.normalisers = saved.normalisers.data_ptr<float>();
  args.row_dots = gradients.row_dots, args.records = gradients.records;
  args.weight_sums = gradients.weight_sums;
  args.near_gradient = gradient_view(weights_.near_weight, gradients.near_weight);
  args.far_gradient = gradient_view(weights_.far_weight, gradients.far_weight);
  if (gradients.partial_q.defined()) {
    args.partial_dq = {gradients.partial_q.data_ptr<float>(), pass.first, pass.last};
    args.partial_dk = {gradients.partial_k.data_ptr<float>(), pass.first, pass.last};
  }
  return args;
}

// Pieces fill gaps; many pairs leave none worth a state in memory for each.
void Call::plan_joint_backward(SweepArgs& args, const Pass& pass, Scratch& scratch) const {
  const int64_t chunks = (problem_.length + limits_.chunk - 1) / limits_.chunk;
  const bool in_pieces = pairs() <= int64_t{2} * kMultiprocessors;
  args.value_pieces = in_pieces ? std::min<int64_t>(limits_.value_pieces, chunks) : 1;
  if (args.value_pieces > 1) args.made = scratch_states(pass, pairs(), scratch);
  scratch.push_back(empty_tensor({2, pairs()}, at::kInt));
  args.progress = scratch.back().data_ptr<int>();
}

Tensors5 Call::backward(const Tensor& grad_out, const ForwardResult& saved) {
  const bool causal = problem_.options.causal;
  Tensor grad = grad_out.stride(3) == 1 || grad_out.size(3) == 1 ? grad_out : grad_out.contiguous();
  if (common_.walks != Walks::kRoles && !view_of(grad).walkable())
    grad = grad.clone(at::MemoryFormat::Contiguous);
  const bool both_sides = has_chunk_states(saved);
  if (both_sides) segments_ = gradient_segments_;
  Gradients gradients = empty_gradients(both_sides);
  SweepArgs args;
  Scratch scratch;
  States starts, query_states;
  const auto args_for = [&](const Pass& pass, bool keys_are_rows) {
    return backward_args(pass, keys_are_rows, grad, saved, gradients);
  };
  const auto sweep_queries = [&](const Pass& pass) {
    const bool far = pass.maps > 0, far_in_segments = far && causal && segments_ > 1;
    args = args_for(pass, /*keys_are_rows=*/false);
    if (far_in_segments && has_starts(saved)) {
      args.start = starts_in(saved.far_sums, pass);
      args.start.source = joined_source(Scan::kBefore);
    } else if (far_in_segments) {
      if (begins_with_sums(pass)) {
        const Pass summed = summed_pass(pass);
        starts = key_states(args_for(summed, /*keys_are_rows=*/false),
                            segment_states(summed, scratch), summed, scratch);
      }
      args.start = starts;
    } else if (far && !causal) {
      args.start = tensor_states(saved.far_sums, saved.far_key_sums, pass);
      if (!common_.clusters) args.made = query_states = segment_states(pass, scratch);
    }
    if (is_joint_backward()) plan_joint_backward(args, pass, scratch);
    C10_CUDA_CHECK(query_sweep(args, stream_));
  };
  const auto sweep_keys = [&](const Pass& pass) {
    const bool far = pass.maps > 0, far_in_segments = far && causal && segments_ > 1;
    args = args_for(pass, /*keys_are_rows=*/true);
    if (far && shares_states() && begins_with_sums(pass)) {
      const Pass summed = summed_pass(pass);
      const SweepArgs of_sums = args_for(summed, /*keys_are_rows=*/true);
      if (far_in_segments) {
        query_states = segment_states(summed, scratch);
        sum_segments(of_sums, query_states, /*of_queries=*/true);
      }
      query_states =
          joined(of_sums, query_states, causal ? Scan::kAfter : Scan::kTotal, summed, scratch);
    }
    if (far && shares_states()) args.start = query_states;
    args.partial_dv = block_partial(pass, gradients.partial_v);
    C10_CUDA_CHECK(key_sweep(args, stream_));
  };
  if (both_sides) {
    args = args_for(passes_[0], /*keys_are_rows=*/false);
    args.chunk_states = static_cast<unsigned char*>(saved.far_sums.data_ptr());
    C10_CUDA_CHECK(gradient_sweep(args, stream_));
  } else if (sums_all_maps()) {
    for (const Pass& pass : passes_) sweep_queries(pass);
    for (const Pass& pass : passes_) sweep_keys(pass);
  } else {
    for (const Pass& pass : passes_) {
      scratch.clear();
      sweep_queries(pass);
      if (!is_joint_backward() && !common_.clusters) sweep_keys(pass);  // else that was all
    }
  }
  // An empty batch has no sums, but its weights have gradients: zeros.
  if (gradients.wants_weights) C10_CUDA_CHECK(reduce_weight_sums(args, stream_));
  return {gradients.q, gradients.k, gradients.v, gradients.near_weight, gradients.far_weight};
}

}  // namespace cuda

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// With contiguous rows, as Call::is_better_in_fp32 takes them to be: the call in fp32 then has the
/// kernels that it was asked about.
AttentionInputs in_fp32(const AttentionInputs& inputs) {
  const auto converted = [](const Tensor& rows) {
    return rows.to(at::kFloat, /*non_blocking=*/false, /*copy=*/false,
                   at::MemoryFormat::Contiguous);
  };
  return {.q = converted(inputs.q),
          .k = converted(inputs.k),
          .v = converted(inputs.v),
          .token_mask = inputs.token_mask,
          .dropout_seed = inputs.dropout_seed};
}

cuda::Tensors5 forward_cuda(const Tensor& q, const Tensor& k, const Tensor& v,
                            const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                            const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                            at::IntArrayRef codes, at::ArrayRef<double> scales, int64_t keep) {
  const AttentionInputs inputs{q, k, v, token_mask, dropout_seed};
  const BlendWeights weights{near_weight, far_weight};
  const Problem problem =
      checked_problem("fmm_attention", inputs, weights, unpack_options(codes, scales));
  cuda::Call call(problem, inputs, weights);
  if (!call.is_better_in_fp32()) return call.forward(static_cast<Keep>(keep));
  const AttentionInputs wide = in_fp32(inputs);
  auto made = cuda::Call(problem, wide, weights).forward(static_cast<Keep>(keep));
  auto& out = std::get<0>(made);
  out = out.to(q.scalar_type());
  return made;
}

cuda::Tensors5 backward_cuda(const Tensor& grad_out, const Tensor& q, const Tensor& k,
                             const Tensor& v, const OptionalTensor& near_weight,
                             const OptionalTensor& far_weight, const OptionalTensor& token_mask,
                             const OptionalTensor& dropout_seed, const Tensor& log_sum_exp,
                             const Tensor& normalisers, const Tensor& far_sums,
                             const Tensor& far_key_sums, at::IntArrayRef codes,
                             at::ArrayRef<double> scales) {
  const AttentionInputs inputs{q, k, v, token_mask, dropout_seed};
  const BlendWeights weights{near_weight, far_weight};
  const Problem problem =
      checked_problem("fmm_attention", inputs, weights, unpack_options(codes, scales));
  const ForwardResult saved{{}, log_sum_exp, normalisers, far_sums, far_key_sums};
  cuda::Call call(problem, inputs, weights);
  if (!call.is_better_in_fp32()) return call.backward(grad_out, saved);
  const AttentionInputs wide = in_fp32(inputs);
  auto [dq, dk, dv, dnear, dfar] =
      cuda::Call(problem, wide, weights).backward(grad_out.to(at::kFloat), saved);
  const auto narrowed = [](const Tensor& input, const Tensor& gradient) {
    return empty_gradient_of(input).copy_(gradient);
  };
  return {narrowed(q, dq), narrowed(k, dk), narrowed(v, dv), dnear, dfar};
}

TORCH_LIBRARY_IMPL(fmmformer, CUDA, m) {
  m.impl("fmm_attention_forward", &forward_cuda);
  m.impl("fmm_attention_backward", &backward_cuda);
}

}  // namespace
}  // namespace fmmformer
