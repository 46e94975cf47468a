// SPDX-License-Identifier: Apache-2.0
#include "bench/scaling.h"

#include <cmath>

#include "bench/case_tensors.h"
#include "bench/memory.h"
#include "bench/peers.h"

namespace fmmformer::bench {

std::vector<ScalingMethod> scaling_methods() {
  using enum FeatureMap;
  return {{"softmax", "softmax", {}, 0},
          {"linear (1 kernel)", "linear", {kElu}, 0},
          {"2 kernels", "linear", {kElu, kEluFlip}, 0},
          {"3 kernels", "linear", {kElu, kEluFlip, kTanh1}, 0},
          {"FMM: 3 kernels + band 30", "fmm", {kElu, kEluFlip, kTanh1}, 30}};
}

AttentionCase scaling_case(const ScalingMethod& method, int64_t length) {
  return {.name = method.name,
          .batch = 1,
          .length = length,
          .heads = 8,
          .head_dim = 32,
          .bandwidth = method.bandwidth,
          .causal = true,
          .feature_maps = method.feature_maps,
          .dtypes = {c10::kFloat},
          .tags = {}};
}

std::vector<ScalingPoint> measure_scaling(const ScalingMethod& method, const ScalingPlan& plan,
                                          const std::function<void(int64_t length)>& progress) {
  const Peer& softmax = peer_named("sdpa");
  const AttentionFunction attention =
      method.is_softmax() ? AttentionFunction(softmax.run) : AttentionFunction(fmm_attention);
  std::vector<ScalingPoint> points;
  for (const int64_t length : plan.lengths) {
    ScalingPoint point{.length = length};
    if (!points.empty() && points.back().failure.empty()) {
      const double factor = static_cast<double>(length) / static_cast<double>(points.back().length);
      const double expected =
          points.back().timing.median * (method.is_softmax() ? factor * factor : factor);
      if (expected > plan.longest_run) {
        point.failure = "a run would take about " + std::to_string(std::lround(expected)) + " s";
      }
    } else if (!points.empty()) {
      point.failure = "longer than what already took too long";
    }
    if (point.failure.empty()) {
      progress(length);
      CaseTensors tensors = make_inputs(scaling_case(method, length), c10::kFloat, /*seed=*/1);
      if (method.is_softmax()) tensors = in_layout(tensors, softmax.best_layout);
      const std::function<void()> work = [&] { run_forward_backward(attention, tensors); };
      point.timing = time_in_turns({&work, 1}, plan.timing).front();
      point.peak_bytes = peak_tensor_bytes(work);
    }
    points.push_back(std::move(point));
  }
  return points;
}

double growth_exponent(const std::vector<ScalingPoint>& points) {
  const ScalingPoint* last = nullptr;
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    if (!point->failure.empty()) continue;
    if (last == nullptr) {
      last = &*point;
    } else if (last->length >= 4 * point->length) {
      return std::log(last->timing.median / point->timing.median) /
             std::log(static_cast<double>(last->length) / static_cast<double>(point->length));
    }
  }
  return 0;
}

}  // namespace fmmformer::bench
