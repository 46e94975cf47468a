// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: tensors to sweeps, and how a sequence is cut into segments.
//
// Everything runs on the current stream and device, allocates from torch's allocator alone and
// never waits for the GPU, so that a CUDA graph can hold it. How the work is cut depends on the
// shape alone: the sums are the same bits on every run.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <limits>

#include "attention/fast_weight/cuda/sweep.h"
#include "attention/fast_weight/fast_weight_problem.h"
#include "attention/fast_weight/fast_weight_schema.h"
#include "attention/fmm/cuda/gpu_check.h"
#include "attention/fmm/cuda/tensor_views.h"
#include "attention/problem.h"

namespace fmmformer {
namespace {

using at::Tensor;
using cuda::fast_weight::kChunk, cuda::fast_weight::kSegmentChunks, cuda::fast_weight::SweepArgs;
using OptionalTensor = std::optional<Tensor>;
using Tensors4 = std::tuple<Tensor, Tensor, Tensor, Tensor>;

static_assert(kChunk * kSegmentChunks == kTokensBetweenStates);
static_assert(kChunk == kWalkChunk);
static_assert(kWalkNumbers ==
              2 * kChunk * kChunk + kChunk * cuda::fast_weight::kKeptFields + kNarrowHead);

constexpr int64_t kLongest = int64_t{1} << 30;  // the kernels count tokens in 32 bits
// With so many pairs and more the GPU is full, and joining segments would cost more than it gives.
constexpr int64_t kPairsThatFill = 4 * cuda::kMultiprocessors;

cuda::View view_of(const Tensor& tensor) {
  const int64_t size = tensor.element_size();
  bool aligned = reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0;
  for (int d = 0; d < 3; ++d) aligned &= tensor.stride(d) * size % 16 == 0;
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2), aligned};
}

int64_t by_sixteen(int64_t n) { return (n + 15) / 16 * 16; }

/// Signed features can make a sum nearly vanish, and raw ones make a state grow: then what rounding
/// leaves is divided by little, or multiplied by much.
bool needs_precision(const FastWeightOptions& options, cuda::Element element) {
  return element != cuda::Element::kBFloat16 || is_signed(options.feature_map) ||
         !options.unit_features;
}

class Call {
 public:
  Call(const FastWeightProblem& problem, const FastWeightInputs& inputs)
      : problem_(problem),
        inputs_(inputs),
        guard_(inputs.q.device()),
        stream_(c10::cuda::getCurrentCUDAStream()),
        floats_(inputs.q.options().dtype(at::kFloat)),
        pairs_(problem.batch * problem.heads),
        states_((problem.length + kTokensBetweenStates - 1) / kTokensBetweenStates),
        chunks_((problem.length + kChunk - 1) / kChunk) {
    cuda::check_build_for_gpu("fast_weight_attention");
    if (inputs.token_mask) mask_ = inputs.token_mask->contiguous();
    TORCH_CHECK_VALUE(problem.length <= kLongest, "fast_weight_attention: the length is ",
                      problem.length, "; allowed on a GPU are up to ", kLongest);
    const auto needed = cuda::fast_weight::shared_bytes(static_cast<int>(problem.head_dim),
                                                        static_cast<int>(problem.value_dim));
    const auto given =
        static_cast<int64_t>(at::cuda::getCurrentDeviceProperties()->sharedMemPerBlockOptin);
    TORCH_CHECK_VALUE(needed <= given, "fast_weight_attention: heads of ", problem.head_dim,
                      " and ", problem.value_dim, " channels need ", needed,
                      " bytes of shared memory, this GPU has ", given,
                      "; split into more heads or run on the CPU");
    TORCH_CHECK_VALUE(pairs_ * states_ <= std::numeric_limits<int>::max(),
                      "fast_weight_attention: ", pairs_,
                      " heads in all are more than one launch can hold; split the batch");
  }

  Tensors4 forward(Kept kept);
  Tensors4 backward(const Tensor& grad_out, const Tensor& memories, const Tensor& key_sums,
                    const Tensor& walk);

 private:
  SweepArgs sweep_args() const;
  void cut_into_segments(SweepArgs& args) const {
    args.segments = static_cast<int>(states_), args.segment_chunks = kSegmentChunks;
  }
  Tensor scratch(int64_t numbers) const { return at::empty({numbers}, floats_); }
  bool has_narrow_heads() const {
    return problem_.head_dim <= kNarrowHead && problem_.value_dim <= kNarrowHead;
  }
  void set_walk(SweepArgs& args, const Tensor& walk) const;

