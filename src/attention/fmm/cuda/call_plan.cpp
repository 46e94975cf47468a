// SPDX-License-Identifier: Apache-2.0
// Which kernels serve a call, and how it is cut into segments and passes.
#include <ATen/cuda/CUDAContextLight.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/fmm/cuda/call.h"
#include "attention/fmm/cuda/gpu_check.h"
#include "attention/fmm/cuda/tensor_views.h"
#include "attention/philox.h"

namespace fmmformer::cuda {
namespace {

constexpr int64_t kShortestSegment =
    4;  // chunks or steps; below, the passes that join segments are no longer small
constexpr int64_t kLongestHalo = 32;            // rows
constexpr int64_t kLongest = int64_t{1} << 30;  // the kernels count tokens in 32 bits

/// Rows beside a chunk for a band that reaches so far, by sixteen.
int halo_of(int reach) {
  return static_cast<int>((std::min<int64_t>(reach, kLongestHalo) + 15) / 16 * 16);
}

/// Signed feature maps can make a row sum nearly vanish, and whatever their rounding leaves is then
/// divided by it.
bool needs_precision(const Problem& problem, at::ScalarType type) {
  const FmmOptions& options = problem.options;
  const bool divides = options.normaliser == Normaliser::kRowSum || options.unit_features;
  return type != at::kBFloat16 || (divides && std::any_of(options.feature_maps.begin(),
                                                          options.feature_maps.end(), is_signed));
}

}  // namespace

Call::Call(const Problem& problem, const AttentionInputs& inputs, const BlendWeights& weights)
    : problem_(problem),
      inputs_(inputs),
      weights_(weights),
      guard_(inputs.q.device()),
      stream_(c10::cuda::getCurrentCUDAStream()),
      precise_(needs_precision(problem, inputs.q.scalar_type())) {
  check_build_for_gpu("fmm_attention");
  if (inputs.token_mask) mask_ = inputs.token_mask->contiguous();
  const cudaDeviceProp& device = *at::cuda::getCurrentDeviceProperties();
  const Gpu gpu{.shared_bytes = static_cast<int>(device.sharedMemPerBlockOptin),
                .reserved_bytes = static_cast<int>(device.reservedSharedMemPerBlock),
                .capability = 10 * device.major + device.minor};
  common_ = common_args();
  common_.walks = suitable_walks(args_of(everything_at_once(), /*keys_are_rows=*/false), gpu);
  better_in_fp32_ = (common_.element == Element::kFloat16 && fp32_has_better_walks(gpu)) ||
                    (common_.element == Element::kBFloat16 && lacks_room_for_roles(gpu));
  limits_ = pass_limits({.precise = precise_,
                         .head_dim = static_cast<int>(problem.head_dim),
                         .value_dim = static_cast<int>(problem.value_dim),
                         .maps = static_cast<int>(problem.feature_maps()),
                         .near = problem.options.window.has_value(),
                         .walks = common_.walks,
                         .shared_bytes = gpu.shared_bytes});
  cut(gpu);
  plan_passes(gpu);
  if (passes_.size() != 1) return;
  const SweepArgs args = args_of(passes_[0], /*keys_are_rows=*/false);
  gradient_segments_ = gradient_segments(args, gpu),
  forward_segments_ = forward_segments(args, gpu);
}

Pass Call::everything_at_once() const {
  return {.first_channel = 0,
          .channels = problem_.value_dim,
          .first_map = 0,
          .maps = static_cast<int>(problem_.feature_maps()),
          .near = problem_.options.window.has_value()};
}

Walks Call::suitable_walks(const SweepArgs& everything, const Gpu& gpu) const {
  if (problem_.feature_maps() > kMapsAtOnce || stages_tiles()) return Walks::kRoles;
  return fitting_walks(everything, gpu);
}

bool Call::fp32_has_better_walks(const Gpu& gpu) const {
  const auto contiguous_rows = [&](int64_t channels) {
    View rows;
    rows.row_stride = problem_.heads * channels, rows.aligned = channels % 4 == 0;
    return rows;
  };
  SweepArgs args = args_of(everything_at_once(), /*keys_are_rows=*/false);
  args.element = Element::kFloat32;
  args.q = args.k = contiguous_rows(problem_.head_dim);
  args.v = contiguous_rows(problem_.value_dim);
  return suitable_walks(args, gpu) != Walks::kRoles;
}

bool Call::lacks_room_for_roles(const Gpu& gpu) const {
  constexpr int kWideBytes = 163 * 1024;  // what wide heads may take, with one map at a time
  return !precise_ && common_.walks == Walks::kRoles && problem_.head_dim > 64 &&
         gpu.shared_bytes < kWideBytes;
}

void Call::cut(const Gpu& gpu) {
  const int64_t pairs = std::max<int64_t>(this->pairs(), 1), length = problem_.length;
  const int64_t most = std::max<int64_t>(length / (kShortestSegment * limits_.chunk), 1);
  const bool uncut = limits_.uncut_pairs > 0 && pairs >= limits_.uncut_pairs;
  segments_ = uncut ? 1 : std::clamp<int64_t>(limits_.blocks / pairs, 1, most);
  // Where a block has all of a pair, fp32's two sweeps are faster apart (ADR 24).
  const bool one_block =
      segments_ == 1 && common_.walks == Walks::kStrips && !common_.causal && !precise_;
  const int clusters = cluster_segments(common_, most, gpu);
  if (clusters > 0) segments_ = clusters;
  common_.clusters = clusters > 0 || one_block;
  TORCH_CHECK_VALUE(length <= kLongest, "fmm_attention: the length is ", length,
                    "; allowed on a GPU are up to ", kLongest);
  TORCH_CHECK_VALUE(pairs * segments_ <= std::numeric_limits<int>::max(), "fmm_attention: ", pairs,
                    " heads in all are more than one launch can hold; split the batch");
}

/// Whether the near field has a pass of its own, before those of the maps.
bool Call::near_goes_alone(const Gpu& gpu) const {
  if (!problem_.options.window || problem_.feature_maps() == 0) return false;
  if (stages_tiles()) return true;
  if (common_.walks != Walks::kRoles) return false;  // they fit, or would not have been chosen
  const Pass together = {
      .first_channel = 0,
      .channels = std::min<int64_t>(limits_.value_dim, problem_.value_dim),
      .first_map = 0,
      .maps = static_cast<int>(std::min<int64_t>(limits_.maps, problem_.feature_maps())),
      .near = true};
  return !has_room(args_of(together, /*keys_are_rows=*/false), gpu.shared_bytes);
}

void Call::plan_passes(const Gpu& gpu) {
  const int64_t maps = problem_.feature_maps();
  const bool near = problem_.options.window.has_value(), near_alone = near_goes_alone(gpu);
  for (int64_t channel = 0; channel < problem_.value_dim; channel += limits_.value_dim) {
    const int64_t channels = std::min<int64_t>(limits_.value_dim, problem_.value_dim - channel);
    const size_t before = passes_.size();
    if (near_alone || maps == 0) passes_.push_back({channel, channels, 0, 0, near});
    for (int64_t map = 0; map < maps; map += limits_.maps) {
      passes_.push_back({channel, channels, static_cast<int>(map),
                         static_cast<int>(std::min<int64_t>(limits_.maps, maps - map)),
                         near && !near_alone && map == 0});
    }
    passes_[before].first_of_block = passes_.back().last_of_block = true;
  }
  passes_.front().first = passes_.back().last = true;
}

bool Call::stages_tiles() const {
  const auto& window = problem_.options.window;
  return window && std::max(window->left, window->right) > kLongestHalo;
}

SweepArgs Call::common_args() const {
  const FmmOptions& options = problem_.options;
  SweepArgs args;
  args.element = element_of("fmm_attention", inputs_.q.scalar_type()), args.precise = precise_;
  args.batch = problem_.batch;
  args.length = static_cast<int>(problem_.length), args.heads = static_cast<int>(problem_.heads);
  args.head_dim = static_cast<int>(problem_.head_dim);
  args.all_channels = static_cast<int>(problem_.value_dim);
  args.q = view_of(inputs_.q), args.k = view_of(inputs_.k);
  if (mask_.defined()) args.token_mask = mask_.const_data_ptr<bool>();
  args.causal = options.causal;
  args.all_maps = static_cast<int>(problem_.feature_maps());
  args.unit_features = options.unit_features;
  args.normaliser = options.normaliser;
  args.fixed_norm = options.normaliser == Normaliser::kInvSqrtLength
                        ? static_cast<float>(std::sqrt(static_cast<double>(problem_.length)))
                        : 1.f;
  args.eps = static_cast<float>(options.eps),
  args.far_scale = static_cast<float>(options.far_scale);
  args.uniform_weights = is_uniform_over_channels(weights_.near_weight) &&
                         is_uniform_over_channels(weights_.far_weight);
  return args;
}

SweepArgs Call::args_of(const Pass& pass, bool keys_are_rows) const {
  const FmmOptions& options = problem_.options;
  SweepArgs args = common_;
  args.value_dim = static_cast<int>(pass.channels);
  args.first_channel = static_cast<int>(pass.first_channel);
  args.v = view_of(inputs_.v, pass.first_channel);
  if (pass.near) {
    args.has_near = true;
    args.left = static_cast<int>(options.window->left),
    args.right = static_cast<int>(options.window->right);
    args.near_scale = static_cast<float>(*options.near_scale);
    if (options.near_dropout > 0) {
      args.keep_factor = static_cast<float>(near_dropout_factor(options.near_dropout));
      args.drop_below = near_dropout_threshold(options.near_dropout);
      args.dropout_seed = inputs_.dropout_seed->const_data_ptr<int64_t>();
    }
    args.halo_before = halo_of(keys_are_rows ? args.right : args.left);
    args.halo_after = halo_of(keys_are_rows ? args.left : args.right);
    args.stages_tiles = stages_tiles();
  }
  args.first_map = pass.first_map, args.maps = pass.maps;
  std::copy_n(options.feature_maps.begin() + pass.first_map, pass.maps, args.feature_maps);
  args.near_weight = weight_view(weights_.near_weight, pass.first_channel);
  args.far_weight = weight_view(weights_.far_weight, pass.first_channel);
  args.segments = static_cast<int>(segments_), args.unit = static_cast<int>(limits_.chunk);
  return args;
}

}  // namespace fmmformer::cuda
