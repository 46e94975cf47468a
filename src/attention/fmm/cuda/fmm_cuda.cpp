// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: tensors to sweeps, and how the work is cut into segments and passes.
//
// Everything runs on the current stream and device, allocates from torch's allocator alone and
// never waits for the GPU, so that a CUDA graph can hold it. How the work is cut depends on the
// shape alone: the sums are the same bits on every run.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "attention/fmm/cuda/tensor_views.h"
#include "attention/fmm/fmm_schema.h"
#include "attention/philox.h"
#include "attention/problem.h"

namespace fmmformer {
namespace {

using at::Tensor;
using cuda::PassLimits, cuda::Scan, cuda::States, cuda::StateSource, cuda::SweepArgs, cuda::Walks;
using OptionalTensor = std::optional<Tensor>;
using Tensors5 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr int64_t kShortestSegment =
    4;  // chunks or steps; below, the passes that join segments are no longer small
constexpr int64_t kSegmentsToSum = 8;  // a sweep adds up so many states by itself; more get a scan
constexpr int64_t kLongestHalo = 32;   // rows
constexpr int64_t kLongest = int64_t{1} << 30;  // the kernels count tokens in 32 bits

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// Channels [first, ...) of a tensor.
cuda::View view_of(const Tensor& tensor, int64_t first = 0) {
  const int64_t size = tensor.element_size();
  char* data = static_cast<char*>(tensor.data_ptr()) + first * size;
  bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int d = 0; d < 3; ++d) aligned &= tensor.stride(d) * size % 16 == 0;
  return {data, tensor.stride(0), tensor.stride(1), tensor.stride(2), aligned};
}

/// The weight's own shape as [maps, heads, channels], for its gradient.
cuda::WeightGradient gradient_view(const OptionalTensor& weight, const Tensor& gradient) {
  if (!weight || gradient.numel() == 0) return {};
  const auto size = [&](int64_t from_the_end) {
    return weight->dim() >= from_the_end ? weight->size(-from_the_end) : 1;
  };
  return {gradient.data_ptr(), cuda::weight_type(gradient.scalar_type()), size(3), size(2),
          size(1)};
}

/// Signed feature maps can make a row sum nearly vanish, and whatever their rounding leaves is then
/// divided by it.
bool needs_precision(const Problem& problem, cuda::Element element) {
  const FmmOptions& options = problem.options;
  const bool divides = options.normaliser == Normaliser::kRowSum || options.unit_features;
  return element != cuda::Element::kBFloat16 ||
         (divides &&
          std::any_of(options.feature_maps.begin(), options.feature_maps.end(), is_signed));
}

/// One pass over the sequence: a block of v's channels, some feature maps, perhaps the near field.
struct Pass {
  int64_t first_channel, channels;
  int first_map, maps;
  bool near;
  bool first_of_block, last_of_block;  // among the passes over the same channels
  bool first, last;
};

class Call {
 public:
  Call(const Problem& problem, const AttentionInputs& inputs, const BlendWeights& weights)
      : problem_(problem),
        inputs_(inputs),
        weights_(weights),
        guard_(inputs.q.device()),
        stream_(c10::cuda::getCurrentCUDAStream()),
        element_(cuda::element_of("fmm_attention", inputs.q.scalar_type())),
        precise_(needs_precision(problem, element_)),
        floats_(inputs.q.options().dtype(at::kFloat)) {
    if (inputs.token_mask) mask_ = inputs.token_mask->contiguous();
    const cudaDeviceProp& device = *at::cuda::getCurrentDeviceProperties();
    const int shared_bytes = static_cast<int>(device.sharedMemPerBlockOptin);
    const cuda::Gpu gpu{shared_bytes, 10 * device.major + device.minor};
    walks_ = fitting_walks(gpu);
    limits_ = cuda::pass_limits({.precise = precise_,
                                 .head_dim = static_cast<int>(problem.head_dim),
                                 .value_dim = static_cast<int>(problem.value_dim),
                                 .maps = static_cast<int>(problem.feature_maps()),
                                 .near = problem.options.window.has_value(),
                                 .walks = walks_,
                                 .shared_bytes = shared_bytes});
    cut();
    plan_passes();
    if (passes_.size() == 1)
      gradient_segments_ = cuda::gradient_segments(args_of(passes_[0], false), gpu);
  }

  Tensors5 forward(Keep keep);
  Tensors5 backward(const Tensor& grad_out, const ForwardResult& saved);

