// SPDX-License-Identifier: Apache-2.0
// Which kernels serve a call, and the two small kernels between the sweeps.
#include "attention/fmm/cuda/sweep.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "attention/fmm/cuda/architectures.h"
#include "attention/fmm/cuda/chunks/both_sides/launcher.cuh"
#include "attention/fmm/cuda/chunks/launcher.cuh"
#include "attention/fmm/cuda/chunks/warpgroup/launcher.cuh"
#include "attention/fmm/cuda/chunks_fp32/launcher.cuh"
#include "attention/fmm/cuda/fewer_channels.cuh"
#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/launcher.cuh"
#include "attention/fmm/cuda/narrow/launcher.cuh"
#include "attention/fmm/cuda/narrow_fp32/launcher.cuh"
#include "attention/fmm/cuda/reduction.cuh"
#include "attention/fmm/cuda/roles/launcher.cuh"
#include "attention/fmm/cuda/strips/launcher.cuh"
#include "attention/fmm/cuda/tile.cuh"
#include "attention/fmm/cuda/warpgroups/launcher.cuh"
#include "attention/fmm/cuda/whole/launcher.cuh"

namespace fmmformer::cuda {
namespace {

/// Calls body(launcher, what its passes carry) for the call's arithmetic and head size.
template <typename Body>
auto with_precise_launcher(int key_dim, bool in_chunks, const Body& body) {
  if (in_chunks && key_dim <= 64)
    return body(chunks_fp32::Launcher<64>(), chunks_fp32::PassShape<64>());
  if (in_chunks) return body(chunks_fp32::Launcher<128>(), chunks_fp32::PassShape<128>());
  if (key_dim <= 16) return body(Launcher<Tf32x3, 16>(), PassShape<Tf32x3, 16>());
  if (key_dim <= 32) return body(Launcher<Tf32x3, 32>(), PassShape<Tf32x3, 32>());
  if (key_dim <= 64) return body(Launcher<Tf32x3, 64>(), PassShape<Tf32x3, 64>());
  if (key_dim <= 128) return body(Launcher<Tf32x3, 128>(), PassShape<Tf32x3, 128>());
  return body(Launcher<Tf32x3, 256>(), PassShape<Tf32x3, 256>());
}
template <typename Body>
auto with_bf16_launcher(int key_dim, const Body& body) {
  if (key_dim <= 16) return body(roles::Launcher<16>(), roles::PassShape<16>());
  if (key_dim <= 32) return body(roles::Launcher<32>(), roles::PassShape<32>());
  if (key_dim <= 64) return body(roles::Launcher<64>(), roles::PassShape<64>());
  if (key_dim <= 128) return body(roles::Launcher<128>(), roles::PassShape<128>());
  return body(Launcher<Bf16, 256>(), PassShape<Bf16, 256>());
}
template <typename Math, typename Body>
auto with_strips_launcher(int key_dim, const Body& body) {
  if (key_dim <= 16) return body(strips::Launcher<Math, 16>(), strips::PassShape<Math, 16>());
  return body(strips::Launcher<Math, 32>(), strips::PassShape<Math, 32>());
}
/// `call`: SweepArgs or a PassQuestion.
template <typename Call, typename Body>
auto with_launcher(const Call& call, const Body& body) {
  const int key_dim = max(call.head_dim, min(call.value_dim, 64));
  if (call.walks == Walks::kStrips) {
    return call.precise ? with_strips_launcher<Tf32x3>(key_dim, body)
                        : with_strips_launcher<Bf16>(key_dim, body);
  }
  if (call.walks == Walks::kWarpgroups && call.precise)
    return body(chunks_fp32::Launcher<64, /*kFed=*/true>(), chunks_fp32::PassShape<64>());
  if (call.walks == Walks::kWarpgroups && key_dim <= 64)
    return body(chunks::warpgroup::Launcher(), chunks::warpgroup::PassShape());
  if (call.walks == Walks::kWarpgroups)
    return body(warpgroups::Launcher<128>(), warpgroups::PassShape<128>());
  if (call.walks == Walks::kWhole) return body(whole::Launcher(), whole::PassShape());
  if (call.walks == Walks::kNarrow && call.precise)
    return body(narrow_fp32::Launcher(), narrow_fp32::PassShape());
  if (call.walks == Walks::kNarrow) return body(narrow::Launcher(), narrow::PassShape());
  if (call.precise) return with_precise_launcher(key_dim, call.walks == Walks::kChunks, body);
  if (call.walks == Walks::kRoles) return with_bf16_launcher(key_dim, body);
  if (key_dim <= 64) return body(chunks::Launcher<64>(), chunks::PassShape<64>());
  return body(chunks::Launcher<128>(), chunks::PassShape<128>());
}

/// Entries [pairs][segments] of `size` numbers each, `stride` apart; the sums over all of a pair's
/// go to `totals`, `totals_stride` apart.
struct ScanRows {
  float *entries, *totals;
  int64_t size, stride, totals_stride;
};

// A thread a number of the state, segment after segment. Loads of so many are under way at a time
// as eight long sequences, which fill a GPU, have segments.
__global__ void scan_kernel(ScanRows sums, ScanRows key_sums, int64_t pairs, int segments,
                            Scan scan) {
  int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const bool of_sums = index < pairs * sums.size;
  const ScanRows& rows = of_sums ? sums : key_sums;
  if (!of_sums) index -= pairs * sums.size;
  if (index >= pairs * rows.size) return;
  const int64_t pair = index / rows.size, element = index % rows.size;
  float* at = rows.entries + pair * segments * rows.stride + element;
  constexpr int kAhead = 33;
  float sum = 0.f;
  for (int first = 0; first < segments; first += kAhead) {
    float own[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int s = first + i, segment = scan == Scan::kAfter ? segments - 1 - s : s;
      // The last is in nobody's start, and may not have been written.
      const bool counts = s < segments - (scan == Scan::kTotal ? 0 : 1);
      own[i] = counts ? at[segment * rows.stride] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int s = first + i, segment = scan == Scan::kAfter ? segments - 1 - s : s;
      if (s < segments && scan != Scan::kTotal) at[segment * rows.stride] = sum;
      sum += own[i];
    }
  }
  if (scan == Scan::kTotal) rows.totals[pair * rows.totals_stride + element] = sum;
}

/// The sums that every number has of each head: of batch entries, unless a thread block has
/// several.
int64_t summed_rows(const SweepArgs& args) {
  if (args.walks != Walks::kNarrow || args.precise || !args.chunk_states) return args.batch;
  return narrow::Launcher::gradient_blocks(args);
}

/// All of the operator's maps, the first ones of the paper's, in bf16 or fp32.
bool has_paper_maps(const SweepArgs& args) {
  constexpr FeatureMap kPaper[] = {FeatureMap::kElu, FeatureMap::kEluFlip, FeatureMap::kTanh1};
  bool fits = args.element == (args.precise ? Element::kFloat32 : Element::kBFloat16);
  fits &= args.head_dim == args.value_dim && args.maps > 0 && args.maps == args.all_maps;
  for (int l = 0; l < args.maps; ++l) fits &= args.feature_maps[l] == kPaper[l];
  return fits;
}
bool has_walkable_rows(const SweepArgs& args) {
  View out;  // as it will be: contiguous
  out.aligned = true, out.row_stride = int64_t{args.heads} * args.all_channels;
  return args.q.walkable() && args.k.walkable() && args.v.walkable() && out.walkable();
}
// In all of them, the largest score is sought before scores are scaled.
bool fits_strips(const SweepArgs& args, int shared_bytes) {
  if (args.head_dim != 16 && args.head_dim != 32) return false;
  const int needed = !args.precise         ? 0
                     : args.head_dim == 16 ? strips::PassShape<Tf32x3, 16>::kSharedBytes
                                           : strips::PassShape<Tf32x3, 32>::kSharedBytes;
  if (needed > shared_bytes) return false;
  if (!args.has_near) return true;
  const int eights = strips::band_eights(args.left, args.right);
  return eights > 2 && eights <= 2 * strips::kMostGroups && args.near_scale > 0 &&
         args.halo_before + args.halo_after <= strips::kMostHalo;
}
/// Whether a causal call's band, if it has one, ends where its kernels can see.
bool near_fits(const SweepArgs& args, int farthest) {
  return !args.has_near || (args.left <= farthest && args.near_scale > 0);
}
bool fits_whole(const SweepArgs& args, int shared_bytes) {
  return !args.precise && args.causal && args.head_dim == whole::kDim &&
         args.length <= whole::kLongest && near_fits(args, whole::kFarthest) &&
         whole::Launcher::shared_bytes(args) <= shared_bytes;
}
bool fits_narrow(const SweepArgs& args, const Gpu& gpu) {
  const int shared_bytes = args.precise ? narrow_fp32::kSharedBytes : narrow::kSharedBytes,
            fewest_pairs = args.precise ? narrow_fp32::kFewestPairs : narrow::kFewestPairs;
  if (!args.precise &&
      (gpu.reserved_bytes != narrow::kSharedBegin || args.drop_below > narrow::kMostDropped ||
       std::abs(args.far_scale) < narrow::kLeastFarScale))
    return false;
  return gpu.capability == 90 && args.causal && args.head_dim == narrow::kDim &&
         !args.uniform_weights && near_fits(args, narrow::kFarthest) &&
         args.length <= narrow::kLongest && args.batch * args.heads >= fewest_pairs &&
         gpu.shared_bytes >= shared_bytes;
}
bool fits_chunks(const SweepArgs& args, int shared_bytes) {
  const auto fits = [&](auto shape, auto precise_shape) {
    if (args.precise) return precise_shape.kSharedBytes <= shared_bytes;  // maps in several passes
    return args.maps <= shape.kMaps && shape.kSharedBytes <= shared_bytes;
  };
  static_assert(chunks::kFarthest == chunks_fp32::kFarthest);
  if (args.head_dim <= 32 || args.head_dim > 128 || args.head_dim % kChannelsAtOnce != 0)
    return false;
  return args.causal && args.uniform_weights && !args.unit_features &&
         near_fits(args, chunks::kFarthest) &&
         (args.head_dim <= 64 ? fits(chunks::PassShape<64>(), chunks_fp32::PassShape<64>())
                              : fits(chunks::PassShape<128>(), chunks_fp32::PassShape<128>()));
}

// Of those that fit chunks. The code is for 9.0 alone: newer GPUs do not have these instructions.
bool fits_warpgroups(const SweepArgs& args, const Gpu& gpu) {
  if (gpu.capability != 90) return false;
  if (args.precise) return args.head_dim <= 64 && args.maps <= chunks_fp32::kFedMaps;
  using Wide = warpgroups::PassShape<128>;
  return args.head_dim <= 64 ||
         (gpu.shared_bytes >= Wide::kSharedBytes && args.maps <= Wide::kMaps);
}

}  // namespace

Walks fitting_walks(const SweepArgs& args, const Gpu& gpu) {
  if (!has_paper_maps(args) || !has_walkable_rows(args)) return Walks::kRoles;
  if (fits_whole(args, gpu.shared_bytes)) return Walks::kWhole;
  if (fits_narrow(args, gpu)) return Walks::kNarrow;
  if (fits_strips(args, gpu.shared_bytes)) return Walks::kStrips;
  if (!fits_chunks(args, gpu.shared_bytes)) return Walks::kRoles;
  return fits_warpgroups(args, gpu) ? Walks::kWarpgroups : Walks::kChunks;
}

PassLimits pass_limits(const PassQuestion& call) {
  return with_launcher(call, [&](auto, auto shape) {
    const int maps = shape.maps(call.shared_bytes);
    PassLimits limits{shape.kValueDim, maps, shape.kChunk,
                      shape.blocks(call.head_dim, min(call.maps, maps), call.near)};
    if constexpr (requires { shape.kUncutPairs; })
      limits.value_pieces = shape.kValuePieces, limits.uncut_pairs = shape.kUncutPairs;
    if constexpr (requires { shape.kSumsInParts; })
      limits.sums_in_parts = shape.kSumsInParts, limits.sums_all_maps = shape.kSumsAllMaps;
    return limits;
  });
}

bool has_room(const SweepArgs& pass, int shared_bytes) {
  return with_launcher(pass, [&](auto launcher, auto) {
    if constexpr (requires { launcher.shared_bytes(pass); })
      return launcher.shared_bytes(pass) <= shared_bytes;
    else
      return true;
  });
}

namespace {

// Whether kernels that may have clusters are compiled for GPUs that have them. Where they are not,
// a newer GPU runs code in which a cluster is one block.
constexpr bool compiled_for_clusters() {
  return std::ranges::any_of(kArchitectures, [](int one) { return one >= 900; });
}

}  // namespace

int least_capability() {
  return kArchitectures.size() == 0 ? 0 : std::ranges::min(kArchitectures) / 10;
}
int cluster_segments(const SweepArgs& args, int64_t most, const Gpu& gpu) {
  if (args.walks != Walks::kStrips || args.causal) return 0;
  if (!compiled_for_clusters() || gpu.capability < 90) return 0;
  if (gpu.shared_bytes < strips::kSharedOfCluster) return 0;
  constexpr int64_t kLargestCluster = 8;
  const int64_t pairs = std::max<int64_t>(args.batch * args.heads, 1);
  const int64_t segments = std::min({kMultiprocessors / pairs, kLargestCluster, most});
  // A block has a multiprocessor for itself.
  const bool fills = 10 * pairs * segments >= 9 * int64_t{kMultiprocessors};
  return segments > 1 && fills ? static_cast<int>(segments) : 0;
}

cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream) {
  return with_launcher(
      args, [&](auto launcher, auto) { return launcher.sum_states(args, of_queries, stream); });
}
cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  if (args.walks == Walks::kWarpgroups && args.clusters)
    return chunks::both_sides::Launcher::forward_sweep(args, stream);
  return with_launcher(args,
                       [&](auto launcher, auto) { return launcher.forward_sweep(args, stream); });
}
cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_launcher(args,
                       [&](auto launcher, auto) { return launcher.query_sweep(args, stream); });
}
cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_launcher(args, [&](auto launcher, auto) { return launcher.key_sweep(args, stream); });
}

