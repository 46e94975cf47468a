// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/dropout.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "attention/cpu/parallel.h"
#include "attention/or_nothing.h"
#include "attention/philox.h"
#include "fmmformer/core/random.h"
#include "nn/cpu/dropout_kernel.h"
#include "nn/cuda/column_sum_cuda.h"
#include "nn/cuda/dropout_cuda.h"

namespace fmmformer {

using at::Tensor;

int64_t dropout_seed_value(uint64_t run_seed, int64_t step) {
  return static_cast<int64_t>(derive_seed(run_seed, "dropout", step));
}

Tensor dropout_seed(uint64_t run_seed, int64_t step, const at::Device& device) {
  const int64_t seed = dropout_seed_value(run_seed, step);
  return at::full({1}, seed, at::TensorOptions().dtype(at::kLong)).to(device);
}

namespace {

constexpr int64_t kBlock = 8192;  // elements a task: about 10 microseconds

void check_site(const DropoutSite& site, const Pass& pass) {
  TORCH_CHECK_VALUE(site.probability >= 0 && site.probability < 1, "dropout: probability is ",
                    site.probability, "; allowed is 0 <= p < 1");
  TORCH_CHECK_VALUE(pass.dropout_seed.defined(),
                    "dropout: the pass is a training one but has no dropout_seed; set "
                    "pass.dropout_seed = dropout_seed(run_seed, step, device)");
}

bool is_plain(const DropoutSite& site, const Pass& pass) {
  return !pass.training || site.probability == 0;
}

/// Work for the SIMD kernels: fp32 on the CPU. `seed` then lies in plain memory.
bool has_cpu_kernel(const Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

bool has_kernel(const Tensor& x) { return has_cpu_kernel(x) || cuda::has_dropout_kernel(x); }

cpu::DropoutStream stream_of(const DropoutSite& site, const Tensor& seed) {
  if (site.probability == 0) return {};
  return {.seed = static_cast<uint64_t>(seed.const_data_ptr<int64_t>()[0]),
          .site = static_cast<uint32_t>(site.site),
          .probability = site.probability};
}

template <typename Work>
void for_each_block(int64_t elements, const Work& work) {
  cpu::parallel_tasks((elements + kBlock - 1) / kBlock, 4 * kBlock,
                      [&](int64_t block, cpu::Arena&) {
                        const int64_t begin = block * kBlock;
                        work(begin, std::min(kBlock, elements - begin));
                      });
}

/// Factors in x's type, for what has no kernel of its own.
Tensor factors_like(const Tensor& x, const DropoutSite& site, const Tensor& seed) {
  if (!x.is_cpu()) return dropout_factors(x.sizes(), site, seed).to(x.scalar_type());
  Tensor factors = at::empty(x.sizes(), at::TensorOptions().dtype(at::kFloat));
  float* out = factors.mutable_data_ptr<float>();
  const auto stream = stream_of(site, seed);
  for_each_block(x.numel(), [&](int64_t begin, int64_t count) {
    cpu::dropout_factors(stream, begin, count, out + begin);
  });
  return factors.to(x.scalar_type());
}

Tensor multiplied(const Tensor& any, const DropoutSite& site, const Tensor& seed) {
  if (!has_kernel(any)) return any * factors_like(any, site, seed);
  if (any.is_cuda()) return cuda::dropout_multiply(any, site, seed);
  const Tensor x = any.contiguous();
  Tensor out = at::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const auto stream = stream_of(site, seed);
  for_each_block(x.numel(), [&](int64_t begin, int64_t count) {
    cpu::dropout_multiply(stream, begin, count, from + begin, to + begin);
  });
  return out;
}

bool is_alike(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

bool fits_kernel(const Tensor& x, const Tensor& bias) {
  return has_kernel(x) && (!bias.defined() || (is_alike(bias, x) && bias.is_contiguous()));
}

cpu::RowBias row_bias(const Tensor& bias) {
  if (!bias.defined()) return {};
  return {.values = bias.const_data_ptr<float>(), .columns = bias.numel()};
}

/// x + bias in x's type, for what has no kernel.
Tensor shifted(const Tensor& x, const Tensor& bias) {
  return bias.defined() ? x + bias.to(x.scalar_type()) : x;
}

Tensor shifted_and_added(const Tensor& residual, const Tensor& any, const Tensor& bias,
                         const DropoutSite& site, const Tensor& seed) {
  if (!fits_kernel(any, bias) || !is_alike(residual, any) || residual.sizes() != any.sizes()) {
    const Tensor x = shifted(any, bias);
    return residual + (site.probability > 0 ? x * factors_like(x, site, seed) : x);
  }
  if (any.is_cuda()) return cuda::dropout_add(residual, any, bias, site, seed);
  const Tensor x = any.contiguous(), base = residual.contiguous();
  Tensor out = at::empty_like(x);
  const float *from = x.const_data_ptr<float>(), *rest = base.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const auto stream = stream_of(site, seed);
  const cpu::RowBias row = row_bias(bias);
  for_each_block(x.numel(), [&](int64_t begin, int64_t count) {
    cpu::dropout_add(stream, begin, count, from + begin, row, rest + begin, to + begin);
  });
  return out;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using OptionalTensor = std::optional<Tensor>;

void keep(AutogradContext* context, const DropoutSite& site, const Tensor& seed) {
  context->save_for_backward({seed});
  context->saved_data["probability"] = site.probability;
  context->saved_data["site"] = site.site;
}

DropoutSite kept_site(AutogradContext* context) {
  return {context->saved_data["probability"].toDouble(), context->saved_data["site"].toInt()};
}

Tensor gradient_of_x(AutogradContext* context, const Tensor& grad) {
  const DropoutSite site = kept_site(context);
  if (site.probability == 0) return grad;
  return multiplied(grad, site, context->get_saved_variables()[0]);
}

/// The type of the bias when a kernel can sum its gradient.
std::optional<at::ScalarType> summed_type(AutogradContext* context, const Tensor& grad) {
  if (!context->saved_data["has_bias"].toBool()) return std::nullopt;
  const auto type = context->saved_data["bias_type"].toScalarType();
  return cuda::has_column_sum_kernel(grad, type) ? std::optional(type) : std::nullopt;
}

/// The gradient of a bias that was added to every row of x.
Tensor gradient_of_bias(AutogradContext* context, const Tensor& grad_of_x) {
  if (!context->saved_data["has_bias"].toBool()) return Tensor();
  if (const auto type = summed_type(context, grad_of_x)) return cuda::column_sum(grad_of_x, *type);
  return grad_of_x.flatten(0, -2).sum(0).to(context->saved_data["bias_type"].toScalarType());
}

struct Gradients {
  Tensor x, bias;
};

Gradients gradients_of_shifted(AutogradContext* context, const Tensor& grad) {
  const DropoutSite site = kept_site(context);
  const auto type = summed_type(context, grad);
  if (type && site.probability > 0) {
    const Tensor seed = context->get_saved_variables()[0];
    const auto [matrix, sum] = cuda::dropout_multiply_and_sum(grad, site, seed, *type);
    return {matrix, sum};
  }
  const Tensor x = gradient_of_x(context, grad);
  return {x, gradient_of_bias(context, x)};
}

void keep_bias(AutogradContext* context, const Tensor& bias) {
  context->saved_data["has_bias"] = bias.defined();
  if (bias.defined()) context->saved_data["bias_type"] = bias.scalar_type();
}

// The masks are drawn again in backward: cheaper than keeping them.
struct Dropout : torch::autograd::Function<Dropout> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const DropoutSite& site,
                        const Tensor& seed) {
    keep(context, site, seed);
    return multiplied(x, site, seed);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grad) {
    return {gradient_of_x(context, grad[0]), Tensor(), Tensor()};
  }
};

struct ResidualDropout : torch::autograd::Function<ResidualDropout> {
  static Tensor forward(AutogradContext* context, const Tensor& residual, const Tensor& x,
                        const OptionalTensor& some_bias, const DropoutSite& site,
                        const OptionalTensor& some_seed) {
    const Tensor bias = some_bias.value_or(Tensor()), seed = some_seed.value_or(Tensor());
    keep(context, site, seed);
    keep_bias(context, bias);
    context->saved_data["residual_type"] = residual.scalar_type();
    context->saved_data["x_type"] = x.scalar_type();
    return shifted_and_added(residual, x, bias, site, seed);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grad) {
    const auto residual_type = context->saved_data["residual_type"].toScalarType();
    const auto x_type = context->saved_data["x_type"].toScalarType();
    const auto [grad_x, grad_bias] = gradients_of_shifted(context, grad[0]);
    return {grad[0].to(residual_type), grad_x.to(x_type), grad_bias, Tensor(), Tensor()};
  }
};

/// x = dropout(relu(x + bias)).
void relu_in_place(const Tensor& x, const Tensor& bias, const DropoutSite& site,
                   const Tensor& seed) {
  if (x.is_cuda()) return cuda::dropout_relu_(x, bias, site, seed);
  float* values = x.mutable_data_ptr<float>();
  const auto stream = stream_of(site, seed);
  const cpu::RowBias row = row_bias(bias);
  for_each_block(x.numel(), [&](int64_t begin, int64_t count) {
    cpu::dropout_relu(stream, begin, count, values + begin, row, values + begin);
  });
}

Tensor gradient_of_relu(const Tensor& out, const Tensor& any, double probability) {
  if (out.is_cuda()) return cuda::dropout_relu_gradient(out, any, probability);
  const auto scale = static_cast<float>(1.0 / (1.0 - probability));
  const Tensor grad = any.contiguous();
  Tensor result = at::empty_like(grad);
  const float *g = grad.const_data_ptr<float>(), *o = out.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  for_each_block(grad.numel(), [&](int64_t begin, int64_t count) {
    for (int64_t e = begin; e < begin + count; ++e) to[e] = o[e] > 0 ? g[e] * scale : 0.0f;
  });
  return result;
}

// out > 0 exactly where an element was positive and kept: backward needs neither input nor mask.
struct ReluDropout : torch::autograd::Function<ReluDropout> {
  static Tensor forward(AutogradContext* context, Tensor x, const OptionalTensor& some_bias,
                        const DropoutSite& site, const OptionalTensor& some_seed) {
    const Tensor bias = some_bias.value_or(Tensor()), seed = some_seed.value_or(Tensor());
    relu_in_place(x, bias, site, seed);
    context->mark_dirty({x});
    context->save_for_backward({x});
    context->saved_data["probability"] = site.probability;
    keep_bias(context, bias);
    return x;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor out = context->get_saved_variables()[0];
    const double probability = context->saved_data["probability"].toDouble();
    if (const auto type = summed_type(context, grads[0])) {
      const auto [matrix, sum] =
          cuda::dropout_relu_gradient_and_sum(out, grads[0], probability, *type);
      return {matrix, sum, Tensor(), Tensor()};
    }
    const Tensor result = gradient_of_relu(out, grads[0], probability);
    return {result, gradient_of_bias(context, result), Tensor(), Tensor()};
  }
};

/// On a GPU alone. The input is kept instead of gelu's slope: half the memory traffic.
struct GeluDropout : torch::autograd::Function<GeluDropout> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& bias,
                        const DropoutSite& site, const OptionalTensor& some_seed) {
    const Tensor seed = some_seed.value_or(Tensor());
    context->save_for_backward({seed, x, bias});
    context->saved_data["probability"] = site.probability;
    context->saved_data["site"] = site.site;
    return cuda::dropout_gelu(x, bias, site, seed);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto [matrix, sum] = cuda::dropout_gelu_gradient_and_sum(saved[1], saved[2], grads[0],
                                                                   kept_site(context), saved[0]);
    return {matrix, sum, Tensor(), Tensor()};
  }
};

}  // namespace

