// SPDX-License-Identifier: Apache-2.0
// A library that was built without CUDA says so itself when it is given a GPU's tensors. No GPU is
// needed for that: the error comes before anybody reads them.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <torch/types.h>

#include "fmmformer/attention/fast_weight_decode.h"
#include "fmmformer/attention/fmm_attention.h"
#include "fmmformer/attention/fmm_decode.h"

namespace fmmformer {
namespace {

using testing::AllOf, testing::HasSubstr;

class WithoutCudaKernels : public testing::Test {
 protected:
  void SetUp() override {
    const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("fmmformer::fmm_attention_forward", "");
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CUDA))
      GTEST_SKIP() << "this library has CUDA kernels";
  }
};

/// Shape, type and device of a tensor, and no memory.
at::Tensor on_gpu(at::IntArrayRef shape) {
  c10::Storage nothing(c10::Storage::use_byte_size_t(), 0,
                       c10::DataPtr(nullptr, c10::Device(c10::kCUDA, 0)));
  auto tensor = c10::make_intrusive<c10::TensorImpl>(std::move(nothing),
                                                     c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                     caffe2::TypeMeta::Make<float>());
  tensor->set_sizes_contiguous(shape);
  return at::Tensor(std::move(tensor));
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const c10::NotImplementedError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}
const auto kWayOut = AllOf(HasSubstr("q is on cuda:0"), HasSubstr("built without CUDA kernels"),
                           HasSubstr("nvcc"), HasSubstr("move the tensors to the CPU"));

TEST_F(WithoutCudaKernels, AttentionOnAGpuSaysSoAndNamesTheWayOut) {
  const at::Tensor x = on_gpu({2, 5, 3, 8}), beta = on_gpu({2, 5, 3});
  EXPECT_THAT(error_of([&] {
                fmm_attention({x, x, x}, {}, {});
              }),
              AllOf(HasSubstr("fmm_attention: "), kWayOut));
  EXPECT_THAT(error_of([&] {
                const c10::InferenceMode inference;
                fmm_attention({x, x, x}, {}, {});
              }),
              kWayOut);
  EXPECT_THAT(error_of([&] {
                fast_weight_attention({x, x, x, beta}, {});
              }),
              AllOf(HasSubstr("fast_weight_attention: "), kWayOut));
}

TEST_F(WithoutCudaKernels, APromptOnAGpuSaysSoAndNamesTheWayOut) {
  const at::Tensor x = on_gpu({2, 5, 3, 8}), beta = on_gpu({2, 5, 3});
  EXPECT_THAT(error_of([&] {
                fmm_attention_prefill({x, x, x}, {}, {.causal = true});
              }),
              AllOf(HasSubstr("fmm_attention_prefill: "), kWayOut));
  EXPECT_THAT(error_of([&] {
                fast_weight_attention_prefill({x, x, x, beta}, {});
              }),
              AllOf(HasSubstr("fast_weight_attention_prefill: "), kWayOut));
}

TEST_F(WithoutCudaKernels, AStepOnAGpuSaysSoAndNamesTheWayOut) {
  const at::Tensor x = torch::randn({2, 5, 3, 8}), token = on_gpu({2, 3, 8});
  const FmmOptions options{.causal = true, .feature_maps = {FeatureMap::kElu}};
  auto [out, state] = fmm_attention_prefill({x, x, x}, {}, options);
  EXPECT_THAT(error_of([&] {
                fmm_attention_step({token, token, token}, state, {}, options);
              }),
              AllOf(HasSubstr("fmm_attention_step: "), kWayOut));
  auto [fast_out, fast_state] =
      fast_weight_attention_prefill({x, x, x, torch::rand({2, 5, 3})}, {});
  EXPECT_THAT(error_of([&] {
                fast_weight_attention_step({token, token, token, on_gpu({2, 3})}, fast_state, {});
              }),
              AllOf(HasSubstr("fast_weight_attention_step: "), kWayOut));
}

}  // namespace
}  // namespace fmmformer
