// SPDX-License-Identifier: Apache-2.0
// The border between torch's dispatcher and us: how options cross it.
//
// Public operators spell every option out (Python users read that schema). The operators behind
// them, which only we call, take the same options packed into two short lists, so that the nine
// options are listed once and not five times.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <tuple>
#include <vector>

#include "attention/packed_options.h"
#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer {

inline constexpr const char* kOptionsSchema =
    "*, int[]? window, bool causal, str[] feature_maps, bool unit_features, str normaliser, "
    "float eps, float? near_scale, float far_scale, float near_dropout";

/// The C++ types of kOptionsSchema, in its order. `Ops<SchemaTypes...>` turns one such list into
/// many signatures.
template <template <typename...> typename Ops>
using WithSchemaTypes = Ops<at::OptionalIntArrayRef, bool, std::vector<std::string>, bool,
                            std::string, double, std::optional<double>, double, double>;

/// Throws c10::ValueError in the name of `function`.
FmmOptions options_from_schema(const char* function, at::OptionalIntArrayRef window, bool causal,
                               const std::vector<std::string>& feature_maps, bool unit_features,
                               const std::string& normaliser, double eps,
                               std::optional<double> near_scale, double far_scale,
                               double near_dropout);

/// Throws c10::ValueError in the name of `function`.
std::vector<FeatureMap> feature_maps_from_names(const char* function,
                                                const std::vector<std::string>& names);

PackedOptions pack_options(const FmmOptions& options);
FmmOptions unpack_options(at::IntArrayRef codes, at::ArrayRef<double> scales);

/// What forward returns: the output and what backward (or decoding) needs beside the inputs.
struct ForwardResult {
  at::Tensor out;          // [B, N, H, Dv]
  at::Tensor log_sum_exp;  // [B, H, N] of the band, accumulation type; empty without a near field
  at::Tensor normalisers;  // [B, H, r, N]; empty unless they vary by row (row_sum)
  // [B, H, r, D, Dv] and [B, H, r, D]: two-sided the sums over all keys; causal what Keep says.
  at::Tensor far_sums, far_key_sums;
};

/// What a causal forward is to leave in far_sums and far_key_sums.
enum class Keep : int64_t {
  kNothing,
  kState,        // the sums after the last token
  kForBackward,  // whatever spares the backend's backward work, in a shape of its own; or nothing
};

/// The operators behind the public one, through the dispatcher: each backend registers its own.
ForwardResult dispatch_forward(const AttentionInputs& inputs, const BlendWeights& weights,
                               const FmmOptions& options, Keep keep);

}  // namespace fmmformer
