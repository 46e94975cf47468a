// SPDX-License-Identifier: Apache-2.0
// The far fields' states: sums over tokens of (feature row) x (value row), and of feature rows
// alone, one of each a map, in a warp's registers; and how those of several strips or segments
// become what a strip begins with.
#pragma once

#include "attention/fmm/cuda/start_entries.cuh"
#include "attention/fmm/cuda/strips/operands.cuh"

namespace fmmformer::cuda::strips {

/// One map's. kKeysAreRows: blocks with feature channels as rows and v's as columns; else the other
/// way round. Both are operands for a product over their columns.
template <typename G, bool kKeysAreRows>
struct Sums {
  Block sums[G::kBlocks][G::kBlocks];
  float key_sums[G::kBlocks][4];  // of channels 16 s + 8 n + 2t + p, [s][2 n + p]; equal for all g

  __device__ __forceinline__ float& at(int i) {
    return i < G::kSums ? sums[i / 8 / G::kBlocks][i / 8 % G::kBlocks][i / 4 % 2][i % 4]
                        : key_sums[(i - G::kSums) / 4][i % 4];
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < G::kSums + G::kKeySums; ++i) at(i) = 0.f;
  }
  /// Adds sixteen tokens: both sides have channels as rows.
  __device__ __forceinline__ void add(const Fragments<G>& features, const Fragments<G>& values) {
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b) {
        if (kKeysAreRows) add_product(sums[s][b], features[s], values[b]);
        if (!kKeysAreRows) add_product(sums[b][s], values[b], features[s]);
      }
    }
  }
  /// Register i of this lane: where its number is in an entry of states [D][Dv] and [D].
  static __device__ __forceinline__ int place(int i, int64_t row_length) {
    if (i >= G::kSums) {
      const int j = i - G::kSums;
      return j / 4 * kBlockDim + column_of(j / 2 % 2, j);
    }
    const int row = i / 8 / G::kBlocks * kBlockDim + row_of(i % 4);
    const int column = i / 8 % G::kBlocks * kBlockDim + column_of(i / 4 % 2, i);
    return static_cast<int>((kKeysAreRows ? row : column) * row_length +
                            (kKeysAreRows ? column : row));
  }
};

/// key_sums += sum of rows, each times a number: of tokens 2t, 2t + 1, 8 + 2t, 9 + 2t. The rows
/// come turned.
template <typename G>
__device__ __forceinline__ void add_rows(float (&key_sums)[G::kBlocks][4],
                                         const Fragments<G>& turned_f, const float (&numbers)[4]) {
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) {
    Block c;
    clear(c);
    add_product(c, equal_rows<G>(numbers), turned_f[s]);
#pragma unroll
    for (int i = 0; i < 4; ++i) key_sums[s][i] += c[i / 2][i % 2];
  }
}
template <typename G>
__device__ __forceinline__ void add_rows(float (&key_sums)[G::kBlocks][4],
                                         const Fragments<G>& turned_f) {
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) {
    Block c;
    clear(c);
    add_selected(c, ones<G>(), turned_f[s]);
#pragma unroll
    for (int i = 0; i < 4; ++i) key_sums[s][i] += c[i / 2][i % 2];
  }
}

/// Key sums in shared memory, [maps][kDim]: they are few, and registers are fewer.
template <typename G>
struct KeySums {
  float* sums;

  __device__ __forceinline__ void load(int map, float (&of_map)[G::kBlocks][4]) const {
#pragma unroll
    for (int i = 0; i < G::kBlocks * 2; ++i) {
      const float2 pair = *at(map, i);
      of_map[i / 2][i % 2 * 2] = pair.x, of_map[i / 2][i % 2 * 2 + 1] = pair.y;
    }
  }
  /// Before they are loaded again, __syncwarp.
  __device__ __forceinline__ void store(int map, const float (&of_map)[G::kBlocks][4]) const {
    __syncwarp();                // all lanes have loaded what was there
    if (lane_id() >= 4) return;  // they are equal for all g
#pragma unroll
    for (int i = 0; i < G::kBlocks * 2; ++i)
      *at(map, i) = make_float2(of_map[i / 2][i % 2 * 2], of_map[i / 2][i % 2 * 2 + 1]);
  }

