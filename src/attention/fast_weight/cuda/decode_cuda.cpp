// SPDX-License-Identifier: Apache-2.0
// One decoding step on the GPU: tensors to decode.h. Nothing waits for the GPU, so a CUDA graph can
// hold a step.
#include "attention/fast_weight/cuda/decode.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "attention/fast_weight/fast_weight_schema.h"
#include "attention/fast_weight/fast_weight_step.h"
#include "attention/fmm/cuda/gpu_check.h"
#include "attention/fmm/cuda/tensor_views.h"

namespace fmmformer {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor step_cuda(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                 const OptionalTensor& token_mask, const Tensor& memory, const Tensor& key_sums,
                 const Tensor& tokens, at::IntArrayRef codes, at::ArrayRef<double> scales) {
  const FastWeightOptions options = unpack_fast_weight_options(codes, scales);
  const cuda::Element element = cuda::element_of("fast_weight_attention_step", q.scalar_type());
  const FastWeightProblem problem =
      checked_step({q, k, v, beta, token_mask}, {memory, key_sums, tokens}, options);
  const c10::cuda::CUDAGuard guard(q.device());
  cuda::check_build_for_gpu("fast_weight_attention_step");
  const Tensor rows[] = {q.contiguous(), k.contiguous(), v.contiguous()};
  const Tensor mask = token_mask ? token_mask->contiguous() : Tensor();
  Tensor out = at::empty({problem.batch, problem.heads, problem.value_dim}, q.options());
  cuda::fast_weight::StepArgs args;
  args.element = element;
  args.batch = problem.batch, args.heads = static_cast<int>(problem.heads);
  args.head_dim = static_cast<int>(problem.head_dim),
  args.value_dim = static_cast<int>(problem.value_dim);
  args.q = rows[0].data_ptr(), args.k = rows[1].data_ptr(), args.v = rows[2].data_ptr();
  args.beta = {beta.data_ptr(), cuda::weight_type(beta.scalar_type()), 0, beta.stride(1),
               beta.stride(0)};
  args.out = out.data_ptr();
  if (mask.defined()) args.token_mask = mask.const_data_ptr<bool>();
  args.feature_map = options.feature_map;
  args.unit_features = options.unit_features, args.normaliser = options.normaliser;
  args.eps = static_cast<float>(options.eps),
  args.far_scale = static_cast<float>(options.far_scale);
  args.memory = memory.data_ptr<float>(), args.key_sums = key_sums.data_ptr<float>();
  args.tokens = tokens.data_ptr<int64_t>();
  C10_CUDA_CHECK(cuda::fast_weight::decode_step(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

TORCH_LIBRARY_IMPL(fmmformer, CUDA, m) { m.impl("fast_weight_attention_step_packed", &step_cuda); }

}  // namespace
}  // namespace fmmformer
