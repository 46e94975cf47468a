// SPDX-License-Identifier: Apache-2.0
// The CPU backend: tensors to sweeps. A task is one (batch entry, head): its states depend on each
// other from first to last. How the work is cut depends on the shape alone, never on the number of
// threads: the sums are then the same bits on every machine.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

#include "attention/cpu/parallel.h"
#include "attention/cpu/tensor_views.h"
#include "attention/fast_weight/cpu/sweep.h"
#include "attention/fast_weight/fast_weight_problem.h"
#include "attention/fast_weight/fast_weight_schema.h"
#include "attention/problem.h"

namespace fmmformer {
namespace {

using at::Tensor;
using cpu::Arena, cpu::Segment, cpu::view_of;
using fast_weight::kSegment, fast_weight::State, fast_weight::SweepArgs;
using OptionalTensor = std::optional<Tensor>;
using Tensors4 = std::tuple<Tensor, Tensor, Tensor, Tensor>;

static_assert(kSegment == kTokensBetweenStates);

// The tensors that SweepArgs points into but that the caller did not give in this form.
struct Prepared {
  Tensor mask, beta;
};

template <typename Real>
SweepArgs<Real> sweep_args(const FastWeightProblem& problem, const FastWeightInputs& inputs,
                           Prepared& prepared) {
  const FastWeightOptions& options = problem.options;
  SweepArgs<Real> args;
  args.element = cpu::element_of(inputs.q.scalar_type());
  args.batch = problem.batch, args.length = problem.length, args.heads = problem.heads;
  args.head_dim = problem.head_dim, args.value_dim = problem.value_dim;
  args.q = view_of(inputs.q), args.k = view_of(inputs.k), args.v = view_of(inputs.v);
  prepared.beta =
      inputs.beta.to(c10::CppTypeToScalarType<Real>::value).transpose(1, 2).contiguous();
  args.beta = prepared.beta.template const_data_ptr<Real>();
  if (inputs.token_mask) {
    prepared.mask = inputs.token_mask->contiguous();
    args.token_mask = prepared.mask.template const_data_ptr<bool>();
  }
  args.maps = 1;
  args.feature_maps[0] = options.feature_map;
  args.unit_features = options.unit_features;
  args.normaliser = options.normaliser;
  args.eps = static_cast<Real>(options.eps);
  args.far_scale = static_cast<Real>(options.far_scale);
  return args;
}

/// Every (batch entry, head) in segments, one after the other.
struct Cut {
  int64_t heads, length, segments;

  explicit Cut(const FastWeightProblem& problem)
      : heads(problem.heads),
        length(problem.length),
        segments((problem.length + kSegment - 1) / kSegment) {}
  Segment segment(int64_t pair, int64_t index) const {
    return {pair / heads, pair % heads, index * kSegment, std::min((index + 1) * kSegment, length)};
  }
};

/// Of one task, in multiply-adds; backward is about three times that.
int64_t cost(const FastWeightProblem& problem) {
  return problem.length * problem.head_dim * problem.value_dim * 3;
}

// A task's state is its own: one per thread. `number` tells apart those that a task needs at once.
template <typename Real>
State<Real> fresh_state(const SweepArgs<Real>& args, int number) {
  thread_local Arena memories[2];
  Arena& memory = memories[number];
  memory.reset();
  Real* start = memory.take_zeros<Real>(fast_weight::state_size(args));
  return {start, start + cpu::padded(args.head_dim) * cpu::padded(args.value_dim)};
}

/// The states that forward keeps, as tensors and in the sweeps' padded form.
template <typename Real>
class KeptStates {
 public:
  KeptStates(const SweepArgs<Real>& args, const Tensor& memories, const Tensor& key_sums)
      : args_(args),
        memories_(memories.template data_ptr<Real>()),
        key_sums_(key_sums.template data_ptr<Real>()) {}

  void put(int64_t index, State<Real> state) const {
    const auto [memory, key_sums] = at(index);
    for (int64_t c = 0; c < args_.head_dim; ++c) {
      std::copy_n(state.memory + c * cpu::padded(args_.value_dim), args_.value_dim,
                  memory + c * args_.value_dim);
    }
    std::copy_n(state.key_sums, args_.head_dim, key_sums);
  }
  void get(int64_t index, State<Real> state) const {
    const auto [memory, key_sums] = at(index);
    for (int64_t c = 0; c < args_.head_dim; ++c) {
      std::copy_n(memory + c * args_.value_dim, args_.value_dim,
                  state.memory + c * cpu::padded(args_.value_dim));
    }
    std::copy_n(key_sums, args_.head_dim, state.key_sums);
  }

