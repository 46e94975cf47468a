// SPDX-License-Identifier: Apache-2.0
// The sweeps of FMM attention on the GPU, as launches over plain memory. No torch here.
//
// The arithmetic is that of cpu/sweep.h and docs/math.md. A thread block owns a segment of one
// (batch entry, head) and walks it: heads of 16 or 32 channels by warps that own a strip of tokens
// each (strips/); causal ones of 40 to 128 channels in chunks of 64 tokens (chunks/; with the
// products of a Hopper GPU, chunks/warpgroup/ and warpgroups/, and for short sequences
// chunks/both_sides/) or, in fp32, of 64 or 32 (chunks_fp32/); in bf16 other heads of up to 128
// channels by warps with roles (roles/), in steps of sixteen tokens; all else in chunks of 32 to
// 128 tokens, sixteen of them a warp. Short causal sequences of 16 channels in bf16 are not walked:
// a block has all of one at once (whole/); where there are many of 32 channels, a block walks one
// in chunks of 64 tokens (narrow/, narrow_fp32/). Products run on tensor cores; the running state
// stays on the chip, in registers. Where the pairs alone do not fill the GPU, a sequence is cut
// into segments, and sum_states makes what each of them starts from.
//
// A sweep carries as many feature maps and channels of v as fit; more are several passes, whose
// sums meet in fp32 memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fmmformer/attention/options.h"

namespace fmmformer::cuda {

enum class Element { kFloat32, kBFloat16, kFloat16 };

/// A [batch, length, heads, dim] tensor by strides, in elements; the last dimension is contiguous.
struct View {
  void* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  bool aligned = false;  // every row starts at a multiple of 16 bytes

  /// Whether strips and chunks can walk the rows: sixteen of them are within 32 bits.
  bool walkable() const { return aligned && row_stride < 1 << 26; }
};

/// A weight of any floating type, read as [heads, value_dim] (or with a leading dimension of maps);
/// stride 0 where one number stands for many. No data: ones.
struct Weight {
  const void* data = nullptr;
  int type = 0;  // 0 fp32, 1 bf16, 2 fp16, 3 fp64
  int64_t map_stride = 0, head_stride = 0, channel_stride = 0;
};

/// Where a segment's far state comes from, among states [pairs, segments or 1, maps, D, Dv].
enum class StateSource {
  kNothing,  // zeros
  kOwn,      // the segment's entry
  kBefore,   // the sum over the entries of earlier segments
  kAfter,    // ... of later ones
  kAll,      // ... of all segments
  kPair,     // one entry for every pair
};
struct States {
  float* sums = nullptr;      // [pairs, segments, maps, D, Dv]
  float* key_sums = nullptr;  // [pairs, segments, maps, D]
  int maps = 0;               // that an entry has room for; a pass uses those from first_map on
  // D and Dv above; both those of the kernels where the head's are smaller (fewer_channels.cuh). A
  // pass over a block of channels sees value_dim of a row.
  int64_t rows = 0, row_length = 0;
  StateSource source = StateSource::kNothing;
  int parts = 1;  // entries that a segment has, each of a part of it; see sum_parts
};

/// The gradient of a weight, [maps, heads, channels] with 1 where the weight has 1. No data: it is
/// not wanted.
struct WeightGradient {
  void* data = nullptr;
  int type = 0;  // as a Weight's
  int64_t maps = 0, heads = 0, channels = 0;

  __host__ __device__ int64_t count() const { return maps * heads * channels; }
};

constexpr int kMapsAtOnce = 3;
constexpr int kMultiprocessors =
    132;  // of an H100; how the work is cut must not depend on more than the shape

/// Where the sums of several passes meet: fp32 [batch, length, heads, dim] contiguous. Only the
/// last pass writes the tensor itself. None: there is one pass.
struct Partial {
  float* sums = nullptr;
  bool first = true, last = true;
};

/// Which kernels walk the tokens of a pass. kRoles: those that take every call; in fp32 and fp16
/// they have no roles. kWarpgroups: chunks, with products of a warpgroup; in fp32 with warpgroups
/// that prepare the next chunk. kWhole: a thread block has all of a short sequence at once.
/// kNarrow: chunks of heads of 32 channels.
enum class Walks { kRoles, kStrips, kChunks, kWarpgroups, kWhole, kNarrow };

struct SweepArgs {
  Element element = Element::kFloat32;
  bool precise = true;  // fp32's precision; else products of bf16 operands
  int64_t batch = 0;
  int length = 0, heads = 0, head_dim = 0, value_dim = 0;
  View q, k, v, out, grad_out, dq, dk, dv;
  const bool* token_mask = nullptr;  // [batch, length] contiguous, or none

