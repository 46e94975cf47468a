// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "bench/case_tensors.h"
#include "bench/fast_weight_cases.h"

namespace fmmformer::bench {

/// One number held against what it may be at most.
struct Check {
  std::string tensor;     // out, d_q, d_k, d_v, d_near_weight, d_far_weight, d_beta
  std::string_view rule;  // kRelativeRms, kTwicePlainTorch or kDeadTokens
  double error = 0;
  double allowed = 0;

  bool passed() const { return error <= allowed; }  // false for NaN
  double share() const;                             // of the allowance; 1 and below passes
};

inline constexpr std::string_view kRelativeRms = "relative RMS";
inline constexpr std::string_view kTwicePlainTorch = "largest, 2x plain torch";
inline constexpr std::string_view kDeadTokens = "largest at dead tokens";

struct CaseReport {
  std::string name;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<Check> checks = {};
  double seconds = 0;

  bool passed() const;
  const Check& worst() const;  // the one nearest to, or farthest beyond, its allowance
};

/// Holds `attention` (the operator unless told) against the double reference on the same rounded
/// inputs, per returned tensor:
///  - the relative RMS error against a fixed bar per type, for 16 tokens or more and more than one
///  visible key;
///  - the largest error against twice that of plain torch in the same type (fp64: only where the
///  first is not);
///  - output and gradients of dead tokens against 0, exactly.
/// A blend weight's gradient is a sum over tokens, whose terms may cancel: before a case fails,
/// errors of those are measured against what such terms add up to with random signs.
/// The operator runs on `device`; everything it is held against, on the CPU.
CaseReport verify_case(const AttentionCase& attention_case, c10::ScalarType dtype,
                       uint64_t seed = 1, const c10::Device& device = c10::kCPU);
CaseReport verify_case(const AttentionCase& attention_case, c10::ScalarType dtype, uint64_t seed,
                       const AttentionFunction& attention, const c10::Device& device = c10::kCPU);

/// The same for fast-weight attention.
CaseReport verify_case(const FastWeightCase& one, c10::ScalarType dtype, uint64_t seed = 1,
                       const c10::Device& device = c10::kCPU);
CaseReport verify_case(const FastWeightCase& one, c10::ScalarType dtype, uint64_t seed,
                       const FastWeightFunction& attention, const c10::Device& device = c10::kCPU);

}  // namespace fmmformer::bench
