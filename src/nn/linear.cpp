// SPDX-License-Identifier: Apache-2.0
#include "nn/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "attention/cpu/parallel.h"
#include "nn/cpu/row_product.h"
#include "nn/cuda/column_sum_cuda.h"

namespace fmmformer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

Tensor rows_of(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor torchs_linear(const Tensor& x, const LinearMap& map) {
  return at::linear(x, map.weight, map.bias.defined() ? std::optional(map.bias) : std::nullopt);
}

/// Whether x is one row that nobody wants a gradient of, on a CPU and in fp32.
bool is_plain_row(const Tensor& x, const LinearMap& map) {
  const auto is_plain = [](const Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
  };
  return !at::GradMode::is_enabled() && x.dim() >= 1 && x.numel() == x.size(-1) && is_plain(x) &&
         is_plain(map.weight) && map.weight.dim() == 2 && map.weight.size(1) == x.numel() &&
         (!map.bias.defined() || is_plain(map.bias));
}

Tensor row_linear(const Tensor& x, const LinearMap& map) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = map.weight.size(0);
  Tensor out = at::empty(sizes, x.options());
  const int64_t columns = map.weight.size(1), rows = map.weight.size(0);
  const cpu::RowMatrix matrix{map.weight.const_data_ptr<float>(), columns};
  const float* bias = map.bias.defined() ? map.bias.const_data_ptr<float>() : nullptr;
  const float* from = x.const_data_ptr<float>();
  float* to = out.data_ptr<float>();
  if (rows == 0) return out;
  // Long enough to read ahead in, short enough that a thread which is late holds nobody up.
  constexpr int64_t kNumbersATask = 1 << 16;
  const int64_t rows_a_task =
      std::clamp<int64_t>(kNumbersATask / std::max<int64_t>(columns, 1), 1, rows);
  cpu::parallel_tasks((rows + rows_a_task - 1) / rows_a_task, rows_a_task * columns,
                      [&](int64_t task, cpu::Arena&) {
                        const int64_t begin = task * rows_a_task;
                        const int64_t end = std::min(begin + rows_a_task, rows);
                        cpu::row_product(matrix, from, bias, begin, end, to);
                      });
  return out;
}

/// A bias, and all of one type: torch has the rest (promotion, autocast) in better hands.
bool fits(const Tensor& x, const LinearMap& map) {
  return map.bias.defined() && cuda::has_column_sum_kernel(x, map.bias.scalar_type()) &&
         x.dim() >= 2 && map.weight.scalar_type() == x.scalar_type() &&
         map.bias.scalar_type() == x.scalar_type() && map.weight.device() == x.device() &&
         map.bias.device() == x.device();
}

/// gradients[places[m]] = the columns' sums of matrix m: in one go where widths are equal.
void add_bias_gradients(const variable_list& matrices, const std::vector<size_t>& places,
                        at::ScalarType type, variable_list& gradients) {
  const bool alike = std::ranges::all_of(
      matrices, [&](const Tensor& one) { return one.sizes() == matrices[0].sizes(); });
  if (alike && !matrices.empty()) {
    const auto sums = cuda::column_sums(matrices, type);
    for (size_t m = 0; m < sums.size(); ++m) gradients[places[m]] = sums[m];
    return;
  }
  for (size_t m = 0; m < matrices.size(); ++m)
    gradients[places[m]] = cuda::column_sum(matrices[m], type);
}

/// maps = {weight, bias, weight, bias, ...}, all of the same x.
struct LinearMaps : torch::autograd::Function<LinearMaps> {
  static variable_list forward(AutogradContext* context, const Tensor& x, at::TensorList maps) {
    variable_list kept = {x}, results;
    for (size_t m = 0; m < maps.size(); m += 2) {
      kept.push_back(maps[m]);
      results.push_back(at::linear(x, maps[m], maps[m + 1]));
    }
    context->save_for_backward(kept);
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor x = rows_of(saved[0]);
    variable_list gradients(1 + 2 * grads.size());
    Tensor grad_x;
    variable_list defined;
    std::vector<size_t> biases;  // where their gradients go
    for (size_t m = 0; m < grads.size(); ++m) {
      if (!grads[m].defined()) continue;
      const Tensor grad = rows_of(grads[m].contiguous()), &weight = saved[m + 1];
      if (context->needs_input_grad(0)) {
        // In place: the product adds to what the maps before have left.
        grad_x = grad_x.defined() ? grad_x.addmm_(grad, weight) : at::mm(grad, weight);
      }
      gradients[1 + 2 * m] = at::mm(grad.t(), x);
      defined.push_back(grad);
      biases.push_back(2 + 2 * m);
    }
    add_bias_gradients(defined, biases, saved[1].scalar_type(), gradients);
    if (grad_x.defined()) gradients[0] = grad_x.view(saved[0].sizes());
    return gradients;
  }
};

}  // namespace

Tensor linear(const Tensor& x, const LinearMap& map) {
  if (is_plain_row(x, map)) return row_linear(x, map);
  if (!fits(x, map)) return torchs_linear(x, map);
  const variable_list flat = {map.weight, map.bias};
  return LinearMaps::apply(x, at::TensorList(flat))[0];
}

std::array<Tensor, 3> linear_thrice(const Tensor& x, const std::array<LinearMap, 3>& maps) {
  if (!(fits(x, maps[0]) && fits(x, maps[1]) && fits(x, maps[2]))) {
    return {linear(x, maps[0]), linear(x, maps[1]), linear(x, maps[2])};
  }
  variable_list flat;
  for (const LinearMap& map : maps) flat.insert(flat.end(), {map.weight, map.bias});
  const variable_list results = LinearMaps::apply(x, at::TensorList(flat));
  return {results[0], results[1], results[2]};
}

}  // namespace fmmformer