  /// Those of the last of sixteen rows.
  __device__ __forceinline__ void store_last_row(int map, const Blocks<G>& rows) const {
    __syncwarp();
    if (lane_id() < 28) return;
#pragma unroll
    for (int i = 0; i < G::kBlocks * 2; ++i)
      *at(map, i) = make_float2(rows[i / 2][i % 2][2], rows[i / 2][i % 2][3]);
  }

 private:
  __device__ __forceinline__ float2* at(int map, int eight) const {
    return reinterpret_cast<float2*>(sums + map * G::kDim + eight * 8 + lane_id() % 4 * 2);
  }
};

template <typename G, bool kKeysAreRows>
using FarStates = Sums<G, kKeysAreRows>[G::kOwnMaps];

template <typename G, bool kKeysAreRows>
__device__ __forceinline__ void clear_states(FarStates<G, kKeysAreRows>& states) {
#pragma unroll
  for (int l = 0; l < G::kOwnMaps; ++l) states[l].clear();
}

/// The sum of four neighbouring numbers of `count` entries that lie `apart` from each other. As
/// many are under way at a time as short sequences have segments.
__device__ __forceinline__ float4 sum_of(const float* at, int64_t apart, int count) {
  constexpr int kAhead = 8;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
  for (int first = 0; first < count; first += kAhead, at += kAhead * apart) {
    float4 x[kAhead];
#pragma unroll
    for (int e = 0; e < kAhead; ++e) {
      x[e] = first + e < count ? *reinterpret_cast<const float4*>(at + e * apart)
                               : make_float4(0.f, 0.f, 0.f, 0.f);
    }
#pragma unroll
    for (int e = 0; e < kAhead; ++e)
      sum.x += x[e].x, sum.y += x[e].y, sum.z += x[e].z, sum.w += x[e].w;
  }
  return sum;
}

/// The states as two-sided sweeps read them: they do not change any more, and lie in shared memory,
/// in the tensors' type, once for all warps. [maps][kDim of v][kStride] and [maps][kDim].
template <typename G>
struct FixedSums {
  static constexpr int kOfMap = G::kDim * G::kStride;
  static constexpr int kBytes = G::kMaps * (kOfMap * sizeof(ElemOf<G>) + G::kDim * sizeof(float));
  ElemOf<G>* sums;
  KeySums<G> key_sums;

  __device__ explicit FixedSums(const Layout& layout)
      : sums(shared_at<ElemOf<G>>(layout.fixed)),
        key_sums{reinterpret_cast<float*>(sums + G::kMaps * kOfMap)} {}
  /// A row of v's channel `value`, from feature channel `feature` on.
  __device__ __forceinline__ ElemOf<G>* row(int map, int value, int feature) const {
    return sums + map * kOfMap + value / kBlockDim * kBlockDim * G::kStride +
           offset_of<G>(value % kBlockDim, feature);
  }
  /// From the entries of args.start that the segment begins with, by all threads: no warp holds
  /// them in its registers. The pair's last block writes them to args.made as well, where wanted.
  /// A barrier inside.
  __device__ void gather(const SweepArgs& args, const Strip& strip, bool writes) const {
    constexpr int kFours = G::kDim / 4, kRows = G::kMaps * G::kDim;
    const StartEntries start(args, strip);
    const int64_t made_row = int64_t(strip.pair) * args.made.maps * G::kDim;
    for (int i = threadIdx.x; i < kRows * kFours; i += blockDim.x) {
      const int row = i / kFours, value = i % kFours * 4;  // of features, of all maps; of v
      const float4 sum = sum_of(args.start.sums + start.first * kRows * G::kDim + i * 4,
                                kRows * G::kDim, start.count);
      const float of_values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int v = value + j;
        *this->row(row / G::kDim, v, row % G::kDim) = ElemOf<G>(of_values[j]);
        if (writes) args.made.sums[(made_row + row) * args.made.row_length + v] = of_values[j];
      }
    }
    for (int i = threadIdx.x; i < kRows / 4; i += blockDim.x) {
      const float4 sum =
          sum_of(args.start.key_sums + start.first * kRows + i * 4, kRows, start.count);
      *reinterpret_cast<float4*>(key_sums.sums + i * 4) = sum;
      if (writes) *reinterpret_cast<float4*>(args.made.key_sums + made_row + i * 4) = sum;
    }
    __syncthreads();
  }
  /// A block with v's channels as rows; turned, with feature channels.
  __device__ __forceinline__ typename G::Fragment block(int map, int b, int s) const {
    return load_rows<G, Side::kRight>(rows(map, b), s);
  }
  __device__ __forceinline__ typename G::Fragment turned_block(int map, int b, int s) const {
    return load_columns<G, Side::kRight>(rows(map, b), s);
  }

 private:
  __device__ __forceinline__ TileRows<G> rows(int map, int b) const {
    return {sums + map * kOfMap + b * kBlockDim * G::kStride};
  }
};