DropoutSite active_site(const DropoutSite& site, const Pass& pass) {
  if (is_plain(site, pass)) return {.probability = 0, .site = site.site};
  check_site(site, pass);
  return site;
}

Tensor dropout(const Tensor& x, const DropoutSite& site, const Pass& pass) {
  if (is_plain(site, pass)) return x;
  check_site(site, pass);
  return Dropout::apply(x, site, pass.dropout_seed);
}

Tensor residual_dropout(const Tensor& residual, const Tensor& x, const Tensor& bias,
                        const DropoutSite& site, const Pass& pass) {
  return ResidualDropout::apply(residual, x, or_nothing(bias), active_site(site, pass),
                                or_nothing(pass.dropout_seed));
}

Tensor relu_dropout(Tensor x, const Tensor& bias, const DropoutSite& site, const Pass& pass) {
  const DropoutSite really = active_site(site, pass);
  if (fits_kernel(x, bias) && x.is_contiguous()) {
    return ReluDropout::apply(std::move(x), or_nothing(bias), really,
                              or_nothing(pass.dropout_seed));
  }
  const Tensor positive = shifted(x, bias).relu();
  if (really.probability == 0) return positive;
  return Dropout::apply(positive, really, pass.dropout_seed);
}

Tensor gelu_dropout(const Tensor& x, const Tensor& bias, const DropoutSite& site,
                    const Pass& pass) {
  const DropoutSite really = active_site(site, pass);
  if (fits_kernel(x, bias) && cuda::fits_gelu_gradient(x, bias)) {
    return GeluDropout::apply(x, bias, really, or_nothing(pass.dropout_seed));
  }
  return dropout(at::gelu(shifted(x, bias)), site, pass);
}