  const FastWeightProblem& problem_;
  const FastWeightInputs& inputs_;
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
  at::TensorOptions floats_;
  Tensor mask_;
  int64_t pairs_, states_, chunks_;
};

SweepArgs Call::sweep_args() const {
  const FastWeightOptions& options = problem_.options;
  SweepArgs args;
  args.element = cuda::element_of("fast_weight_attention", inputs_.q.scalar_type());
  args.precise = needs_precision(options, args.element);
  args.batch = problem_.batch;
  args.length = static_cast<int>(problem_.length), args.heads = static_cast<int>(problem_.heads);
  args.head_dim = static_cast<int>(problem_.head_dim),
  args.value_dim = static_cast<int>(problem_.value_dim);
  args.q = view_of(inputs_.q), args.k = view_of(inputs_.k), args.v = view_of(inputs_.v);
  const Tensor& beta = inputs_.beta;
  args.beta = {beta.data_ptr(), cuda::weight_type(beta.scalar_type()), beta.stride(0),
               beta.stride(2), beta.stride(1)};
  if (mask_.defined()) args.token_mask = mask_.const_data_ptr<bool>();
  args.all_live = !mask_.defined() && problem_.length % kChunk == 0;
  args.feature_map = options.feature_map;
  args.unit_features = options.unit_features, args.normaliser = options.normaliser;
  args.eps = static_cast<float>(options.eps),
  args.far_scale = static_cast<float>(options.far_scale);
  args.segment_chunks = static_cast<int>(chunks_), args.kept_states = static_cast<int>(states_);
  return args;
}

/// Where the parts of a kept walk lie.
void Call::set_walk(SweepArgs& args, const Tensor& walk) const {
  const int64_t chunks = pairs_ * chunks_, square = chunks * kChunk * kChunk;
  TORCH_INTERNAL_ASSERT(walk.numel() == chunks * kWalkNumbers);
  args.written = walk.data_ptr<float>();
  args.memories_before = args.written + square;
  args.rows = args.memories_before + square;
  args.sums_before = args.rows + chunks * kChunk * cuda::fast_weight::kKeptFields;
}

Tensors4 Call::forward(Kept kept) {
  namespace sweeps = cuda::fast_weight;
  const int64_t head_dim = problem_.head_dim, value_dim = problem_.value_dim;
  const bool keep_states = kept != Kept::kNothing;
  const bool joins = states_ > 1 && pairs_ < kPairsThatFill, stores = keep_states || joins;
  Tensor out =
      at::empty({problem_.batch, problem_.length, problem_.heads, value_dim}, inputs_.q.options());
  Tensor memories = at::empty({stores ? pairs_ * states_ : 0, head_dim, value_dim}, floats_);
  Tensor key_sums = at::empty({stores ? pairs_ * states_ : 0, head_dim}, floats_);
  SweepArgs args = sweep_args();
  args.out = view_of(out);
  args.states = {memories.data_ptr<float>(), key_sums.data_ptr<float>()};
  args.keeps_states = keep_states && !joins;
  const Tensor walk =
      scratch(kept == Kept::kWalk && has_narrow_heads() ? pairs_ * chunks_ * kWalkNumbers : 0);
  if (walk.numel() > 0) set_walk(args, walk);
  if (joins) {
    cut_into_segments(args);
    const Tensor transitions = scratch(pairs_ * states_ * head_dim * head_dim);
    args.transitions = transitions.data_ptr<float>();
    C10_CUDA_CHECK(sweeps::sum_keys(args, stream_));
    C10_CUDA_CHECK(sweeps::accumulate(args, args.states.sums, /*from_the_last=*/false, stream_));
    C10_CUDA_CHECK(sweeps::transition_sweep(args, /*of_gradients=*/false, stream_));
    C10_CUDA_CHECK(sweeps::join_states(args, /*of_gradients=*/false, stream_));
  }
  C10_CUDA_CHECK(sweeps::forward_sweep(args, stream_));
  if (!keep_states) return {out, scratch(0), scratch(0), walk};
  return {out, memories, key_sums, walk};
}