/// States on their way between the block's warps, [slots][state][32]: register i of a lane stays
/// register i of that lane. It lies over the warps' tiles, so barriers separate it from walks.
template <typename G, bool kKeysAreRows>
struct Exchange {
  static constexpr int kOfMap = G::kSums + G::kKeySums;
  float* slots;

  __device__ explicit Exchange(const Layout& layout) : slots(shared_at<float>(layout.exchange)) {}
  __device__ __forceinline__ float* at(int slot, int i) const {
    return slots + (slot * G::kState + i) * kWarpSize + lane_id();
  }
  __device__ void put(int slot, FarStates<G, kKeysAreRows>& states) const {
#pragma unroll
    for (int i = 0; i < G::kState; ++i) *at(slot, i) = states[i / kOfMap].at(i % kOfMap);
  }
  __device__ void add(int slot, FarStates<G, kKeysAreRows>& states) const {
#pragma unroll
    for (int i = 0; i < G::kState; ++i) states[i / kOfMap].at(i % kOfMap) += *at(slot, i);
  }

  /// The sum of the first `count` slots becomes an entry of `to`. Each warp sees to some registers
  /// of all.
  __device__ void write_sum(int count, const cuda::States& to, int64_t entry,
                            const SweepArgs& args) const {
    const int64_t row = (entry * to.maps + args.first_map) * G::kDim;
    const int row_length = static_cast<int>(to.row_length);
#pragma unroll
    for (int l = 0; l < G::kOwnMaps; ++l) {
      write_some<0, G::kSums>(count, l, to.sums + (row + l * G::kDim) * row_length, row_length);
      write_some<G::kSums, kOfMap>(count, l, to.key_sums + row + l * G::kDim, 1);
    }
  }

 private:
  /// Registers [kFirst, kLast) of a map.
  template <int kFirst, int kLast>
  __device__ __forceinline__ void write_some(int count, int map, float* to, int row_length) const {
    const int warps = blockDim.x / kWarpSize;
#pragma unroll 2
    for (int i = kFirst + threadIdx.x / kWarpSize; i < kLast; i += warps) {
      float x[kMostStrips], sum = 0.f;
#pragma unroll
      for (int slot = 0; slot < kMostStrips; ++slot)
        x[slot] = slot < count ? *at(slot, map * kOfMap + i) : 0.f;
#pragma unroll
      for (int slot = 0; slot < kMostStrips; ++slot) sum += x[slot];
      to[Sums<G, kKeysAreRows>::place(i, row_length)] = sum;
    }
  }
};

/// The sum of entries of states in memory, [maps][D][Dv] and [maps][D] each, made by all threads:
/// where it lies in shared memory, rows are kStride apart.
template <typename G>
struct Gathered {
  static constexpr int kStride = G::kDim + 4;  // eight columns or rows then lie in different banks
  static constexpr int kRows = G::kMaps * G::kDim, kBytes = kRows * (kStride + 1) * sizeof(float);
  float* sums;