 private:
  /// What backward returns, and what its sweeps hand on.
  struct Gradients {
    Tensor q, k, v, near_weight, far_weight;
    Tensor row_dots, records, weight_sums;
    Tensor partial_q, partial_k, partial_v;  // of several passes
  };

  // Two-sided far fields need sums over all segments, causal ones over those before.
  bool shares_states() const {
    return problem_.feature_maps() > 0 && (!problem_.options.causal || segments_ > 1);
  }

  // A block that has all of a sequence's strips makes a two-sided far field's sums by itself.
  bool sums_keys_first() const {
    return shares_states() &&
           (problem_.options.causal || segments_ > 1 || walks_ != Walks::kStrips);
  }

  Walks fitting_walks(const cuda::Gpu& gpu) const {
    const int64_t maps = problem_.feature_maps();
    if (maps > cuda::kMapsAtOnce || stages_tiles()) return Walks::kRoles;
    return cuda::fitting_walks(args_of({.first_channel = 0,
                                        .channels = problem_.value_dim,
                                        .first_map = 0,
                                        .maps = static_cast<int>(maps),
                                        .near = problem_.options.window.has_value()},
                                       /*keys_are_rows=*/false),
                               gpu);
  }

  void cut() {
    const int64_t pairs = std::max<int64_t>(problem_.batch * problem_.heads, 1),
                  length = problem_.length;
    const int64_t most = std::max<int64_t>(length / (kShortestSegment * limits_.chunk), 1);
    const bool uncut = limits_.uncut_pairs > 0 && pairs >= limits_.uncut_pairs;
    segments_ = uncut ? 1 : std::clamp<int64_t>(limits_.blocks / pairs, 1, most);
    TORCH_CHECK_VALUE(length <= kLongest, "fmm_attention: the length is ", length,
                      "; allowed on a GPU are up to ", kLongest);
    TORCH_CHECK_VALUE(pairs * segments_ <= std::numeric_limits<int>::max(),
                      "fmm_attention: ", pairs,
                      " heads in all are more than one launch can hold; split the batch");
  }

