// SPDX-License-Identifier: Apache-2.0
// One decoding step on the GPU: tensors to decode.h. Nothing waits for the GPU, so a CUDA graph can
// hold a step.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "attention/fmm/cuda/decode.h"
#include "attention/fmm/cuda/gpu_check.h"
#include "attention/fmm/cuda/tensor_views.h"
#include "attention/fmm/fmm_schema.h"
#include "attention/fmm/fmm_step.h"

namespace fmmformer {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

cuda::StepArgs step_args(const StepCall& call) {
  const FmmOptions& options = call.problem.options;
  const int64_t maps = call.problem.feature_maps(), heads = call.problem.heads,
                channels = call.problem.value_dim;
  cuda::StepArgs args;
  args.element = cuda::element_of("fmm_attention_step", call.token.q.scalar_type());
  args.batch = call.problem.batch, args.heads = heads;
  args.head_dim = static_cast<int>(call.problem.head_dim),
  args.value_dim = static_cast<int>(channels);
  args.has_near = options.window.has_value(), args.left = call.left();
  args.near_scale = static_cast<float>(*options.near_scale);
  args.maps = static_cast<int>(maps);
  std::copy(options.feature_maps.begin(), options.feature_maps.end(), args.feature_maps);
  args.unit_features = options.unit_features, args.normaliser = options.normaliser;
  args.eps = static_cast<float>(options.eps),
  args.far_scale = static_cast<float>(options.far_scale);
  args.near_weight = cuda::weight_view(call.weights.near_weight);
  args.far_weight = cuda::weight_view(call.weights.far_weight);
  args.keys = call.state.keys.data_ptr(), args.values = call.state.values.data_ptr();
  args.live = call.state.live.data_ptr<bool>();
  args.far_sums = call.state.far_sums.data_ptr<float>(),
  args.far_key_sums = call.state.far_key_sums.data_ptr<float>();
  args.position = call.state.position.data_ptr<int64_t>();
  return args;
}

Tensor step_cuda(const Tensor& q, const Tensor& k, const Tensor& v,
                 const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                 const OptionalTensor& token_mask, const Tensor& keys, const Tensor& values,
                 const Tensor& live, const Tensor& far_sums, const Tensor& far_key_sums,
                 const Tensor& position, at::IntArrayRef codes, at::ArrayRef<double> scales) {
  const StepCall call = checked_step(
      {.q = q, .k = k, .v = v, .token_mask = token_mask}, {near_weight, far_weight},
      {keys, values, live, far_sums, far_key_sums, position}, unpack_options(codes, scales));
  const c10::cuda::CUDAGuard guard(q.device());
  cuda::check_build_for_gpu("fmm_attention_step");
  cuda::StepArgs args = step_args(call);
  const Tensor rows[] = {q.contiguous(), k.contiguous(), v.contiguous()};
  const Tensor mask = token_mask ? token_mask->contiguous() : Tensor();
  Tensor out =
      at::empty({call.problem.batch, call.problem.heads, call.problem.value_dim}, q.options());
  args.q = rows[0].data_ptr(), args.k = rows[1].data_ptr(), args.v = rows[2].data_ptr(),
  args.out = out.data_ptr();
  if (mask.defined()) args.token_mask = mask.const_data_ptr<bool>();
  C10_CUDA_CHECK(cuda::decode_step(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

TORCH_LIBRARY_IMPL(fmmformer, CUDA, m) { m.impl("fmm_attention_step_packed", &step_cuda); }

}  // namespace
}  // namespace fmmformer