 private:
  State<Real> at(int64_t index) const {
    return {memories_ + index * args_.head_dim * args_.value_dim,
            key_sums_ + index * args_.head_dim};
  }
  const SweepArgs<Real>& args_;
  Real *memories_, *key_sums_;
};

template <typename Real>
Tensors4 forward(const FastWeightProblem& problem, const FastWeightInputs& inputs,
                 bool keep_states) {
  Prepared prepared;
  SweepArgs<Real> args = sweep_args<Real>(problem, inputs, prepared);
  const Cut cut(problem);
  const int64_t pairs = problem.batch * problem.heads, states = pairs * cut.segments;
  const at::TensorOptions sums = inputs.q.options().dtype(c10::CppTypeToScalarType<Real>::value);
  Tensor out = at::empty({problem.batch, problem.length, problem.heads, problem.value_dim},
                         inputs.q.options());
  Tensor memories = keep_states ? at::empty({states, problem.head_dim, problem.value_dim}, sums)
                                : at::empty({0}, sums);
  Tensor key_sums =
      keep_states ? at::empty({states, problem.head_dim}, sums) : at::empty({0}, sums);
  args.out = view_of(out);
  const KeptStates<Real> kept(args, memories, key_sums);
  cpu::parallel_tasks(pairs, cost(problem), [&](int64_t pair, Arena& arena) {
    const State<Real> state = fresh_state(args, 0);
    for (int64_t s = 0; s < cut.segments; ++s) {
      forward_sweep(args, cut.segment(pair, s), arena, state);
      if (keep_states) kept.put(pair * cut.segments + s, state);
    }
  });
  return {out, memories, key_sums, at::empty({0}, sums)};
}

template <typename Real>
Tensors4 backward(const FastWeightProblem& problem, const Tensor& grad_out,
                  const FastWeightInputs& inputs, const Tensor& memories, const Tensor& key_sums) {
  Prepared prepared;
  SweepArgs<Real> args = sweep_args<Real>(problem, inputs, prepared);
  const Tensor grad =
      grad_out.stride(3) == 1 || grad_out.size(3) == 1 ? grad_out : grad_out.contiguous();
  Tensor dq = empty_gradient_of(inputs.q), dk = empty_gradient_of(inputs.k),
         dv = empty_gradient_of(inputs.v), dbeta = at::empty_like(prepared.beta);
  args.grad_out = view_of(grad), args.dq = view_of(dq), args.dk = view_of(dk),
  args.dv = view_of(dv);
  args.dbeta = dbeta.template data_ptr<Real>();
  const Cut cut(problem);
  const KeptStates<Real> kept(args, memories, key_sums);
  cpu::parallel_tasks(problem.batch * problem.heads, 3 * cost(problem),
                      [&](int64_t pair, Arena& arena) {
                        const State<Real> gradient = fresh_state(args, 1);
                        for (int64_t s = cut.segments - 1; s >= 0; --s) {
                          const State<Real> state = fresh_state(args, 0);
                          if (s > 0) kept.get(pair * cut.segments + s - 1, state);
                          backward_sweep(args, cut.segment(pair, s), arena, state, gradient);
                        }
                      });
  return {dq, dk, dv, dbeta.transpose(1, 2).to(inputs.beta.scalar_type()).contiguous()};
}

Tensors4 forward_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                     const OptionalTensor& token_mask, at::IntArrayRef codes,
                     at::ArrayRef<double> scales, int64_t kept) {
  const FastWeightInputs inputs{q, k, v, beta, token_mask};
  const FastWeightProblem problem =
      checked_problem("fast_weight_attention", inputs, unpack_fast_weight_options(codes, scales));
  const bool states = Kept(kept) != Kept::kNothing;
  return q.scalar_type() == at::kDouble ? forward<double>(problem, inputs, states)
                                        : forward<float>(problem, inputs, states);
}

Tensors4 backward_cpu(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& beta, const OptionalTensor& token_mask, const Tensor& memories,
                      const Tensor& key_sums, const Tensor& /*walk*/, at::IntArrayRef codes,
                      at::ArrayRef<double> scales) {
  const FastWeightInputs inputs{q, k, v, beta, token_mask};
  const FastWeightProblem problem =
      checked_problem("fast_weight_attention", inputs, unpack_fast_weight_options(codes, scales));
  return q.scalar_type() == at::kDouble
             ? backward<double>(problem, grad_out, inputs, memories, key_sums)
             : backward<float>(problem, grad_out, inputs, memories, key_sums);
}

TORCH_LIBRARY_IMPL(fmmformer, CPU, m) {
  m.impl("fast_weight_attention_forward", &forward_cpu);
  m.impl("fast_weight_attention_backward", &backward_cpu);
}

}  // namespace
}  // namespace fmmformer
