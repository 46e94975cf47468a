// SPDX-License-Identifier: Apache-2.0
// What the sweeps keep in shared memory: one description, from which the host takes the size and
// the kernel the places.
#pragma once

#include "attention/fmm/cuda/far_state.cuh"

namespace fmmformer::cuda {

/// Hands out pieces of a block of memory, sixteen bytes aligned; on the host only counts.
class Carver {
 public:
  __host__ __device__ explicit Carver(unsigned char* base) : base_(base) {}
  template <typename T>
  __host__ __device__ T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(base_ + used_);
    used_ += (count * sizeof(T) + 15) / 16 * 16;
    return piece;
  }
  __host__ __device__ int64_t used() const { return used_; }

 private:
  unsigned char* base_;
  int64_t used_ = 0;
};

/// `own`: the chunk's own rows of q and grad_out, or of k and v; `band`: k and v, or q and
/// grad_out, with the band's halo.
template <typename G>
struct SharedMemory {
  using Elem = typename G::Elem;
  static constexpr int kStageSize = 16 * (G::kKeyStride + G::kValueStride);  // of a warp
  Elem* own[2];
  Elem* band[2];
  Elem* features;      // [kMaps][kRows][kKeyStride]
  Elem* state;         // [kMaps * kKeyDim][kValueStride]
  float* key_sums;     // [kMaps * kKeyDim]
  float* weights;      // [kMaps + 1][kValueDim]
  float* dots;         // [kMaps][kRows]: the rows' dots
  float* norms;        // [kMaps][kRows]: and their normalisers
  float* weight_sums;  // [kWarps][kMaps + 1][kValueDim]
  Elem* stage;         // [kWarps][16][kKeyStride + kValueStride]
  int64_t bytes;

  __host__ __device__ SharedMemory(const SweepArgs& args, unsigned char* base, int own_count,
                                   bool backward) {
    Carver carver(base);
    if (own_count > 0) own[0] = carver.take<Elem>(G::kRows * G::kKeyStride);
    if (own_count > 1) own[1] = carver.take<Elem>(G::kRows * G::kValueStride);
    const int rows = args.halo_before + G::kRows + args.halo_after;
    band[0] = carver.take<Elem>(rows * G::kKeyStride);
    band[1] = carver.take<Elem>(rows * G::kValueStride);
    if (args.maps > 0) {
      features = carver.take<Elem>(G::kMaps * G::kFeatureTile);
      state = carver.take<Elem>(FarState<G>::kSharedSize);
      key_sums = carver.take<float>(G::kMaps * G::kKeyDim);
      if (backward) {
        dots = carver.take<float>(G::kMaps * G::kRows);
        norms = carver.take<float>(G::kMaps * G::kRows);
      }
    }
    weights = carver.take<float>((G::kMaps + 1) * G::kValueDim);
    if (backward) weight_sums = carver.take<float>(G::kWarps * (G::kMaps + 1) * G::kValueDim);
    if (args.stages_tiles) stage = carver.take<Elem>(G::kWarps * kStageSize);
    bytes = carver.used();
  }
  __device__ Elem* stage_of(int warp) const { return stage + warp * kStageSize; }
};

}  // namespace fmmformer::cuda