Tensor dropout_factors(at::IntArrayRef sizes, const DropoutSite& site, const Tensor& seed) {
  // Philox on int64 tensors, each holding a 32-bit word.
  constexpr int64_t kWord = 0xFFFFFFFF;
  const int64_t elements = c10::multiply_integers(sizes), blocks = (elements + 3) / 4;
  const Tensor index = at::arange(blocks, seed.options());
  Tensor c0 = index.bitwise_and(kWord), c1 = index.__rshift__(32);
  Tensor c2 = at::full_like(index, site.site & kWord), c3 = at::ones_like(index);
  Tensor key0 = seed.bitwise_and(kWord), key1 = seed.__rshift__(32).bitwise_and(kWord);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    // A 32 x 32 bit product overflows int64 only into its sign: the bits are right.
    const Tensor a = c0 * int64_t{kPhiloxMultiplier0}, b = c2 * int64_t{kPhiloxMultiplier1};
    const Tensor high_a = a.__rshift__(32).bitwise_and(kWord),
                 high_b = b.__rshift__(32).bitwise_and(kWord);
    c0 = high_b.bitwise_xor(c1).bitwise_xor(key0);
    c2 = high_a.bitwise_xor(c3).bitwise_xor(key1);
    c1 = b.bitwise_and(kWord), c3 = a.bitwise_and(kWord);
    key0 = (key0 + int64_t{kPhiloxKeyStep0}).bitwise_and(kWord);
    key1 = (key1 + int64_t{kPhiloxKeyStep1}).bitwise_and(kWord);
  }
  const Tensor words = at::stack({c0, c1, c2, c3}, 1).flatten().narrow(0, 0, elements);
  const Tensor kept = words.ge(int64_t{dropout_threshold(site.probability)});
  return kept.to(at::kFloat).mul(1.0 / (1.0 - site.probability)).view(sizes);
}

}  // namespace fmmformer
