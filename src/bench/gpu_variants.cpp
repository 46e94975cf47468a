// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_variants.h"

#include <functional>
#include <utility>

#include "bench/gpu_timing.h"
#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer::bench {
namespace {

using Variants = std::vector<GpuVariant>;

void add(Variants& variants, std::string_view plain, std::string change,
         const std::function<void(AttentionCase&)>& apply) {
  const AttentionCase& base = case_named(plain);
  GpuVariant variant{.plain = base, .change = std::move(change), .changed = base};
  apply(variant.changed);
  variants.push_back(std::move(variant));
}

}  // namespace

std::vector<GpuVariant> gpu_variants() {
  Variants variants;
  for (const char* plain : {"gpu_wikitext", "gpu_listops", "gpu_copy", "gpu_medium",
                            "gpu_65536_r2_band20", "gpu_wide_heads"}) {
    const AttentionCase& base = case_named(plain);
    add(variants, plain, "with an odd length", [](auto& c) { --c.length; });
    add(variants, plain, "with a token mask", [](auto& c) { c.mask = MaskPattern::kRandom; });
    add(variants, plain, "with heads before tokens", [](auto& c) { c.layout = Layout::kBhnd; });
    if (base.near_dropout == 0)
      add(variants, plain, "with dropout", [](auto& c) { c.near_dropout = 0.1; });
    if (base.weights != WeightShape::kPerChannel) {
      add(variants, plain, "with weights per channel",
          [](auto& c) { c.weights = WeightShape::kPerChannel; });
    }
  }
  const auto channels = [&](const char* plain, int64_t head_dim) {
    add(variants, plain, "with heads of " + std::to_string(head_dim),
        [=](auto& c) { c.head_dim = head_dim; });
  };
  channels("gpu_medium", 48), channels("gpu_65536_r2_band20", 48);
  channels("gpu_wide_heads", 80), channels("gpu_wide_heads", 96);
  return variants;
}

std::optional<double> measure_gpu_variant(const GpuVariant& variant, c10::ScalarType dtype,
                                          const GpuBenchmarkOptions& options) {
  double times_plain = 0;
  const bool fits = measured_in_memory(options.device, [&] {
    const CaseTensors plain = make_inputs(variant.plain, dtype, kTimedSeed, options.device),
                      changed = make_inputs(variant.changed, dtype, kTimedSeed, options.device);
    const Work works[] = {[&] { run_forward_backward(fmm_attention, plain); },
                          [&] { run_forward_backward(fmm_attention, changed); }};
    const std::vector<Timing> graphs =
        time_graph_and_eager(works, {}, options.device, options.plan).graph;
    times_plain = graphs[1].median / graphs[0].median;
  });
  return fits ? std::optional(times_plain) : std::nullopt;
}

Bar variant_bar(const GpuVariant& variant, c10::ScalarType dtype,
                std::optional<double> times_plain) {
  return {.what = std::string(dtype_name(dtype)) + ": time of " + variant.plain.name + " " +
                  variant.change + " over that of the plain case",
          .measured = times_plain ? bar_number("%.2f x", *times_plain) : "no memory",
          .wanted = bar_number("<= %.1f x", kMostTimesPlain),
          .met = times_plain && *times_plain <= kMostTimesPlain};
}

}  // namespace fmmformer::bench
