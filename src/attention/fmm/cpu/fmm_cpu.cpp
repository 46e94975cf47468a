// SPDX-License-Identifier: Apache-2.0
// The CPU backend: tensors to sweeps, a task after the other (tasks.h).
//
// A (batch entry, head) is one task, or several segments of it when there are few of them. How it
// is cut depends on the shape alone, never on the number of threads: the sums are then the same
// bits on every machine. Segments of a causal far field need the sum of the keys before them first,
// which costs a pass of its own; a two-sided one needs that pass anyway.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cpu/huge_pages.h"
#include "attention/cpu/parallel.h"
#include "attention/cpu/tensor_views.h"
#include "attention/fmm/cpu/blend_weights.h"
#include "attention/fmm/cpu/sweep.h"
#include "attention/fmm/cpu/tasks.h"
#include "attention/fmm/fmm_schema.h"
#include "attention/problem.h"

namespace fmmformer {
namespace {

using at::Tensor;
using cpu::Arena, cpu::Cut, cpu::FarState, cpu::FarStates, cpu::OwnSums, cpu::Segment,
    cpu::SweepArgs, cpu::WeightSums;
using cpu::on_huge_pages, cpu::own_state, cpu::pack_state, cpu::shares_states, cpu::spread_weight,
    cpu::unpack_state, cpu::view_of, cpu::weight_gradient;
using OptionalTensor = std::optional<Tensor>;
using Tensors5 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// The tensors that SweepArgs points into but that the caller did not give in this form.
template <typename Real>
struct Prepared {
  Tensor mask;
  std::vector<Real> near_weight, far_weight;
};

template <typename Real>
SweepArgs<Real> sweep_args(const Problem& problem, const AttentionInputs& inputs,
                           const BlendWeights& weights, Prepared<Real>& prepared) {
  const FmmOptions& options = problem.options;
  prepared.near_weight =
      spread_weight<Real>(weights.near_weight, 1, problem.heads, problem.value_dim);
  prepared.far_weight = spread_weight<Real>(weights.far_weight, problem.feature_maps(),
                                            problem.heads, problem.value_dim);
  SweepArgs<Real> args;
  args.element = cpu::element_of(inputs.q.scalar_type());
  args.batch = problem.batch, args.length = problem.length, args.heads = problem.heads;
  args.head_dim = problem.head_dim, args.value_dim = problem.value_dim;
  args.q = view_of(inputs.q), args.k = view_of(inputs.k), args.v = view_of(inputs.v);
  if (inputs.token_mask) {
    prepared.mask = inputs.token_mask->contiguous();
    args.token_mask = prepared.mask.template const_data_ptr<bool>();
  }
  if (options.window) {
    args.has_near = true;
    args.left = options.window->left, args.right = options.window->right;
    args.near_scale = static_cast<Real>(*options.near_scale);
    args.near_dropout = options.near_dropout;
    if (options.near_dropout > 0) {
      args.dropout_seed = static_cast<uint64_t>(*inputs.dropout_seed->const_data_ptr<int64_t>());
    }
  }
  args.causal = options.causal;
  args.maps = static_cast<int>(problem.feature_maps());
  std::copy(options.feature_maps.begin(), options.feature_maps.end(), args.feature_maps);
  args.unit_features = options.unit_features;
  args.normaliser = options.normaliser;
  args.eps = static_cast<Real>(options.eps);
  args.far_scale = static_cast<Real>(options.far_scale);
  args.uniform_weights = problem.value_dim == 1 || (is_uniform_over_channels(weights.near_weight) &&
                                                    is_uniform_over_channels(weights.far_weight));
  args.near_weight = prepared.near_weight.data();
  args.far_weight = prepared.far_weight.data();
  return args;
}

// What each segment's sweep over the queries starts from: the keys before it, or all keys.
template <typename Real>
void prepare_key_states(const SweepArgs<Real>& args, const Cut& cut, FarStates<Real>& states) {
  if (!shares_states(args, cut)) return;
  cpu::parallel_tasks(cut.tasks(), cut.cost(args), [&](int64_t task, Arena& arena) {
    const Segment segment = cut.segment(task);
    // Nobody needs the sum over a causal pair's last segment.
    if (!args.causal || segment.end < cut.length) sum_keys(args, segment, arena, states[task]);
  });
  args.causal ? states.scan_exclusive(cut, /*from_the_end=*/false) : states.share_totals(cut);
}

template <typename Real>
Tensors5 forward(const Problem& problem, const AttentionInputs& inputs, const BlendWeights& weights,
                 bool keep_state) {
  const at::TensorOptions like_q = inputs.q.options();
  const at::TensorOptions sums = like_q.dtype(c10::CppTypeToScalarType<Real>::value);
  const int64_t batch = problem.batch, heads = problem.heads, length = problem.length,
                maps = problem.feature_maps();
  const auto sum_tensor = [&](bool kept, at::IntArrayRef shape) {
    return at::empty(kept ? shape : at::IntArrayRef{0}, sums);
  };

  Prepared<Real> prepared;
  SweepArgs<Real> args = sweep_args<Real>(problem, inputs, weights, prepared);
  const bool state_kept = maps > 0 && (keep_state || !args.causal);
  Tensor out = on_huge_pages(at::empty({batch, length, heads, problem.value_dim}, like_q));
  Tensor log_sum_exp = sum_tensor(args.has_near, {batch, heads, length});
  Tensor normalisers =
      sum_tensor(maps > 0 && args.normaliser == Normaliser::kRowSum, {batch, heads, maps, length});
  Tensor far_sums =
      sum_tensor(state_kept, {batch, heads, maps, problem.head_dim, problem.value_dim});
  Tensor far_key_sums = sum_tensor(state_kept, {batch, heads, maps, problem.head_dim});
  args.out = view_of(out);
  args.log_sum_exp = log_sum_exp.template data_ptr<Real>();
  args.normalisers = normalisers.template data_ptr<Real>();

  const Cut cut(problem);
  FarStates<Real> states =
      shares_states(args, cut) ? FarStates<Real>(args, cut.tasks()) : FarStates<Real>();
  prepare_key_states(args, cut, states);
  cpu::parallel_tasks(cut.tasks(), cut.cost(args), [&](int64_t task, Arena& arena) {
    const Segment segment = cut.segment(task);
    const bool shared = shares_states(args, cut);
    const FarState<Real> state = shared ? states[task] : own_state(args, OwnSums::kKeys);
    if (!shared && maps > 0 && !args.causal) sum_keys(args, segment, arena, state);
    forward_sweep(args, segment, arena, state);
    // Two-sided every segment holds the total; causal the last one ends with it.
    if (!state_kept || segment.end < length) return;
    const int64_t pair = segment.batch * heads + segment.head, rows = maps * problem.head_dim;
    unpack_state(args, state, far_sums.template data_ptr<Real>() + pair * rows * problem.value_dim,
                 far_key_sums.template data_ptr<Real>() + pair * rows);
  });
  return {out, log_sum_exp, normalisers, far_sums, far_key_sums};
}

// A task has the whole sequence to itself, and one sweep makes all its gradients.
template <typename Real>
bool goes_back_in_one_sweep(const SweepArgs<Real>& args, const Cut& cut) {
  return cut.segments == 1 && cpu::fits_backward_sweep(args);
}

// The sweeps of every task. The gradients of the weights by task go to weight_sums where these are
// uniform, else to channel_sums.
template <typename Real>
void backward_sweeps(const SweepArgs<Real>& args, const Cut& cut, const ForwardResult& saved,
                     WeightSums& weight_sums, WeightSums& channel_sums) {
  const int64_t maps = args.maps;
  const auto queries = [&](int64_t task, Arena& arena, FarState<Real> keys, FarState<Real> sums) {
    query_sweep(args, cut.segment(task), arena, keys, sums, weight_sums.of(task));
  };
  const auto keys = [&](int64_t task, Arena& arena, FarState<Real> sums) {
    key_sweep(args, cut.segment(task), arena, sums, channel_sums.of(task));
  };
  const auto restore_total = [&](int64_t task, FarState<Real> state) {
    const int64_t pair = task / cut.segments, rows = maps * args.head_dim;
    pack_state<Real>(args,
                     saved.far_sums.template const_data_ptr<Real>() + pair * rows * args.value_dim,
                     saved.far_key_sums.template const_data_ptr<Real>() + pair * rows, state);
  };
  if (goes_back_in_one_sweep(args, cut)) {
    cpu::parallel_tasks(cut.tasks(), cut.cost(args), [&](int64_t task, Arena& arena) {
      backward_sweep(args, cut.segment(task), arena, own_state(args, OwnSums::kQueries),
                     weight_sums.of(task), channel_sums.of(task));
    });
  } else if (!shares_states(args, cut)) {
    cpu::parallel_tasks(cut.tasks(), cut.cost(args), [&](int64_t task, Arena& arena) {
      const FarState<Real> key_sums = own_state(args, OwnSums::kKeys);
      const FarState<Real> query_sums = own_state(args, OwnSums::kQueries);
      const bool two_sided_far = maps > 0 && !args.causal;
      if (two_sided_far) restore_total(task, key_sums);
      queries(task, arena, key_sums, two_sided_far ? query_sums : FarState<Real>{});
      keys(task, arena, query_sums);
    });
  } else {
    FarStates<Real> key_sums(args, cut.tasks()), query_sums(args, cut.tasks());
    if (args.causal) prepare_key_states(args, cut, key_sums);
    // Later segments' queries reach earlier keys (two-sided: all do), so their sums are gathered on
    // the way.
    cpu::parallel_tasks(cut.tasks(), cut.cost(args), [&](int64_t task, Arena& arena) {
      if (!args.causal) restore_total(task, key_sums[task]);
      queries(task, arena, key_sums[task], query_sums[task]);
    });
    args.causal ? query_sums.scan_exclusive(cut, /*from_the_end=*/true)
                : query_sums.share_totals(cut);
    cpu::parallel_tasks(cut.tasks(), cut.cost(args),
                        [&](int64_t task, Arena& arena) { keys(task, arena, query_sums[task]); });
  }
}

template <typename Real>
Tensors5 backward(const Problem& problem, const Tensor& grad_out, const AttentionInputs& inputs,
                  const BlendWeights& weights, const ForwardResult& saved) {
  const int64_t maps = problem.feature_maps();
  Prepared<Real> prepared;
  SweepArgs<Real> args = sweep_args<Real>(problem, inputs, weights, prepared);
  const Tensor grad =
      grad_out.stride(3) == 1 || grad_out.size(3) == 1 ? grad_out : grad_out.contiguous();
  Tensor dq = on_huge_pages(empty_gradient_of(inputs.q)),
         dk = on_huge_pages(empty_gradient_of(inputs.k)),
         dv = on_huge_pages(empty_gradient_of(inputs.v));
  const at::TensorOptions sums = inputs.q.options().dtype(c10::CppTypeToScalarType<Real>::value);
  Tensor row_dots = at::empty({problem.batch, problem.heads, maps, problem.length}, sums);
  // Sums that grow from chunk to chunk need Real: 16-bit gradients get memory of their own for it.
  const Cut cut(problem);
  const bool in_place =
      !args.has_near || dk.scalar_type() == sums.dtype() || goes_back_in_one_sweep(args, cut);
  Tensor near_dk = in_place ? dk : on_huge_pages(at::empty(dk.sizes(), sums));
  Tensor near_dv = in_place ? dv : on_huge_pages(at::empty(dv.sizes(), sums));
  args.grad_out = view_of(grad), args.dq = view_of(dq), args.dk = view_of(dk),
  args.dv = view_of(dv);
  args.log_sum_exp = saved.log_sum_exp.template data_ptr<Real>();
  args.normalisers = saved.normalisers.template data_ptr<Real>();
  args.near_dk = view_of(near_dk), args.near_dv = view_of(near_dv);
  args.row_dots = row_dots.template data_ptr<Real>();

  WeightSums weight_sums(cut.tasks(), maps, 1, 1);
  WeightSums channel_sums(cut.tasks(), maps, problem.value_dim, cpu::padded(problem.value_dim));
  backward_sweeps(args, cut, saved, weight_sums, channel_sums);

  const WeightSums& by_task = args.uniform_weights ? weight_sums : channel_sums;
  const auto gradient_of = [&](const OptionalTensor& weight, int64_t first_map, int64_t count) {
    return weight ? weight_gradient(by_task, cut, first_map, count, *weight)
                  : at::empty({0}, inputs.q.options());
  };
  return {dq, dk, dv, gradient_of(weights.near_weight, maps, 1),
          gradient_of(weights.far_weight, 0, maps)};
}

Tensors5 forward_cpu(const Tensor& q, const Tensor& k, const Tensor& v,
                     const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                     const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                     at::IntArrayRef codes, at::ArrayRef<double> scales, int64_t keep) {
  const AttentionInputs inputs{q, k, v, token_mask, dropout_seed};
  const BlendWeights weights{near_weight, far_weight};
  const Problem problem =
      checked_problem("fmm_attention", inputs, weights, unpack_options(codes, scales));
  const bool keep_state = static_cast<Keep>(keep) == Keep::kState;
  return q.scalar_type() == at::kDouble ? forward<double>(problem, inputs, weights, keep_state)
                                        : forward<float>(problem, inputs, weights, keep_state);
}

Tensors5 backward_cpu(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v,
                      const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                      const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                      const Tensor& log_sum_exp, const Tensor& normalisers, const Tensor& far_sums,
                      const Tensor& far_key_sums, at::IntArrayRef codes,
                      at::ArrayRef<double> scales) {
  const AttentionInputs inputs{q, k, v, token_mask, dropout_seed};
  const BlendWeights weights{near_weight, far_weight};
  const Problem problem =
      checked_problem("fmm_attention", inputs, weights, unpack_options(codes, scales));
  const ForwardResult saved{{}, log_sum_exp, normalisers, far_sums, far_key_sums};
  return q.scalar_type() == at::kDouble
             ? backward<double>(problem, grad_out, inputs, weights, saved)
             : backward<float>(problem, grad_out, inputs, weights, saved);
}

TORCH_LIBRARY_IMPL(fmmformer, CPU, m) {
  m.impl("fmm_attention_forward", &forward_cpu);
  m.impl("fmm_attention_backward", &backward_cpu);
}

}  // namespace
}  // namespace fmmformer
