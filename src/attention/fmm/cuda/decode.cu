// SPDX-License-Identifier: Apache-2.0
// A step has little to compute and long to wait: for the token, the ring of keys, the sums of every
// map. So a thread block has one (batch entry, head), and in it a team of threads each field, which
// asks for its memory first and all of them at once.
#include "attention/fmm/cuda/decode.h"

#include "attention/fmm/cuda/features.cuh"

namespace fmmformer::cuda {
namespace {

constexpr int kTeamThreads = 128, kTeamWarps = kTeamThreads / kWarpSize;
constexpr int kMostTeams = 4;  // more fields than that take turns: registers are few
constexpr int kAhead = 8;      // rows of a matrix that a thread asks for at a time
constexpr int kQuad = 4;       // threads that share a key of the ring
constexpr int kKeysAtOnce = kTeamThreads / kQuad;
constexpr int kDim = static_cast<int>(kMaxHeadDim);

__device__ float to_float(float x) { return x; }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float to_float(__half x) { return __half2float(x); }

/// One number for each row of threads and channel: [rows][Dv], as many as there are at most.
constexpr int kSums = 4 * kTeamThreads;

/// A team's own shared memory.
struct TeamMemory {
  float q[kDim], k[kDim];  // features
  float out[kDim];         // the sum of the team's fields, with their weights
  float sums[kSums];
  float probabilities[kKeysAtOnce];
  float parts[2 * kTeamWarps];
};
/// Everybody's.
struct TokenMemory {
  float q[kDim], k[kDim], v[kDim];
};

struct Team {
  int index, thread;  // thread: of the team
  TeamMemory& memory;

  __device__ void wait() const {
    asm volatile("bar.sync %0, %1;\n" ::"r"(1 + index), "n"(kTeamThreads) : "memory");
  }
  /// Two sums (or maxima) over the team, to every thread.
  template <typename Join>
  __device__ void join(float& a, float& b, const Join& join_two) const {
#pragma unroll
    for (int other = kWarpSize / 2; other > 0; other /= 2) {
      a = join_two(a, __shfl_xor_sync(~0u, a, other));
      b = join_two(b, __shfl_xor_sync(~0u, b, other));
    }
    wait();  // the last parts have been read
    const int warp = thread / kWarpSize;
    if (lane_id() == 0) memory.parts[2 * warp] = a, memory.parts[2 * warp + 1] = b;
    wait();
    a = memory.parts[0], b = memory.parts[1];
#pragma unroll
    for (int w = 1; w < kTeamWarps; ++w) {
      a = join_two(a, memory.parts[2 * w]), b = join_two(b, memory.parts[2 * w + 1]);
    }
  }
  __device__ void sum(float& a, float& b) const {
    join(a, b, [](float x, float y) { return x + y; });
  }
  __device__ float sum(float a) const {
    float nothing = 0.f;
    sum(a, nothing);
    return a;
  }
  __device__ float max(float a) const {
    float nothing = 0.f;
    join(a, nothing, [](float x, float y) { return fmaxf(x, y); });
    return a;
  }
};

/// How a team's threads share a matrix [.., Dv]: `across` of them a row, kUnit channels each.
template <int kUnit>
struct Spread {
  int columns, across, rows;  // rows at a time

