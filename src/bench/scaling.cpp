// SPDX-License-Identifier: Apache-2.0
#include "bench/scaling.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "bench/case_tensors.h"
#include "bench/gpu.h"
#include "bench/gpu_timing.h"
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

ScalingMethod softmax_with_matrix() {
  return {.name = "softmax with its N x N matrix", .attention = "softmax", .keeps_matrix = true};
}

AttentionCase scaling_case(const ScalingMethod& method, int64_t length, int64_t batch) {
  return {.name = method.name,
          .batch = batch,
          .length = length,
          .heads = 8,
          .head_dim = 32,
          .bandwidth = method.keeps_matrix ? length : method.bandwidth,
          .causal = true,
          .feature_maps = method.feature_maps,
          .dtypes = {c10::kFloat},
          .tags = {}};
}

ScalingPlan gpu_scaling_plan(const c10::Device& device) {
  ScalingPlan plan{.longest_run = 1, .device = device, .batch_tokens = 65536};
  plan.timing = {.warm_up_seconds = 0.02, .seconds = 0.1, .minimum_repeats = 10};
  return plan;
}

namespace {

/// Why the next length is not begun, or "" when it is.
std::string why_not(const ScalingMethod& method, const ScalingPlan& plan,
                    const std::vector<ScalingPoint>& points, int64_t length) {
  if (points.empty()) return "";
  const ScalingPoint& last = points.back();
  if (!last.failure.empty()) return "longer than what already failed";
  const double factor = static_cast<double>(length) / static_cast<double>(last.length);
  // The last run was that of a whole batch.
  const auto samples = static_cast<double>(plan.batch(length));
  const double expected =
      last.timing.median * samples * (method.is_softmax() ? factor * factor : factor);
  if (expected <= plan.longest_run) return "";
  return "a run would take about " + std::to_string(std::lround(expected)) + " s";
}

void measure_batch(ScalingPoint& point, const ScalingMethod& method, const ScalingPlan& plan,
                   int64_t batch) {
  // A dense band over all keys is softmax with its matrix.
  const Peer& softmax = peer_named(method.keeps_matrix ? "dense_near" : "sdpa");
  const AttentionFunction attention =
      method.is_softmax() ? AttentionFunction(softmax.run) : AttentionFunction(fmm_attention);
  AttentionCase one = scaling_case(method, point.length, batch);
  if (method.is_softmax()) one.layout = softmax.best_layout;
  const CaseTensors tensors = make_inputs(one, plan.dtype, /*seed=*/1, plan.device);
  const Work work = [&] { run_forward_backward(attention, tensors); };
  const bool on_cpu = plan.device.is_cpu();
  const Clock clock = on_cpu ? Clock(seconds_of) : event_clock(plan.device);
  point.timing = time_in_turns({&work, 1}, plan.timing, clock).front();
  point.timing = point.timing.per_run(static_cast<int>(batch));
  const int64_t peak = on_cpu ? peak_tensor_bytes(work) : peak_gpu_bytes(plan.device, work);
  point.peak_bytes = peak / batch;
}

void measure_point(ScalingPoint& point, const ScalingMethod& method, const ScalingPlan& plan) {
  for (int64_t batch = plan.batch(point.length); batch > 0; batch /= 2) {
    try {
      measure_batch(point, method, plan, batch);
      return;
    } catch (const c10::OutOfMemoryError&) {
      free_cached_gpu_memory();
    }
  }
  point.failure = "out of memory";
}

}  // namespace

std::vector<ScalingPoint> measure_scaling(const ScalingMethod& method, const ScalingPlan& plan,
                                          const std::function<void(int64_t length)>& progress) {
  std::vector<ScalingPoint> points;
  for (const int64_t length : plan.lengths) {
    ScalingPoint point{.length = length, .failure = why_not(method, plan, points, length)};
    if (point.failure.empty()) {
      progress(length);
      measure_point(point, method, plan);
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
