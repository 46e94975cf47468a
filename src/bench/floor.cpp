// SPDX-License-Identifier: Apache-2.0
#include "bench/floor.h"

#include <algorithm>

namespace fmmformer::bench {
namespace {

/// sum over i in 0..length-1 of min(i, reach).
int64_t keys_on_one_side(int64_t length, int64_t reach) {
  const int64_t full = std::min(reach, length - 1);
  return full * (full + 1) / 2 + (length - 1 - full) * full;
}

}  // namespace

int64_t band_entries(const AttentionCase& attention_case) {
  const FmmOptions options = options_of(attention_case);
  if (!options.window) return 0;
  const int64_t length = attention_case.length;
  const int64_t right = options.causal ? 0 : options.window->right;
  return length + keys_on_one_side(length, options.window->left) + keys_on_one_side(length, right);
}

double floor_operations(const AttentionCase& attention_case, Pass pass) {
  const AttentionCase& c = attention_case;
  const auto d = static_cast<double>(c.head_dim);
  const auto dv = static_cast<double>(c.channels());
  const auto entries = static_cast<double>(band_entries(c));
  const double far_rows =
      static_cast<double>(c.feature_maps.size()) * static_cast<double>(c.length);
  double per_head = far_rows * 4 * d * dv + entries * 2 * (d + dv);
  if (pass == Pass::kForwardBackward) {
    per_head += far_rows * (c.causal ? 10 : 8) * d * dv + entries * (6 * d + 4 * dv);
  }
  return per_head * static_cast<double>(c.batch * c.heads);
}

double floor_bytes(const AttentionCase& attention_case, c10::ScalarType dtype, Pass pass) {
  const AttentionCase& c = attention_case;
  const int64_t forward = 2 * c.head_dim + 2 * c.channels();
  const int64_t backward = 4 * c.head_dim + 3 * c.channels();
  const int64_t per_row = pass == Pass::kForward ? forward : forward + backward;
  return static_cast<double>(c.batch * c.length * c.heads * per_row) *
         static_cast<double>(c10::elementSize(dtype));
}

double floor_seconds(const AttentionCase& attention_case, Pass pass, double product_rate) {
  return floor_operations(attention_case, pass) / product_rate;
}

}  // namespace fmmformer::bench