  __device__ __forceinline__ float* key_sums() const { return sums + kRows * kStride; }
  /// Entries [first, first + count).
  __device__ void gather(const cuda::States& from, int64_t first, int count) const {
    constexpr int kFours = G::kDim / 4;
    for (int i = threadIdx.x; i < kRows * kFours; i += blockDim.x) {
      const int row = i / kFours, column = i % kFours * 4;
      const float4 sum =
          sum_of(from.sums + first * kRows * G::kDim + i * 4, kRows * G::kDim, count);
      *reinterpret_cast<float4*>(sums + row * kStride + column) = sum;
    }
    for (int i = threadIdx.x; i < kRows / 4; i += blockDim.x) {
      *reinterpret_cast<float4*>(key_sums() + i * 4) =
          sum_of(from.key_sums + first * kRows + i * 4, kRows, count);
    }
  }
  template <bool kKeysAreRows>
  __device__ __forceinline__ void add_to(FarStates<G, kKeysAreRows>& states, int first_map) const {
#pragma unroll
    for (int i = 0; i < G::kState; ++i) {
      constexpr int kOfMap = G::kSums + G::kKeySums;
      const int map = first_map + i / kOfMap, in_map = i % kOfMap;
      const float* from =
          in_map < G::kSums ? sums + map * G::kDim * kStride : key_sums() + map * G::kDim;
      states[i / kOfMap].at(in_map) += from[Sums<G, kKeysAreRows>::place(in_map, kStride)];
    }
  }
};

/// Which of the block's strips a strip's state begins with.
enum class Others { kNone, kBefore, kAfter };

/// `states`, which hold the sums over the warp's own strip (with Others::kNone: nothing), become
/// what the strip begins with: those of the segment and of the other strips. Barriers inside.
template <typename G, bool kKeysAreRows>
__device__ void begin_states(FarStates<G, kKeysAreRows>& states, Others others,
                             const Layout& layout, const SweepArgs& args, const Strip& strip) {
  const Exchange<G, kKeysAreRows> exchange(layout);
  const StartEntries start(args, strip);
  const bool shares = others != Others::kNone && strip.count > 1;
  if (!shares && start.count == 0) {
    clear_states<G, kKeysAreRows>(states);
    return;
  }
  __syncthreads();  // walks are over
  if (shares) exchange.put(strip.index, states);
  const Gathered<G> gathered = {exchange.at(shares ? strip.count : 0, 0) - lane_id()};
  if (start.count > 0) gathered.gather(args.start, start.first, start.count);
  __syncthreads();
  clear_states<G, kKeysAreRows>(states);
  if (start.count > 0 && own_map<G>(strip, 0) < G::kMaps)
    gathered.template add_to<kKeysAreRows>(states, own_map<G>(strip, 0));
  if (shares) {
    const int first = others == Others::kAfter ? strip.index + 1 : 0;
    const int last = others == Others::kBefore ? strip.index : strip.count;
    for (int other = first; other < last; ++other) exchange.add(other, states);
  }
  __syncthreads();  // walks may begin
}

/// The sum over the block's strips becomes its entry of `to`. A barrier inside.
template <typename G, bool kKeysAreRows>
__device__ void store_sum(FarStates<G, kKeysAreRows>& states, const cuda::States& to,
                          const Layout& layout, const SweepArgs& args, const Strip& strip) {
  const Exchange<G, kKeysAreRows> exchange(layout);
  __syncthreads();
  exchange.put(strip.index, states);
  __syncthreads();
  exchange.write_sum(strip.count, to, blockIdx.x, args);
}
/// One warp's states become an entry of args.made.
template <typename G, bool kKeysAreRows>
__device__ void store(FarStates<G, kKeysAreRows>& states, const SweepArgs& args,
                      const Strip& strip) {
  constexpr int kOfMap = G::kSums + G::kKeySums;
#pragma unroll
  for (int i = 0; i < G::kState; ++i) {
    const int map = args.first_map + own_map<G>(strip, i / kOfMap), in_map = i % kOfMap;
    const bool of_keys = in_map >= G::kSums;
    const int64_t row_length = of_keys ? 1 : args.made.row_length;
    float* to = of_keys ? args.made.key_sums : args.made.sums;
    to[(int64_t(strip.pair) * args.made.maps + map) * G::kDim * row_length +
       Sums<G, kKeysAreRows>::place(in_map, row_length)] = states[i / kOfMap].at(in_map);
  }
}

}  // namespace fmmformer::cuda::strips
