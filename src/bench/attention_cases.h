// SPDX-License-Identifier: Apache-2.0
// The named cases of attention: one list serves tests, gradients, timing and `fmmformer verify`.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>
#include <vector>

#include "fmmformer/attention/options.h"

namespace fmmformer::bench {

/// The shape of near_weight; far_weight has one more dimension in front, for the feature maps.
enum class WeightShape {
  kNone,        // no weights given: both are 1
  kScalar,      // []
  kPerHead,     // [heads, 1]
  kPerChannel,  // [heads, value_dim]
};

/// Which tokens are dead. Dead tokens hold NaN and infinities: none of it may reach a result.
enum class MaskPattern {
  kNone,      // no mask given
  kLeft,      // padding in front, of a different length in each batch entry
  kRight,     // padding behind
  kInterior,  // a hole in the middle
  kRandom,    // every third token or so
  kAllDead,   // the first batch entry has no real token at all
  kQuarter,   // padding behind, a quarter of every sequence
};

/// How q, k and v lie in memory; the operator always sees them as [batch, length, heads, dim].
enum class Layout { kBnhd, kBhnd };

enum class CaseTag {
  kVerify,       // small enough for the dense double reference
  kVerifyOnGpu,  // of a size that a GPU walks otherwise than small ones; not on a CPU, and quick
  kQuick,        // part of `verify --quick`
  kPaper,        // a shape of the paper's experiments, scaled down
  kTiming,       // a row of `bench attention`
  kVariant,      // timed as a ratio to kPlainCase (`bench attention --variants`)
  kGpu,          // a row of `bench attention --device cuda`
};

/// What a case may take on an H200: forward and backward in bf16, as a replayed graph. In fp32 it
/// may take kFp32Factor times as long, since each product is three. fp16 has no limit.
struct GpuLimit {
  double seconds = 0;
  int64_t peak_bytes = 0;  // beyond the inputs, in bf16; 0: no limit
};
inline constexpr double kFp32Factor = 4;

inline constexpr std::string_view kPlainCase = "causal_2048_r3_band30";

struct AttentionCase {
  std::string name;
  int64_t batch = 2;
  int64_t length = 97;
  int64_t heads = 2;
  int64_t head_dim = 16;
  int64_t value_dim = 0;  // 0: like head_dim
  int64_t bandwidth = 5;  // the paper's: |i - j| < bandwidth; 0 = no near field
  std::optional<Window> window = std::nullopt;  // instead of bandwidth
  bool causal = true;
  std::vector<FeatureMap> feature_maps = {FeatureMap::kElu, FeatureMap::kEluFlip};
  bool unit_features = false;
  Normaliser normaliser = Normaliser::kRowSum;
  double eps = 1e-6;
  std::optional<double> near_scale = std::nullopt;
  double far_scale = 1.0;
  WeightShape weights = WeightShape::kPerHead;
  MaskPattern mask = MaskPattern::kNone;
  double near_dropout = 0.0;
  Layout layout = Layout::kBnhd;
  bool shared_key_heads = false;  // k and v have one head, expanded with stride 0
  // Two queries have this and its negative in all channels, if it is not 0: elu, or elu_flip, makes
  // next to nothing of them.
  double extreme_query = 0.0;
  std::vector<c10::ScalarType> dtypes = {c10::kDouble, c10::kFloat, c10::kBFloat16, c10::kHalf};
  std::vector<CaseTag> tags = {CaseTag::kVerify, CaseTag::kQuick};
  std::optional<GpuLimit> gpu_limit = std::nullopt;

  int64_t channels() const { return value_dim == 0 ? head_dim : value_dim; }
  bool has_tag(CaseTag tag) const;
};

/// Builds the list, and parts of it: what only a GPU verifies, the paper's shapes, what is timed on
/// a CPU, and on a GPU. Call attention_cases() instead, which keeps it.
std::vector<AttentionCase> make_attention_cases();
std::vector<AttentionCase> make_gpu_verify_cases();
std::vector<AttentionCase> make_paper_cases();
std::vector<AttentionCase> make_timing_cases();
std::vector<AttentionCase> make_gpu_cases();

/// All cases, in the order in which they are shown. Names are unique.
const std::vector<AttentionCase>& attention_cases();

std::vector<AttentionCase> cases_with_tag(CaseTag tag);

/// The case called `name`. Throws std::invalid_argument that names what comes near.
const AttentionCase& case_named(std::string_view name);

/// What the operator is told, tensors aside.
FmmOptions options_of(const AttentionCase& attention_case);

/// "1x2048x8x64 causal 3+30": batch x length x heads x head_dim, then feature maps + bandwidth.
std::string shape_text(const AttentionCase& attention_case);

/// fp64, fp32, bf16, fp16. The second throws std::invalid_argument for another name.
std::string_view dtype_name(c10::ScalarType dtype);
c10::ScalarType dtype_from_name(std::string_view name);

}  // namespace fmmformer::bench
