// SPDX-License-Identifier: Apache-2.0
#include "bench/fast_weight_peers.h"

#include <ATen/ATen.h>

#include "bench/torch_features.h"

namespace fmmformer::bench {
namespace {

using at::Tensor;

Tensor features(const Tensor& x, const FastWeightOptions& options) {
  return torch_features(x, options.feature_map, {.unit_features = options.unit_features});
}

Tensor divisor(const Tensor& sums, const FastWeightOptions& options) {
  return torch_normaliser(sums, options.feature_map, /*length=*/1, {.eps = options.eps});
}

/// The two gates: u = write v - erase p.
struct Gates {
  Tensor write, erase;
};

Gates gates_of(const Tensor& beta, const Tensor& overlap, const FastWeightOptions& options) {
  if (options.normaliser != FastWeightNormaliser::kOutputAndKey) return {beta, beta};
  const Tensor norm = divisor(overlap, options);
  const Tensor write = beta * overlap / norm;
  return {write, write / norm};
}

Tensor row_product(const Tensor& a, const Tensor& b) { return (a * b).sum(-1, true); }

}  // namespace

Tensor plain_torch_fast_weight(const FastWeightInputs& inputs, const FastWeightOptions& options) {
  const int64_t batch = inputs.q.size(0), length = inputs.q.size(1);
  const Tensor live =
      inputs.token_mask.value_or(at::ones({batch, length}, at::kBool)).unsqueeze(-1).unsqueeze(-1);
  const auto emptied = [&](const Tensor& x) { return x.masked_fill(~live, 0); };
  const auto keys = emptied(features(emptied(inputs.k), options)).unbind(1),
             queries = emptied(features(emptied(inputs.q), options)).unbind(1),
             values = emptied(inputs.v).unbind(1),
             betas = emptied(inputs.beta.unsqueeze(-1)).unbind(1), lives = live.unbind(1);
  const int64_t heads = inputs.q.size(2), head_dim = inputs.q.size(3);
  Tensor memory = at::zeros({batch, heads, head_dim, inputs.v.size(3)}, inputs.q.options());
  Tensor key_sums = at::zeros({batch, heads, head_dim}, inputs.q.options());
  Tensor started = at::zeros({batch, 1, 1}, at::kBool);
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < length; ++t) {
    const Tensor &key = keys[t], &query = queries[t];
    const Tensor overlap = row_product(key, key_sums).masked_fill(~started, 1);
    const Gates gates = gates_of(betas[t], overlap, options);
    const Tensor read = at::matmul(key.unsqueeze(-2), memory).squeeze(-2);
    const Tensor written = gates.write * values[t] - gates.erase * read;
    memory = memory + key.unsqueeze(-1) * written.unsqueeze(-2);
    key_sums = key_sums + key;
    started = started | lives[t];
    Tensor out = at::matmul(query.unsqueeze(-2), memory).squeeze(-2) * options.far_scale;
    if (options.normaliser != FastWeightNormaliser::kNone)
      out = out / divisor(row_product(query, key_sums), options);
    rows.push_back(out.masked_fill(~lives[t], 0));
  }
  return at::stack(rows, 1);
}

Tensor chunk_loop(const FastWeightInputs& inputs, const FastWeightOptions& options, int64_t chunk) {
  const int64_t length = inputs.q.size(1), missing = (chunk - length % chunk) % chunk;
  // [B, H, N, D], padded with keys and gates of 0, which write nothing.
  const auto prepared = [&](const Tensor& x) {
    const Tensor heads_first = x.transpose(1, 2);
    return missing == 0 ? heads_first : at::constant_pad_nd(heads_first, {0, 0, 0, missing});
  };
  const auto in_chunks = [&](const Tensor& x) { return x.unflatten(2, {-1, chunk}); };
  const Tensor keys = prepared(features(inputs.k, options));
  Tensor queries = prepared(features(inputs.q, options));
  Tensor overlap;
  if (options.normaliser != FastWeightNormaliser::kNone) {
    const Tensor key_sums = keys.cumsum(2);
    queries = queries / divisor(row_product(queries, key_sums), options);
    if (options.normaliser == FastWeightNormaliser::kOutputAndKey) {
      const Tensor before = row_product(keys, key_sums - keys);
      overlap = at::cat({at::ones_like(before.slice(2, 0, 1)), before.slice(2, 1)}, 2);
    }
  }
  const Gates gates = gates_of(prepared(inputs.beta.unsqueeze(-1)), overlap, options);

  const Tensor x = in_chunks(keys), y = in_chunks(queries * options.far_scale);
  const Tensor x_t = x.transpose(-1, -2);
  const Tensor lower = (in_chunks(gates.erase) * at::matmul(x, x_t)).tril(-1);
  const Tensor inside = at::matmul(y, x_t).tril();
  const Tensor right =
      at::cat({in_chunks(gates.write * prepared(inputs.v)), in_chunks(gates.erase * keys)}, -1);
  const Tensor solved = at::linalg_solve_triangular(lower, right, /*upper=*/false, /*left=*/true,
                                                    /*unitriangular=*/true);
  const int64_t value_dim = inputs.v.size(3);
  const Tensor from_values = solved.slice(-1, 0, value_dim),
               from_keys = solved.slice(-1, value_dim);
  Tensor memory = at::zeros({x.size(0), x.size(1), x.size(4), value_dim}, x.options());
  std::vector<Tensor> rows;
  for (int64_t c = 0; c < x.size(2); ++c) {
    const Tensor written = from_values.select(2, c) - at::matmul(from_keys.select(2, c), memory);
    rows.push_back(at::matmul(y.select(2, c), memory) + at::matmul(inside.select(2, c), written));
    memory = memory + at::matmul(x_t.select(2, c), written);
  }
  return at::cat(rows, 2).slice(2, 0, length).transpose(1, 2);
}

}  // namespace fmmformer::bench