  bool has_near = false;
  int left = 0, right = 0;
  float near_scale = 1;
  float keep_factor = 1;    // 1 / (1 - dropout)
  uint32_t drop_below = 0;  // of fifteen bits
  const int64_t* dropout_seed = nullptr;

  bool causal = false;
  int first_map = 0, maps = 0, all_maps = 0;  // of this pass; of the operator
  FeatureMap feature_maps[kMapsAtOnce] = {};
  bool unit_features = false;
  Normaliser normaliser = Normaliser::kRowSum;
  float fixed_norm = 1;  // unless row sums
  float eps = 0, far_scale = 1;
  Weight near_weight, far_weight;
  bool uniform_weights =
      false;  // equal for all channels of a head: applied to sums instead of operands

  float* log_sum_exp = nullptr;  // [batch, heads, length]
  float* normalisers = nullptr;  // [batch, heads, all_maps, length]
  float* row_dots =
      nullptr;  // [batch, heads, all_maps + 1, length]; the near field's last. Backward only.
  float* records = nullptr;  // [pairs, record_floats]: what one sweep of backward leaves of queries
                             // for the next. Walks::kNarrow alone, in place of row_dots.
  float* weight_sums =
      nullptr;  // [blocks, all_maps + 1, all_channels]; backward only, where a weight wants it
  WeightGradient near_gradient, far_gradient;  // what becomes of weight_sums
  int first_channel = 0, all_channels = 0;     // of v: this pass's first, and the operator's number

  // Of a sequence: whole units of so many tokens, as many for each or one more.
  int segments = 1, unit = 1;
  // The blocks of a pair are a cluster, or one block, and make what segments share themselves: of
  // two-sided strips sums over all segments, where all of backward is one launch; forward, what
  // forward_segments serves.
  bool clusters = false;
  // What a segment's sweep begins with.
  States start;
  // Where sums go: those of sum_states; of the queries, from the two-sided query sweep; from the
  // forward sweep the state after the last token; and, an entry a pair, what pieces of a walk for
  // dv hand on.
  States made;
  // Where all of backward is one launch (PassLimits): pieces of a walk for dv, at most one a unit;
  // and how far the walks of queries and values are, [2, pairs].
  int value_pieces = 1;
  int* progress = nullptr;

  Partial partial_out, partial_dq, partial_dk, partial_dv;

