// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/attention_cases.h"

namespace fmmformer::bench {

enum class Pass { kForward, kForwardBackward };

/// The floating-point operations of the exact method, and nothing else: what a kernel would need
/// that runs its products at the rate of a large matrix product and everything besides for free.
/// Per row and head, with r feature maps and w band entries: forward r 4 D Dv + 2 w (D + Dv);
/// backward r (10 causal, 8 two-sided) D Dv + w (6 D + 4 Dv).
double floor_operations(const AttentionCase& attention_case, Pass pass);

/// The same in seconds, at a rate in operations per second.
double floor_seconds(const AttentionCase& attention_case, Pass pass, double product_rate);

/// The bytes that forward reads and writes when each tensor crosses the memory once (q, k, v, out),
/// and with backward those too (q, k, v, the output's gradient, dq, dk, dv): what binds a GPU whose
/// arithmetic is free.
double floor_bytes(const AttentionCase& attention_case, c10::ScalarType dtype, Pass pass);

/// Band entries of all rows of one head; rows near the ends have fewer.
int64_t band_entries(const AttentionCase& attention_case);

}  // namespace fmmformer::bench