  __device__ explicit Spread(int value_dim) : columns(value_dim / kUnit), across(1) {
    while (across < columns && across < kTeamThreads) across *= 2;
    rows = kTeamThreads / across;
  }
};

template <int kUnit, typename T>
struct alignas(kUnit * sizeof(T)) Unit {
  T value[kUnit];
};

/// Adds what the rows of threads found for each channel, times the field's weight, to the team's
/// result.
template <int kUnit>
__device__ void add_result(const Team& team, const Spread<kUnit>& spread, const Weight& weight,
                           int map, int head, int value_dim, float factor) {
  team.wait();
  for (int e = team.thread; e < value_dim; e += kTeamThreads) {
    float value = 0.f;
    for (int row = 0; row < spread.rows; ++row) value += team.memory.sums[row * value_dim + e];
    team.memory.out[e] += weight_value(weight, map, head, e) * factor * value;
  }
  team.wait();
}

/// f of the token's q and k, into the team's memory.
__device__ void make_features(const StepArgs& args, const Team& team, const TokenMemory& token,
                              FeatureMap map) {
  float q_sum = 0.f, k_sum = 0.f;
  with_map(map, [&](auto constant) {
    for (int c = team.thread; c < args.head_dim; c += kTeamThreads) {
      q_sum += team.memory.q[c] = map_value<Tf32x3, decltype(constant)::value>(token.q[c]);
      k_sum += team.memory.k[c] = map_value<Tf32x3, decltype(constant)::value>(token.k[c]);
    }
  });
  if (!args.unit_features) return team.wait();
  team.sum(q_sum, k_sum);
  const float q_factor = q_sum == 0.f ? 0.f : 1.f / q_sum;
  const float k_factor = k_sum == 0.f ? 0.f : 1.f / k_sum;
  for (int c = team.thread; c < args.head_dim; c += kTeamThreads) {
    team.memory.q[c] *= q_factor, team.memory.k[c] *= k_factor;
  }
  team.wait();
}

__device__ float normaliser_of(const StepArgs& args, FeatureMap map, float row_sum) {
  if (args.normaliser != Normaliser::kRowSum) return 1.f;
  if (!is_signed(map)) return row_sum + args.eps;
  return fabsf(row_sum) > args.eps ? row_sum : copysignf(args.eps, row_sum);
}

/// Adds the token to one map's sums and reads the query's far field from them.
template <int kUnit>
__device__ void add_far(const StepArgs& args, const Team& team, const TokenMemory& token,
                        int64_t pair, int head, int map) {
  using Sums = Unit<kUnit, float>;
  const int dim = args.head_dim, value_dim = args.value_dim;
  const Spread<kUnit> spread(value_dim);
  float* key_sums = args.far_key_sums + (pair * args.maps + map) * dim;
  float* matrix = args.far_sums + (pair * args.maps + map) * dim * int64_t(value_dim);
  const auto at = [&](int row, int column) {
    return reinterpret_cast<Sums*>(matrix + int64_t(row) * value_dim + column * kUnit);
  };
  Sums sums[kAhead];
  const auto load = [&](int first_row, int column) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = first_row + i * spread.rows;
      if (row < dim) sums[i] = *at(row, column);
    }
  };
  const int own_row = team.thread / spread.across, own_column = team.thread % spread.across;
  if (own_column < spread.columns) load(own_row, own_column);  // on its way while features are made
  make_features(args, team, token, args.feature_maps[map]);
  float row_sum = 0.f;
  for (int c = team.thread; c < dim; c += kTeamThreads) {
    const float sum = key_sums[c] + team.memory.k[c];
    key_sums[c] = sum;
    row_sum += team.memory.q[c] * sum;
  }
  row_sum = team.sum(row_sum);
  for (int column = own_column; column < spread.columns; column += spread.across) {
    float numerator[kUnit] = {};
    for (int first = own_row; first < dim; first += kAhead * spread.rows) {
      if (first != own_row || column != own_column) load(first, column);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int row = first + i * spread.rows;
        if (row >= dim) break;
#pragma unroll
        for (int u = 0; u < kUnit; ++u) {
          sums[i].value[u] += team.memory.k[row] * token.v[column * kUnit + u];
          numerator[u] += team.memory.q[row] * sums[i].value[u];
        }
        *at(row, column) = sums[i];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnit; ++u)
      team.memory.sums[own_row * value_dim + column * kUnit + u] = numerator[u];
  }
  const float norm = normaliser_of(args, args.feature_maps[map], row_sum);
  add_result(team, spread, args.far_weight, map, head, value_dim, args.far_scale / norm);
}