  void plan_passes() {
    const int64_t maps = problem_.feature_maps();
    const bool near = problem_.options.window.has_value();
    const bool near_alone = near && maps > 0 && stages_tiles();
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

  bool stages_tiles() const {
    const auto& window = problem_.options.window;
    return window && std::max(window->left, window->right) > kLongestHalo;
  }

  SweepArgs args_of(const Pass& pass, bool keys_are_rows) const {
    const FmmOptions& options = problem_.options;
    SweepArgs args;
    args.element = element_, args.precise = precise_, args.walks = walks_;
    args.batch = problem_.batch;
    args.length = static_cast<int>(problem_.length), args.heads = static_cast<int>(problem_.heads);
    args.head_dim = static_cast<int>(problem_.head_dim),
    args.value_dim = static_cast<int>(pass.channels);
    args.first_channel = static_cast<int>(pass.first_channel);
    args.all_channels = static_cast<int>(problem_.value_dim);
    args.q = view_of(inputs_.q), args.k = view_of(inputs_.k),
    args.v = view_of(inputs_.v, pass.first_channel);
    if (mask_.defined()) args.token_mask = mask_.const_data_ptr<bool>();
    if (pass.near) {
      args.has_near = true;
      args.left = static_cast<int>(options.window->left),
      args.right = static_cast<int>(options.window->right);
      args.near_scale = static_cast<float>(*options.near_scale);
      if (options.near_dropout > 0) {
        args.keep_factor = static_cast<float>(1.0 / (1.0 - options.near_dropout));
        args.drop_below = dropout_threshold(options.near_dropout);
        args.dropout_seed = inputs_.dropout_seed->const_data_ptr<int64_t>();
      }
      const auto halo = [](int64_t reach) {
        return static_cast<int>(round_up(std::min<int64_t>(reach, kLongestHalo), 16));
      };
      args.halo_before = halo(keys_are_rows ? args.right : args.left);
      args.halo_after = halo(keys_are_rows ? args.left : args.right);
      args.stages_tiles = stages_tiles();
    }
    args.causal = options.causal;
    args.first_map = pass.first_map, args.maps = pass.maps;
    args.all_maps = static_cast<int>(problem_.feature_maps());
    std::copy_n(options.feature_maps.begin() + pass.first_map, pass.maps, args.feature_maps);
    args.unit_features = options.unit_features;
    args.normaliser = options.normaliser;
    args.fixed_norm = options.normaliser == Normaliser::kInvSqrtLength
                          ? static_cast<float>(std::sqrt(static_cast<double>(problem_.length)))
                          : 1.f;
    args.eps = static_cast<float>(options.eps),
    args.far_scale = static_cast<float>(options.far_scale);
    args.near_weight = cuda::weight_view(
        weights_.near_weight, {1, problem_.heads, problem_.value_dim}, pass.first_channel);
    args.far_weight =
        cuda::weight_view(weights_.far_weight, {args.all_maps, problem_.heads, problem_.value_dim},
                          pass.first_channel);
    args.uniform_weights = is_uniform_over_channels(weights_.near_weight) &&
                           is_uniform_over_channels(weights_.far_weight);
    args.segments = static_cast<int>(segments_), args.unit = static_cast<int>(limits_.chunk);
    return args;
  }

  /// Room for the states of every segment in one pass, as States whose maps count from the pass's
  /// first.
  States scratch_states(const Pass& pass, int64_t entries, std::vector<Tensor>& owner) const {
    const int64_t rows = entries * pass.maps * problem_.head_dim;
    owner.push_back(at::empty({rows * (pass.channels + 1)}, floats_));
    return states_at(owner.back().data_ptr<float>(), pass, entries);
  }
  States states_at(float* sums, const Pass& pass, int64_t entries) const {
    float* key_sums = sums + entries * pass.maps * problem_.head_dim * pass.channels;
    // The kernels count maps from the operator's first.
    return {sums - pass.first_map * problem_.head_dim * pass.channels,
            key_sums - pass.first_map * problem_.head_dim, pass.maps, pass.channels,
            StateSource::kNothing};
  }
  States tensor_states(const Tensor& sums, const Tensor& key_sums, const Pass& pass) const {
    return {sums.data_ptr<float>() + pass.first_channel, key_sums.data_ptr<float>(),
            static_cast<int>(problem_.feature_maps()), problem_.value_dim, StateSource::kPair};
  }

  /// Whether forward can keep what its segments begin with, for the query sweep to begin with too.
  /// Several passes of chunks are one a map, over all channels; others might keep more than they
  /// save.
  bool keeps_starts() const {
    return problem_.options.causal && shares_states() &&
           (passes_.size() == 1 || walks_ == Walks::kChunks);
  }
  /// Numbers that are kept for one pass.
  int64_t starts_size(const Pass& pass) const {
    return all_segments() * pass.maps * problem_.head_dim * (pass.channels + 1);
  }
  /// A pass's part of what is kept, which lies pass by pass.
  States starts_in(const Tensor& memory, const Pass& pass) const {
    float* sums = memory.data_ptr<float>();
    for (const Pass* before = passes_.data(); before != &pass; ++before)
      sums += starts_size(*before);
    return states_at(sums, pass, all_segments());
  }
  /// They are in far_sums; far_key_sums is empty, and its shape says where segments begin: backward
  /// may cut the sequence otherwise, since strides need not survive autograd's hooks for saved
  /// tensors.
  std::vector<int64_t> cut_as_shape() const { return {0, segments_, limits_.chunk}; }
  bool has_starts(const ForwardResult& saved) const {
    return keeps_starts() && saved.far_key_sums.sizes() == at::IntArrayRef(cut_as_shape());
  }

  /// Whether forward can keep the states before all chunks, for gradients of both sides in one
  /// sweep. They are in far_sums, and far_key_sums' shape says so.
  bool keeps_chunk_states() const { return gradient_segments_ > 0; }
  std::vector<int64_t> chunks_as_shape() const {
    return {0, limits_.chunk, round_up(problem_.length, limits_.chunk) / limits_.chunk, 1};
  }
  bool has_chunk_states(const ForwardResult& saved) const {
    return keeps_chunk_states() && saved.far_key_sums.sizes() == at::IntArrayRef(chunks_as_shape());
  }

  /// The sums of the passes over one block of v's channels; `memory` outlives them.
  cuda::Partial block_partial(const Pass& pass, Tensor& memory) const {
    if (pass.first_of_block && pass.last_of_block) return {};
    if (pass.first_of_block) {
      memory = at::empty({problem_.batch, problem_.length, problem_.heads, pass.channels}, floats_);
    }
    return {memory.data_ptr<float>(), pass.first_of_block, pass.last_of_block};
  }

  /// How a segment's sweep finds its start in what `joined` returns.
  StateSource joined_source(Scan scan) const {
    if (segments_ > kSegmentsToSum)
      return scan == Scan::kTotal ? StateSource::kPair : StateSource::kOwn;
    return scan == Scan::kBefore  ? StateSource::kBefore
           : scan == Scan::kAfter ? StateSource::kAfter
                                  : StateSource::kAll;
  }
  /// The states that the segments' sweeps begin with, from the states of every segment.
  States joined(const SweepArgs& args, States states, Scan scan, const Pass& pass,
                std::vector<Tensor>& owner) const {
    if (segments_ > kSegmentsToSum) {
      States totals;
      if (scan == Scan::kTotal)
        totals = scratch_states(pass, problem_.batch * problem_.heads, owner);
      C10_CUDA_CHECK(cuda::scan_states(args, states, scan, totals, stream_));
      if (scan == Scan::kTotal) states = totals;
    }
    states.source = joined_source(scan);
    return states;
  }
  /// Sums over the keys of every segment, or the queries; `states`: room for them.
  void sum_segments(SweepArgs args, const States& states, bool of_queries) const {
    args.made = states;
    args.has_near = false, args.halo_before = args.halo_after = 0, args.stages_tiles = false;
    C10_CUDA_CHECK(cuda::sum_states(args, of_queries, stream_));
  }
  /// What segments begin with, from their keys.
  States key_states(const SweepArgs& args, const States& states, const Pass& pass,
                    std::vector<Tensor>& owner) const {
    sum_segments(args, states, /*of_queries=*/false);
    return joined(args, states, problem_.options.causal ? Scan::kBefore : Scan::kTotal, pass,
                  owner);
  }
  int64_t all_segments() const { return problem_.batch * problem_.heads * segments_; }
  States segment_states(const Pass& pass, std::vector<Tensor>& owner) const {
    return scratch_states(pass, all_segments(), owner);
  }

  /// Pieces fill gaps; many pairs leave none worth a state in memory for each.
  void plan_joint_backward(SweepArgs& args, const Pass& pass, std::vector<Tensor>& owner) const {
    const int64_t pairs = problem_.batch * problem_.heads;
    const int64_t chunks = (problem_.length + limits_.chunk - 1) / limits_.chunk;
    const bool in_pieces = pairs <= 2 * cuda::kMultiprocessors;
    args.value_pieces = in_pieces ? std::min<int64_t>(limits_.value_pieces, chunks) : 1;
    if (args.value_pieces > 1) args.made = scratch_states(pass, pairs, owner);
    owner.push_back(at::empty({2, pairs}, floats_.dtype(at::kInt)));
    args.progress = owner.back().data_ptr<int>();
  }

  Gradients empty_gradients() const;
  SweepArgs backward_args(const Pass& pass, bool keys_are_rows, const Tensor& grad_out,
                          const ForwardResult& saved, const Gradients& gradients) const;

  const Problem& problem_;
  const AttentionInputs& inputs_;
  const BlendWeights& weights_;
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
  cuda::Element element_;
  bool precise_;
  Walks walks_ = Walks::kRoles;
  PassLimits limits_;
  at::TensorOptions floats_;
  Tensor mask_;
  int64_t segments_ = 1;
  int64_t gradient_segments_ = 0;  // of cuda::gradient_sweep; 0: it does not serve the call
  std::vector<Pass> passes_;
};

Tensors5 Call::forward(Keep keep) {
  const int64_t batch = problem_.batch, heads = problem_.heads, length = problem_.length;
  const int64_t maps = problem_.feature_maps();
  const FmmOptions& options = problem_.options;
  const auto sum_tensor = [&](bool kept, at::IntArrayRef shape) {
    return at::empty(kept ? shape : at::IntArrayRef{0}, floats_);
  };
  const bool state_kept = maps > 0 && (keep == Keep::kState || !options.causal);
  const bool chunks_kept = keep == Keep::kForBackward && keeps_chunk_states();
  const bool starts_kept = keep == Keep::kForBackward && keeps_starts() && !chunks_kept;
  Tensor out = at::empty({batch, length, heads, problem_.value_dim}, inputs_.q.options());
  Tensor log_sum_exp = sum_tensor(options.window.has_value(), {batch, heads, length});
  Tensor normalisers = sum_tensor(maps > 0 && options.normaliser == Normaliser::kRowSum,
                                  {batch, heads, maps, length});
  Tensor far_sums =
      sum_tensor(state_kept, {batch, heads, maps, problem_.head_dim, problem_.value_dim});
  Tensor far_key_sums = sum_tensor(state_kept, {batch, heads, maps, problem_.head_dim});
  if (starts_kept) {
    int64_t size = 0;
    for (const Pass& pass : passes_) size += starts_size(pass);
    far_sums = at::empty({size}, floats_), far_key_sums = at::empty(cut_as_shape(), floats_);
  }
  Tensor partial;
  for (const Pass& pass : passes_) {
    std::vector<Tensor> owner;
    SweepArgs args = args_of(pass, /*keys_are_rows=*/false);
    args.out = view_of(out, pass.first_channel);
    args.log_sum_exp = log_sum_exp.data_ptr<float>(),
    args.normalisers = normalisers.data_ptr<float>();
    if (pass.maps > 0 && sums_keys_first()) {
      const States room = starts_kept ? starts_in(far_sums, pass) : segment_states(pass, owner);
      args.start = key_states(args, room, pass, owner);
    }
    if (pass.maps > 0 && state_kept) args.made = tensor_states(far_sums, far_key_sums, pass);
    if (chunks_kept) {
      far_sums = at::empty({cuda::chunk_state_bytes(args) / int64_t{sizeof(float)}}, floats_);
      far_key_sums = at::empty(chunks_as_shape(), floats_);
      args.chunk_states = static_cast<unsigned char*>(far_sums.data_ptr());
    }
    args.partial_out = block_partial(pass, partial);
    C10_CUDA_CHECK(cuda::forward_sweep(args, stream_));
  }
  return {out, log_sum_exp, normalisers, far_sums, far_key_sums};
}

Call::Gradients Call::empty_gradients() const {
  const int64_t batch = problem_.batch, heads = problem_.heads, length = problem_.length;
  const int64_t maps = problem_.feature_maps();
  const auto like = [&](const OptionalTensor& weight) {
    return weight ? at::empty(weight->sizes(), weight->options())
                  : at::empty({0}, inputs_.q.options());
  };
  Gradients gradients{.q = empty_gradient_of(inputs_.q),
                      .k = empty_gradient_of(inputs_.k),
                      .v = empty_gradient_of(inputs_.v),
                      .near_weight = like(weights_.near_weight),
                      .far_weight = like(weights_.far_weight)};
  if (walks_ == Walks::kNarrow) {
    const int64_t floats = cuda::record_floats(static_cast<int>(length), static_cast<int>(maps));
    gradients.records = at::empty({batch * heads, floats}, floats_);
  } else {
    gradients.row_dots = at::empty({batch, heads, maps + 1, length}, floats_);
  }
  if (gradients.near_weight.numel() + gradients.far_weight.numel() > 0) {
    const int64_t shape[] = {all_segments(), maps + 1, problem_.value_dim};
    // Without a near field nothing writes its row.
    gradients.weight_sums =
        problem_.options.window ? at::empty(shape, floats_) : at::zeros(shape, floats_);
  }
  if (passes_.size() > 1) {
    gradients.partial_q = at::empty({batch, length, heads, problem_.head_dim}, floats_);
    gradients.partial_k = at::empty_like(gradients.partial_q);
  }
  return gradients;
}

SweepArgs Call::backward_args(const Pass& pass, bool keys_are_rows, const Tensor& grad_out,
                              const ForwardResult& saved, const Gradients& gradients) const {
  SweepArgs args = args_of(pass, keys_are_rows);
  args.grad_out = view_of(grad_out, pass.first_channel);
  args.dq = view_of(gradients.q), args.dk = view_of(gradients.k),
  args.dv = view_of(gradients.v, pass.first_channel);
  args.log_sum_exp = saved.log_sum_exp.data_ptr<float>();
  args.normalisers = saved.normalisers.data_ptr<float>();
  if (gradients.row_dots.defined()) args.row_dots = gradients.row_dots.data_ptr<float>();
  if (gradients.weight_sums.defined()) args.weight_sums = gradients.weight_sums.data_ptr<float>();
  if (gradients.records.defined()) args.records = gradients.records.data_ptr<float>();
  if (gradients.partial_q.defined()) {
    args.partial_dq = {gradients.partial_q.data_ptr<float>(), pass.first, pass.last};
    args.partial_dk = {gradients.partial_k.data_ptr<float>(), pass.first, pass.last};
  }
  return args;
}

Tensors5 Call::backward(const Tensor& grad_out, const ForwardResult& saved) {
  const bool causal = problem_.options.causal;
  Tensor grad = grad_out.stride(3) == 1 || grad_out.size(3) == 1 ? grad_out : grad_out.contiguous();
  if (walks_ != Walks::kRoles && !view_of(grad).walkable())
    grad = grad.clone(at::MemoryFormat::Contiguous);
  const bool both_sides = has_chunk_states(saved);
  if (both_sides) segments_ = gradient_segments_;
  Gradients gradients = empty_gradients();
  SweepArgs args;
  for (const Pass& pass : passes_) {
    if (both_sides) {
      args = backward_args(pass, /*keys_are_rows=*/false, grad, saved, gradients);
      args.chunk_states = static_cast<unsigned char*>(saved.far_sums.data_ptr());
      C10_CUDA_CHECK(cuda::gradient_sweep(args, stream_));
      continue;
    }
    std::vector<Tensor> owner;
    const bool far = pass.maps > 0, far_in_segments = far && causal && segments_ > 1;
    States query_states;
    args = backward_args(pass, /*keys_are_rows=*/false, grad, saved, gradients);
    if (far_in_segments && has_starts(saved)) {
      args.start = starts_in(saved.far_sums, pass);
      args.start.source = joined_source(Scan::kBefore);
    } else if (far_in_segments) {
      args.start = key_states(args, segment_states(pass, owner), pass, owner);
    } else if (far && !causal) {
      args.start = tensor_states(saved.far_sums, saved.far_key_sums, pass);
      args.made = query_states = segment_states(pass, owner);
    }
    const bool joint = limits_.value_pieces > 0 && segments_ == 1;
    if (joint) plan_joint_backward(args, pass, owner);
    C10_CUDA_CHECK(cuda::query_sweep(args, stream_));
    if (joint) continue;  // that was all

    args = backward_args(pass, /*keys_are_rows=*/true, grad, saved, gradients);
    if (far_in_segments) {
      query_states = segment_states(pass, owner);
      sum_segments(args, query_states, /*of_queries=*/true);
    }
    if (far && shares_states()) {
      args.start = joined(args, query_states, causal ? Scan::kAfter : Scan::kTotal, pass, owner);
    }
    args.partial_dv = block_partial(pass, gradients.partial_v);
    C10_CUDA_CHECK(cuda::key_sweep(args, stream_));
  }
  if (gradients.weight_sums.defined()) {
    C10_CUDA_CHECK(cuda::reduce_weight_sums(
        args, gradient_view(weights_.near_weight, gradients.near_weight),
        gradient_view(weights_.far_weight, gradients.far_weight), stream_));
  }
  return {gradients.q, gradients.k, gradients.v, gradients.near_weight, gradients.far_weight};
}

Tensors5 forward_cuda(const Tensor& q, const Tensor& k, const Tensor& v,
                      const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                      const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                      at::IntArrayRef codes, at::ArrayRef<double> scales, int64_t keep) {
  const AttentionInputs inputs{q, k, v, token_mask, dropout_seed};
  const BlendWeights weights{near_weight, far_weight};
  const Problem problem =
      checked_problem("fmm_attention", inputs, weights, unpack_options(codes, scales));
  return Call(problem, inputs, weights).forward(static_cast<Keep>(keep));
}

Tensors5 backward_cuda(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v,
                       const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                       const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                       const Tensor& log_sum_exp, const Tensor& normalisers, const Tensor& far_sums,
                       const Tensor& far_key_sums, at::IntArrayRef codes,
                       at::ArrayRef<double> scales) {
  const AttentionInputs inputs{q, k, v, token_mask, dropout_seed};
  const BlendWeights weights{near_weight, far_weight};
  const Problem problem =
      checked_problem("fmm_attention", inputs, weights, unpack_options(codes, scales));
  return Call(problem, inputs, weights)
      .backward(grad_out, {{}, log_sum_exp, normalisers, far_sums, far_key_sums});
}

TORCH_LIBRARY_IMPL(fmmformer, CUDA, m) {
  m.impl("fmm_attention_forward", &forward_cuda);
  m.impl("fmm_attention_backward", &backward_cuda);
}

}  // namespace
}  // namespace fmmformer