int gradient_segments(const SweepArgs& args, const Gpu& gpu) {
  namespace both_sides = chunks::both_sides;
  if (args.walks == Walks::kWhole) return 1;
  // Scaled feature rows tell slopes only where the scale is positive.
  if (args.walks == Walks::kNarrow) {
    const bool serves = !args.precise && args.far_scale > 0;
    return serves && gpu.shared_bytes >= narrow::kBothSidesBytes ? 1 : 0;
  }
  if (args.walks != Walks::kWarpgroups || args.precise || args.head_dim > 64) return 0;
  if (args.maps > both_sides::kMostMaps || args.length > both_sides::kLongest) return 0;
  if (gpu.shared_bytes < both_sides::kSharedBytes) return 0;
  const int64_t pairs = std::max<int64_t>(args.batch * args.heads, 1);
  const int64_t most = std::clamp(args.length / (both_sides::kShortestSegment * chunks::kChunk), 1,
                                  both_sides::kMostSegments);
  const int64_t segments = std::clamp<int64_t>(kMultiprocessors / pairs, 1, most);
  // A multiprocessor has room for one block: where many stay idle in the last round, sweeps of
  // either side, whose blocks are smaller, lose less.
  const int64_t blocks = pairs * segments,
                rounds = (blocks + kMultiprocessors - 1) / kMultiprocessors;
  const bool fills = 10 * blocks >= 9 * rounds * kMultiprocessors;
  // What dropout keeps is told by the forward sweep of few segments alone.
  const bool told = args.drop_below == 0 || segments <= both_sides::kMostForwardSegments;
  return fills && told ? static_cast<int>(segments) : 0;
}
int forward_segments(const SweepArgs& args, const Gpu& gpu) {
  if (args.walks != Walks::kWarpgroups) return 0;
  const int segments = gradient_segments(args, gpu);
  return segments <= chunks::both_sides::kMostForwardSegments ? segments : 0;
}
int64_t chunk_state_bytes(const SweepArgs& args) {
  if (args.walks == Walks::kWhole) return whole::Launcher::ticket_bytes(args);
  static_assert(narrow::kRows == chunks::kChunk);
  const int64_t chunks = (args.length + chunks::kChunk - 1) / chunks::kChunk;
  if (args.walks == Walks::kNarrow)
    return args.batch * args.heads * chunks * narrow::Entry::bytes(args.maps);
  return chunks::both_sides::kept_bytes(args);
}
cudaError_t gradient_sweep(const SweepArgs& args, cudaStream_t stream) {
  if (args.walks == Walks::kWhole) return whole::Launcher::query_sweep(args, stream);
  if (args.walks == Walks::kNarrow) return narrow::Launcher::gradient_sweep(args, stream);
  return chunks::both_sides::Launcher::gradient_sweep(args, stream);
}