Tensors4 Call::backward(const Tensor& grad_out, const Tensor& memories, const Tensor& key_sums,
                        const Tensor& walk) {
  namespace sweeps = cuda::fast_weight;
  const int64_t head_dim = problem_.head_dim, value_dim = problem_.value_dim;
  const Tensor grad =
      grad_out.stride(3) == 1 || grad_out.size(3) == 1 ? grad_out : grad_out.contiguous();
  Tensor dq = empty_gradient_of(inputs_.q), dk = empty_gradient_of(inputs_.k),
         dv = empty_gradient_of(inputs_.v),
         dbeta = at::empty(inputs_.beta.sizes(), inputs_.beta.options());
  SweepArgs args = sweep_args();
  cut_into_segments(args);
  args.grad_out = view_of(grad);
  args.dq = view_of(dq), args.dk = view_of(dk), args.dv = view_of(dv);
  args.dbeta = dbeta.data_ptr();
  args.states = {memories.data_ptr<float>(), key_sums.data_ptr<float>()};
  const int64_t rows = pairs_ * chunks_ * kChunk;
  Tensor written, numbers, sums_before;
  if (walk.numel() > 0) {
    set_walk(args, walk);
    if (sweeps::is_short(args)) {
      C10_CUDA_CHECK(sweeps::short_backward(args, stream_));
      return {dq, dk, dv, dbeta};
    }
  } else {
    written = scratch(rows * by_sixteen(value_dim)), numbers = scratch(rows * sweeps::kKeptFields);
    sums_before = scratch(rows / kChunk * by_sixteen(head_dim));
    args.written = written.data_ptr<float>(), args.rows = numbers.data_ptr<float>();
    args.sums_before = sums_before.data_ptr<float>();
    C10_CUDA_CHECK(sweeps::write_sweep(args, stream_));
  }
  const Tensor solved = scratch(rows * by_sixteen(value_dim)),
               key_gradients = scratch(rows * by_sixteen(head_dim)),
               row_gradients = scratch(rows * (sweeps::kRowFields - sweeps::kKeptFields));
  args.solved = solved.data_ptr<float>(), args.key_gradients = key_gradients.data_ptr<float>();
  args.row_gradients = row_gradients.data_ptr<float>();
  Tensor gradients, gradient_sums;
  if (states_ > 1) {
    gradients = scratch(pairs_ * states_ * head_dim * value_dim);
    gradient_sums = scratch(pairs_ * states_ * head_dim);
    args.gradients = {gradients.data_ptr<float>(), gradient_sums.data_ptr<float>()};
    const Tensor transitions = scratch(pairs_ * states_ * head_dim * head_dim);
    args.transitions = transitions.data_ptr<float>();
    C10_CUDA_CHECK(sweeps::transition_sweep(args, /*of_gradients=*/true, stream_));
    C10_CUDA_CHECK(sweeps::join_states(args, /*of_gradients=*/true, stream_));
  }
  C10_CUDA_CHECK(sweeps::solve_sweep(args, stream_));
  C10_CUDA_CHECK(sweeps::query_sweep(args, stream_));
  if (states_ > 1)
    C10_CUDA_CHECK(sweeps::accumulate(args, args.gradients.sums, /*from_the_last=*/true, stream_));
  C10_CUDA_CHECK(sweeps::key_sweep(args, stream_));
  return {dq, dk, dv, dbeta};
}

Tensors4 forward_cuda(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                      const OptionalTensor& token_mask, at::IntArrayRef codes,
                      at::ArrayRef<double> scales, int64_t kept) {
  const FastWeightInputs inputs{q, k, v, beta, token_mask};
  const FastWeightProblem problem =
      checked_problem("fast_weight_attention", inputs, unpack_fast_weight_options(codes, scales));
  return Call(problem, inputs).forward(Kept(kept));
}

Tensors4 backward_cuda(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& beta, const OptionalTensor& token_mask, const Tensor& memories,
                       const Tensor& key_sums, const Tensor& walk, at::IntArrayRef codes,
                       at::ArrayRef<double> scales) {
  const FastWeightInputs inputs{q, k, v, beta, token_mask};
  const FastWeightProblem problem =
      checked_problem("fast_weight_attention", inputs, unpack_fast_weight_options(codes, scales));
  return Call(problem, inputs).backward(grad_out, memories, key_sums, walk);
}

TORCH_LIBRARY_IMPL(fmmformer, CUDA, m) {
  m.impl("fast_weight_attention_forward", &forward_cuda);
  m.impl("fast_weight_attention_backward", &backward_cuda);
}

}  // namespace
}  // namespace fmmformer