/// Softmax over the keys of the ring and the token's own, which comes last.
template <typename T, int kUnit>
__device__ void add_near(const StepArgs& args, const Team& team, const TokenMemory& token,
                         int64_t b, int head) {
  const int dim = args.head_dim, value_dim = args.value_dim;
  const Spread<kUnit> spread(value_dim);
  const int64_t ring = b * args.left * args.heads + head;
  const T *keys = static_cast<const T*>(args.keys), *values = static_cast<const T*>(args.values);
  const auto score_of = [&](int64_t s) {  // of a quad's key, in log2; -infinity: not there
    const bool there = s <= args.left && (s == args.left || args.live[b * args.left + s]);
    float score = 0.f;
    const T* key = keys + (ring + s * args.heads) * dim;
#pragma unroll 16
    for (int c = team.thread % kQuad; c < dim; c += kQuad) {
      if (there) score += token.q[c] * (s < args.left ? to_float(key[c]) : token.k[c]);
    }
    score = quad_sum(score) * args.near_scale * kLog2E;
    return there ? score : -INFINITY;
  };
  constexpr int kMostColumns = (kDim / kUnit + kTeamThreads - 1) / kTeamThreads;
  const int own_row = team.thread / spread.across, own_column = team.thread % spread.across;
  float peak = -INFINITY, total = 0.f, sums[kMostColumns][kUnit] = {};
  for (int64_t first = 0; first <= args.left; first += kKeysAtOnce) {
    const float score = score_of(first + team.thread / kQuad);
    const float highest = fmaxf(peak, team.max(score));
    const float base = highest == -INFINITY ? 0.f : highest;
    const float shrink = exp2f(peak - base), probability = exp2f(score - base);
    peak = highest;
    const bool leads = team.thread % kQuad == 0;
    if (leads) team.memory.probabilities[team.thread / kQuad] = probability;
    total = total * shrink + team.sum(leads ? probability : 0.f);
#pragma unroll
    for (int i = 0; i < kMostColumns; ++i) {
      const int column = own_column + i * spread.across;
      if (column >= spread.columns) break;
#pragma unroll
      for (int u = 0; u < kUnit; ++u) sums[i][u] *= shrink;
#pragma unroll 8
      for (int row = own_row; row < kKeysAtOnce; row += spread.rows) {
        const int64_t s = first + row;
        const float p = team.memory.probabilities[row];
        if (s > args.left || p == 0.f) continue;  // a dead key may hold anything
        Unit<kUnit, T> stored;
        if (s < args.left) {
          stored = *reinterpret_cast<const Unit<kUnit, T>*>(
              values + (ring + s * args.heads) * value_dim + column * kUnit);
        }
#pragma unroll
        for (int u = 0; u < kUnit; ++u) {
          sums[i][u] +=
              p * (s < args.left ? to_float(stored.value[u]) : token.v[column * kUnit + u]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kMostColumns; ++i) {
    const int column = own_column + i * spread.across;
    if (column >= spread.columns) break;
#pragma unroll
    for (int u = 0; u < kUnit; ++u)
      team.memory.sums[own_row * value_dim + column * kUnit + u] = sums[i][u];
  }
  add_result(team, spread, args.near_weight, 0, head, value_dim, 1.f / total);
}

/// The token takes the place of the oldest key, which all have seen for the last time.
template <typename T>
__device__ void replace_oldest(const StepArgs& args, const TokenMemory& token, int64_t b, int head,
                               int64_t position) {
  if (args.left == 0) return;
  const int64_t slot = (b * args.left + position % args.left) * args.heads + head;
  for (int c = threadIdx.x; c < args.head_dim; c += blockDim.x)
    store_element(args.keys, slot * args.head_dim + c, args.element, token.k[c]);
  for (int e = threadIdx.x; e < args.value_dim; e += blockDim.x)
    store_element(args.values, slot * args.value_dim + e, args.element, token.v[e]);
}

// While a step runs, the upper half of the position counts the blocks that have read the state.
constexpr int kTicketShift = 32;

/// The last block to come here moves the state on.
__device__ void advance(const StepArgs& args, int64_t position) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    auto* ticket = reinterpret_cast<unsigned long long*>(args.position);
    is_last = atomicAdd(ticket, 1ull << kTicketShift) >> kTicketShift == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  for (int64_t b = threadIdx.x; b < args.batch && args.left > 0; b += blockDim.x) {
    args.live[b * args.left + position % args.left] = !args.token_mask || args.token_mask[b];
  }
  if (threadIdx.x == 0) *args.position = position + 1;
}

template <typename T, int kUnit>
__global__ void __launch_bounds__(kMostTeams* kTeamThreads)
    step_kernel(const __grid_constant__ StepArgs args) {
  extern __shared__ __align__(16) float memory[];
  TokenMemory& token = *reinterpret_cast<TokenMemory*>(memory);
  TeamMemory* teams = reinterpret_cast<TeamMemory*>(&token + 1);
  const int64_t pair = blockIdx.x, b = pair / args.heads;
  const int head = static_cast<int>(pair % args.heads);
  const int64_t position = *args.position & ((int64_t{1} << kTicketShift) - 1);
  const bool live = !args.token_mask || args.token_mask[b];
  const int count = static_cast<int>(blockDim.x) / kTeamThreads;
  const int own = static_cast<int>(threadIdx.x) / kTeamThreads;
  const Team team{own, static_cast<int>(threadIdx.x) % kTeamThreads, teams[own]};
  for (int c = threadIdx.x; c < args.head_dim; c += blockDim.x) {
    token.q[c] = to_float(static_cast<const T*>(args.q)[pair * args.head_dim + c]);
    token.k[c] = to_float(static_cast<const T*>(args.k)[pair * args.head_dim + c]);
  }
  for (int e = threadIdx.x; e < args.value_dim; e += blockDim.x)
    token.v[e] = to_float(static_cast<const T*>(args.v)[pair * args.value_dim + e]);
  for (int e = team.thread; e < args.value_dim; e += kTeamThreads) team.memory.out[e] = 0.f;
  __syncthreads();
  if (live) {
    const int fields = args.maps + (args.has_near ? 1 : 0);
    for (int field = own; field < fields; field += count) {
      if (field < args.maps) {
        add_far<kUnit>(args, team, token, pair, head, field);
      } else {
        add_near<T, kUnit>(args, team, token, b, head);
      }
    }
    __syncthreads();
    replace_oldest<T>(args, token, b, head, position);
  }
  for (int e = threadIdx.x; e < args.value_dim; e += blockDim.x) {
    float sum = 0.f;
    for (int t = 0; t < count; ++t) sum += teams[t].out[e];
    store_element(args.out, pair * args.value_dim + e, args.element, sum);
  }
  advance(args, position);
}

// Nobody else moves the position of a step without heads.
__global__ void skip_kernel(const __grid_constant__ StepArgs args) {
  if (threadIdx.x == 0) ++*args.position;
}

template <typename T, int kUnit>
void launch(const StepArgs& args, cudaStream_t stream) {
  const int fields = args.maps + (args.has_near ? 1 : 0);
  const int teams = fields < 1 ? 1 : fields < kMostTeams ? fields : kMostTeams;
  const size_t bytes = sizeof(TokenMemory) + teams * sizeof(TeamMemory);
  step_kernel<T, kUnit>
      <<<static_cast<unsigned>(args.batch * args.heads), teams * kTeamThreads, bytes, stream>>>(
          args);
}

template <typename T>
void launch(const StepArgs& args, cudaStream_t stream) {
  // Whole units of four channels, if all rows begin with one.
  const auto places =
      reinterpret_cast<uintptr_t>(args.far_sums) | reinterpret_cast<uintptr_t>(args.values);
  args.value_dim % 4 == 0 && places % 16 == 0 ? launch<T, 4>(args, stream)
                                              : launch<T, 1>(args, stream);
}

}  // namespace

cudaError_t decode_step(const StepArgs& args, cudaStream_t stream) {
  if (args.batch * args.heads == 0) {
    skip_kernel<<<1, 1, 0, stream>>>(args);
  } else if (args.element == Element::kFloat32) {
    launch<float>(args, stream);
  } else if (args.element == Element::kBFloat16) {
    launch<__nv_bfloat16>(args, stream);
  } else {
    launch<__half>(args, stream);
  }
  return cudaGetLastError();
}

}  // namespace fmmformer::cuda
