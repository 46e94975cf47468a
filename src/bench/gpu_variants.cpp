// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_variants.h"

#include <cstdio>
#include <functional>
#include <utility>

#include "bench/gpu.h"
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

double measure_gpu_variant(const GpuVariant& variant, c10::ScalarType dtype,
                           const GpuBenchmarkOptions& options) {
  const OwnStream stream(options.device);
  const CaseTensors plain = make_inputs(variant.plain, dtype, kTimedSeed, options.device),
                    changed = make_inputs(variant.changed, dtype, kTimedSeed, options.device);
  const Work works[] = {[&] { run_forward_backward(fmm_attention, plain); },
                        [&] { run_forward_backward(fmm_attention, changed); }};
  const std::vector<Timing> graphs =
      time_graph_and_eager(works, {}, options.device, options.plan).graph;
  free_cached_gpu_memory();
  return graphs[1].median / graphs[0].median;
}

Bar variant_bar(const GpuVariant& variant, c10::ScalarType dtype, double times_plain) {
  constexpr double kMost = 1.3;
  char measured[32];
  std::snprintf(measured, sizeof measured, "%.2f x", times_plain);
  return {.what = std::string(dtype_name(dtype)) + ": " + variant.plain.name + " " +
                  variant.change + " over itself",
          .measured = measured,
          .wanted = "<= 1.3 x",
          .met = times_plain <= kMost};
}

}  // namespace fmmformer::bench
