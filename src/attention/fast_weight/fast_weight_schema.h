// SPDX-License-Identifier: Apache-2.0
// The border between torch's dispatcher and us: how options cross it. Spelled out in the public
// operators, packed in those behind them (as fmm/fmm_schema.h).
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "attention/fmm/fmm_schema.h"
#include "fmmformer/attention/fast_weight_attention.h"

namespace fmmformer {

inline constexpr const char* kFastWeightTensorsSchema =
    "Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? token_mask";
inline constexpr const char* kFastWeightOptionsSchema =
    "*, str feature_map, bool unit_features, str normaliser, float eps, float far_scale";

/// The C++ types of kFastWeightOptionsSchema, in its order.
template <template <typename...> typename Ops>
using WithFastWeightSchemaTypes = Ops<std::string, bool, std::string, double, double>;

/// Throws c10::ValueError, in the name of `function`, for a name that is none.
FastWeightNormaliser fast_weight_normaliser_from_name(const char* function,
                                                      const std::string& name);

/// Throws c10::ValueError in the name of `function`.
FastWeightOptions fast_weight_options_from_schema(const char* function,
                                                  const std::string& feature_map,
                                                  bool unit_features, const std::string& normaliser,
                                                  double eps, double far_scale);

PackedOptions pack_options(const FastWeightOptions& options);
FastWeightOptions unpack_fast_weight_options(at::IntArrayRef codes, at::ArrayRef<double> scales);

/// Forward keeps its state every so many tokens, and after the last: backward starts from them.
inline constexpr int64_t kTokensBetweenStates = 512;

/// What forward leaves besides its result.
enum class Kept : int64_t {
  kNothing,
  kStates,
  kWalk,  // the states, and for narrow heads what its walk had of every chunk: on GPUs
};

/// Heads of so many channels of keys and of values are narrow: walking through their chunks once
/// more would take backward longer than reading what forward left.
inline constexpr int64_t kNarrowHead = 16;
/// Numbers that the walk leaves for sixteen tokens (cuda/sweep.h says which).
inline constexpr int64_t kWalkChunk = 16;
inline constexpr int64_t kWalkNumbers = 2 * 16 * 16 + 4 * 16 + 16;

/// What forward returns. The states are those of every pair of batch entry and head in turn; empty
/// unless asked for.
struct FastWeightForward {
  at::Tensor out;       // [B, N, H, Dv]
  at::Tensor memories;  // [B H states, D, Dv], accumulation type
  at::Tensor key_sums;  // [B H states, D]
  at::Tensor walk;      // [B H chunks kWalkNumbers]
};
FastWeightForward dispatch_forward(const FastWeightInputs& inputs, const FastWeightOptions& options,
                                   Kept kept);

}  // namespace fmmformer