  int halo_before = 0,
      halo_after = 0;  // rows of the band's other side beside a chunk in shared memory, by 16
  bool stages_tiles = false;  // whether the band reaches beyond the halo
  Walks walks = Walks::kRoles;
  // What forward leaves for gradient_sweep, chunk_state_bytes() of it: the state before every
  // chunk, what dropout leaves of the band, and, of Walks::kWarpgroups and kWhole (these alone),
  // tickets, zero before and after.
  unsigned char* chunk_states = nullptr;
};

/// Of a tile of sixteen tokens, in whole chunks of 64: two numbers a row for the near field and
/// each map, and dropout's bits, a word a lane.
__host__ __device__ constexpr int tile_record_floats(int maps) { return (2 + 2 * maps) * 16 + 32; }
__host__ __device__ inline int64_t record_floats(int length, int maps) {
  return int64_t(length + 63) / 64 * 4 * tile_record_floats(maps);
}

/// A segment's first token; of the one after the last, the length. In 32 bits: a division in 64 is
/// a hundred instructions at the beginning of every kernel.
__host__ __device__ inline int segment_begin(const SweepArgs& args, int segment) {
  const int units = (args.length + args.unit - 1) / args.unit;
  // segment * units / args.segments, without the product
  const int first =
      segment * (units / args.segments) + segment * (units % args.segments) / args.segments;
  const int64_t token = int64_t(first) * args.unit;
  return static_cast<int>(token < args.length ? token : args.length);
}

/// In how many parts sum_states sums up each segment of a causal sequence, args.segments then being
/// those of all parts: two, where one would leave more multiprocessors without work. Nobody needs
/// the sums of one segment, so that with two a half of them would have none.
inline int sum_parts(int64_t pairs, int64_t segments) {
  const auto rounds = [&](int64_t parts) {
    return (pairs * (segments - 1) * parts + kMultiprocessors - 1) / kMultiprocessors;
  };
  return rounds(2) < 2 * rounds(1) ? 2 : 1;
}
/// Whether no segment of a causal sequence begins with this one's sums: of keys the last's, of
/// queries the first's.
__host__ __device__ inline bool is_of_no_use(const SweepArgs& args, int segment, bool of_queries) {
  const int parts = args.made.parts;
  return segment / parts == (of_queries ? 0 : args.segments / parts - 1);
}

/// What the choice of kernels asks of a GPU.
struct Gpu {
  int shared_bytes = 0;    // that a thread block may have
  int reserved_bytes = 0;  // before those: the GPU's own
  int capability = 0;      // ten times the compute capability
};

/// The oldest GPUs that the kernels are compiled for, as Gpu::capability says it; 0 where the
/// compiler does not tell.
int least_capability();

/// The kernels for a pass over everything. Strips and chunks want the paper's maps in the paper's
/// order, D = Dv, a narrow band and rows that start at multiples of sixteen bytes, in bf16 or fp32:
/// strips D of 16 or 32; chunks D of 40 to 128, a multiple of eight, causal, without unit features,
/// with blend weights that are equal for all channels of a head. Warpgroups are for chunks on GPUs
/// of compute capability 9.0: D of up to 64, in fp32 with up to two maps; in bf16 also of up to 128
/// with up to two maps. Whole sequences: as strips, but causal, in bf16, D of 16 and up to 256
/// tokens. Narrow: D of 32, causal, in either, with weights that differ by channel, up to 2048
/// tokens, where sequences alone fill the GPU; compute capability 9.0.
Walks fitting_walks(const SweepArgs& args, const Gpu& gpu);

/// What the kernels for a call carry in one pass.
struct PassLimits {
  int value_dim = 0;  // at most so many channels of v; more of them are several passes
  int maps = 0;       // likewise
  int chunk = 0;      // tokens
  int blocks = 0;     // that fill a GPU; sequences are cut into segments until there are so many
  bool sums_all_maps = false;  // whether sum_states takes the maps of all passes at once
  bool sums_in_parts = false;  // whether sum_states can have segments in parts, see sum_parts
  // Where query_sweep can be all of backward for sequences that are not cut, pieces of a walk for
  // dv; and how many pairs are enough not to be cut, though they may be fewer than `blocks`.
  int value_pieces = 0, uncut_pairs = 0;
};
struct PassQuestion {
  bool precise;
  int head_dim, value_dim, maps;  // of the operator
  bool near;
  Walks walks;
  int shared_bytes;  // that a thread block of this GPU may have
};
PassLimits pass_limits(const PassQuestion& call);
/// Whether shared memory has room for all of a pass of Walks::kRoles: the general kernels may have
/// none for a near field and a map together.
bool has_room(const SweepArgs& pass, int shared_bytes);

/// Into how many segments, at most so many, a two-sided sequence that strips walk is cut for
/// SweepArgs::clusters. 0: their blocks would not fill the GPU, or cannot be clusters there.
int cluster_segments(const SweepArgs& args, int64_t most, const Gpu& gpu);
/// Sums over each segment of (feature row) x (value row): of keys and values; or, `of_queries`, of
/// scaled queries and grad_out, after the query sweep.
cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream);
/// States of a pair's segments become sums over all segments before each, or after; or their total
/// goes to `totals`.
enum class Scan { kBefore, kAfter, kTotal };
cudaError_t scan_states(const SweepArgs& args, const States& states, Scan scan,
                        const States& totals, cudaStream_t stream);
/// Into how many segments a forward sweep cuts a sequence that makes itself what they begin with:
/// of the calls of Walks::kWarpgroups that gradient_segments serves, given `clusters`. Not for
/// `made`. 0: none does.
int forward_segments(const SweepArgs& args, const Gpu& gpu);
/// Writes out and, unless chunk_states of Walks::kNarrow have them, log_sum_exp and normalisers.
cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
/// Writes dq and row_dots (Walks::kNarrow: records); weight_sums where weights are uniform. Given
/// `progress` or `clusters`, all that key_sweep writes as well; so with Walks::kWhole, and no
/// row_dots.
cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
/// Writes dk and dv; weight_sums where weights differ by channel.
cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);

/// Gradients of queries and keys in one sweep (chunks/both_sides, narrow/both_sides), of those
/// calls of Walks::kWarpgroups that it serves (D of up to 64, up to two maps, short sequences;
/// with dropout, few segments) and of Walks::kNarrow in bf16 where far_scale is positive. It cuts a
/// sequence into segments of its own, and needs what the forward sweep keeps in chunk_states. Of
/// Walks::kWhole it is query_sweep, to which forward leaves tickets there. 0: it does not serve the
/// call.
int gradient_segments(const SweepArgs& args, const Gpu& gpu);
int64_t chunk_state_bytes(const SweepArgs& args);
/// Writes what query_sweep and key_sweep write, but for row_dots; makes itself what segments begin
/// with.
cudaError_t gradient_sweep(const SweepArgs& args, cudaStream_t stream);

/// Whether both weights that want a gradient have one number for each head (and map).
bool has_weight_of_each_head(const SweepArgs& args);
/// Gradients of both weights from weight_sums, unless the last sweep has made them.
cudaError_t reduce_weight_sums(const SweepArgs& args, cudaStream_t stream);

}  // namespace fmmformer::cuda