cudaError_t scan_states(const SweepArgs& args, const States& states, Scan scan,
                        const States& totals, cudaStream_t stream) {
  const int64_t pairs = args.batch * args.heads, used = args.maps * states.rows,
                skipped = args.first_map * states.rows;
  const auto rows = [&](float* entries, float* sums, int64_t row_length) {
    return ScanRows{entries + skipped * row_length, sums ? sums + skipped * row_length : nullptr,
                    used * row_length, states.maps * states.rows * row_length,
                    totals.maps * totals.rows * row_length};
  };
  const ScanRows sums = rows(states.sums, totals.sums, states.row_length),
                 key_sums = rows(states.key_sums, totals.key_sums, 1);
  const int64_t blocks = (pairs * (sums.size + key_sums.size) + kThreads - 1) / kThreads;
  if (blocks == 0) return cudaSuccess;
  scan_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      sums, key_sums, pairs, static_cast<int>(args.segments), scan);
  return cudaGetLastError();
}

bool has_weight_of_each_head(const SweepArgs& args) {
  const auto fits = [&](const WeightGradient& gradient, int maps) {
    return gradient.count() == 0 || (gradient.heads == args.heads && gradient.maps == maps);
  };
  return args.uniform_weights && fits(args.near_gradient, 1) &&
         fits(args.far_gradient, args.all_maps);
}
/// Of a call that has any tokens.
static bool last_sweep_reduces(const SweepArgs& args) {
  if (args.walks == Walks::kWhole) return whole::Launcher::reduces_weight_sums(args);
  if (args.walks == Walks::kWarpgroups && args.chunk_states)
    return chunks::both_sides::Launcher::reduces_weight_sums(args);
  return args.walks == Walks::kStrips && args.uniform_weights && !args.clusters;
}
cudaError_t reduce_weight_sums(const SweepArgs& args, cudaStream_t stream) {
  const int64_t count = args.near_gradient.count() + args.far_gradient.count();
  const bool done = args.batch * args.heads > 0 && args.length > 0 && last_sweep_reduces(args);
  if (count == 0 || done) return cudaSuccess;
  SweepArgs all = args;
  all.value_dim = args.all_channels;
  if (args.heads > 0) all.batch = summed_rows(args);
  if (reduces_in_rows(args)) {
    const dim3 blocks(args.all_channels / kWarpSize, args.heads, args.all_maps + 1);
    const dim3 threads(kWarpSize, kThreads / kWarpSize);
    const int rows = static_cast<int>(all.batch);
    // The narrow heads' gradients let it begin early.
    if (args.walks == Walks::kNarrow && args.chunk_states)
      return launch_early(reduce_rows_kernel, blocks, threads, stream, args, rows);
    reduce_rows_kernel<<<blocks, threads, 0, stream>>>(args, rows);
    return cudaGetLastError();
  }
  const int pass_channels =
      with_launcher(all, [](auto, auto shape) { return int(shape.kValueDim); });
  // Neighbours together where a number has few terms, which few threads add up.
  const auto has_rows = [&](const WeightGradient& gradient, int maps) {
    const int64_t terms = all.batch * args.segments * (gradient.heads == 1 ? args.heads : 1) *
                          (gradient.maps == 1 ? maps : 1);
    return gradient.channels % kWarpSize == 0 && terms <= 128;
  };
  const bool in_rows =
      has_rows(args.far_gradient, args.all_maps) && has_rows(args.near_gradient, 1);
  const auto reduce = [&](auto* kernel) {
    kernel<<<static_cast<unsigned>(in_rows ? count / kWarpSize : count), kThreads, 0, stream>>>(
        all, args.uniform_weights ? pass_channels : 1);
  };
  if (has_many_weight_sums(args))
    in_rows ? reduce(reduce_kernel<int64_t, kWarpSize>) : reduce(reduce_kernel<int64_t, 1>);
  else
    in_rows ? reduce(reduce_kernel<int32_t, kWarpSize>) : reduce(reduce_kernel<int32_t, 1>);
  return cudaGetLastError();
}

}  // namespace fmmformer::cuda
