// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/attention_capture.h"

#include <ATen/ATen.h>

#include "fmmformer/attention/fast_weight_reference.h"
#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer {

using at::Tensor;

std::vector<AttentionRecord> capture_attention(const Model& model, const ModelInputs& inputs) {
  at::NoGradGuard no_gradients;
  std::vector<AttentionRecord> records;
  const Pass pass{.on_attention = [&](const AttentionRecord& r) { records.push_back(r); }};
  model.forward(inputs, pass);
  return records;
}

namespace {

/// The matrix of one field alone. Attention is linear in v: with the identity for v, the double
/// reference gives the matrix itself, so there is no second formula that could disagree.
/// `attend`: v [1, N, 1, ..] -> the field's output.
template <typename Attend>
Tensor matrix_of(int64_t length, const Attend& attend) {
  const Tensor identity = at::eye(length, at::kDouble).view({1, length, 1, length});
  std::vector<Tensor> columns;
  for (const Tensor& block : identity.split(kMaxHeadDim, -1)) {
    columns.push_back(attend(block.contiguous()).flatten(0, 2));
  }
  return at::cat(columns, 1);
}

Tensor matrix_of(const AttentionInputs& head, const FmmOptions& options) {
  return matrix_of(head.q.size(1), [&](const Tensor& v) {
    AttentionInputs inputs = head;
    inputs.v = v;
    return fmm_attention_reference(inputs, {}, options);
  });
}

Tensor matrix_of(const AttentionInputs& head, const FastWeightField& field) {
  return matrix_of(head.q.size(1), [&](const Tensor& v) {
    return fast_weight_attention_reference(
        {.q = head.q, .k = head.k, .v = v, .beta = field.gate, .token_mask = head.token_mask},
        field.options);
  });
}

/// A weight of one head, [.., Dv] in double on the CPU; ones where there is none.
Tensor weight_of(const std::optional<Tensor>& weight, at::IntArrayRef full, int64_t head) {
  if (!weight) return at::ones(full, at::kDouble).select(-2, head);
  return weight->detach().to(at::kCPU, at::kDouble).expand(full).select(-2, head);
}

}  // namespace

AttentionMaps attention_maps(const AttentionRecord& record, int64_t batch_index, int64_t head) {
  at::NoGradGuard no_gradients;
  const auto own = [&](const Tensor& x) {
    return x.detach().narrow(0, batch_index, 1).narrow(2, head, 1).to(at::kCPU, at::kDouble);
  };
  AttentionInputs inputs{.q = own(record.inputs.q), .k = own(record.inputs.k)};
  if (record.inputs.token_mask) {
    inputs.token_mask = record.inputs.token_mask->narrow(0, batch_index, 1).to(at::kCPU);
  }
  const FmmOptions& options = record.options;
  const int64_t length = inputs.q.size(1), heads = record.inputs.q.size(2),
                channels = record.inputs.v.size(3);
  const int64_t kernels = std::ssize(options.feature_maps) + (record.fast ? 1 : 0);

  AttentionMaps maps;
  maps.near = at::zeros({length, length}, at::kDouble);
  if (options.window) {
    FmmOptions near = options;
    near.feature_maps.clear();
    maps.near = matrix_of(inputs, near);
  }
  std::vector<Tensor> far;
  if (record.fast) far.push_back(matrix_of(inputs, {own(record.fast->gate), record.fast->options}));
  for (const FeatureMap map : options.feature_maps) {
    FmmOptions one = options;
    one.window.reset();
    one.feature_maps = {map};
    far.push_back(matrix_of(inputs, one));
  }
  maps.far = far.empty() ? at::zeros({0, length, length}, at::kDouble) : at::stack(far);
  maps.near_weight = weight_of(record.weights.near_weight, {heads, channels}, head);
  maps.far_weight = weight_of(record.weights.far_weight, {kernels, heads, channels}, head);
  maps.blended = maps.near * maps.near_weight.mean() +
                 (maps.far * maps.far_weight.mean(1).view({kernels, 1, 1})).sum(0);
  return maps;
}

Tensor AttentionMaps::times(const Tensor& v) const {
  const Tensor values = v.to(at::kDouble);
  Tensor out = at::matmul(near, values) * near_weight;
  for (int64_t l = 0; l < far.size(0); ++l) out += at::matmul(far[l], values) * far_weight[l];
  return out;
}

}  // namespace fmmformer
