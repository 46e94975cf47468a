// SPDX-License-Identifier: Apache-2.0
// How the work is cut into tasks, and the far states that tasks share or have for themselves.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "attention/fmm/cpu/sweep.h"
#include "attention/problem.h"

namespace fmmformer::cpu {

/// Enough to balance a desktop's cores; beyond it segments only cost.
inline constexpr int64_t kTasksWanted = 8;
/// Below, the pass that joins segments is no longer small.
inline constexpr int64_t kShortestSegment = 512;

/// How every (batch entry, head) is cut into segments.
struct Cut {
  int64_t batch, heads, length, segments, segment_length;

  explicit Cut(const Problem& problem)
      : batch(problem.batch), heads(problem.heads), length(problem.length) {
    const int64_t pairs = std::max<int64_t>(batch * heads, 1);
    const int64_t wanted = std::clamp<int64_t>(kTasksWanted / pairs, 1,
                                               std::max<int64_t>(length / kShortestSegment, 1));
    segment_length = round_up((length + wanted - 1) / wanted, kChunk);
    segments = (length + segment_length - 1) / segment_length;
  }

  int64_t tasks() const { return batch * heads * segments; }
  /// Of one pass over one segment, in multiply-adds.
  template <typename Real>
  int64_t cost(const SweepArgs<Real>& args) const {
    return segment_length *
           (args.maps * args.head_dim + (args.has_near ? args.left + args.right + 1 : 0)) *
           (args.head_dim + args.value_dim);
  }
  Segment segment(int64_t task) const {
    const int64_t pair = task / segments, begin = task % segments * segment_length;
    return {pair / heads, pair % heads, begin, std::min(begin + segment_length, length)};
  }
};

/// One far state per task, in the sweeps' padded form.
template <typename Real>
class FarStates {
 public:
  FarStates() = default;
  FarStates(const SweepArgs<Real>& args, int64_t count)
      : size_(far_state_size(args)),
        sums_size_(feature_width(args) * padded(args.value_dim)),
        memory_(at::zeros({count, size_}, c10::CppTypeToScalarType<Real>::value)) {}

  FarState<Real> operator[](int64_t index) {
    if (size_ == 0) return {};
    Real* start = memory_.template data_ptr<Real>() + index * size_;
    return {start, start + sums_size_};
  }

  /// Sums over neighbouring tasks turn into sums over all segments before (or after) each, of the
  /// same pair.
  void scan_exclusive(const Cut& cut, bool from_the_end) {
    const at::Tensor running = at::empty({size_}, memory_.options());
    for (int64_t pair = 0; pair < cut.batch * cut.heads; ++pair) {
      running.zero_();
      for (int64_t s = 0; s < cut.segments; ++s) {
        at::Tensor current =
            memory_[pair * cut.segments + (from_the_end ? cut.segments - 1 - s : s)];
        const at::Tensor own = current.clone();
        current.copy_(running);
        running.add_(own);
      }
    }
  }
  /// ... or into the sum over all segments of the pair, in every segment.
  void share_totals(const Cut& cut) {
    at::Tensor by_pair = memory_.view({cut.batch * cut.heads, cut.segments, size_});
    at::Tensor total = by_pair.select(1, 0).clone();
    for (int64_t s = 1; s < cut.segments; ++s) total.add_(by_pair.select(1, s));
    by_pair.copy_(total.unsqueeze(1));
  }

 private:
  int64_t size_ = 0, sums_size_ = 0;
  at::Tensor memory_;
};

/// Whether a task needs sums that other tasks made.
template <typename Real>
bool shares_states(const SweepArgs<Real>& args, const Cut& cut) {
  return args.maps > 0 && cut.segments > 1;
}

/// A task that shares no states, mostly one with a whole sequence to itself, has them per thread.
/// It takes one sweep after the other, while its rows are in the thread's own cache.
enum class OwnSums { kKeys, kQueries };
template <typename Real>
FarState<Real> own_state(const SweepArgs<Real>& args, OwnSums which) {
  if (args.maps == 0) return {};
  thread_local Arena memory[2];
  Arena& own = memory[static_cast<int>(which)];
  own.reset();
  Real* start = own.take_zeros<Real>(far_state_size(args));
  return {start, start + feature_width(args) * padded(args.value_dim)};
}

/// Between the sweeps' padded states and the [D, Dv] ones that forward returns.
template <typename Real>
void unpack_state(const SweepArgs<Real>& args, FarState<Real> state, Real* sums, Real* key_sums) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  for (int64_t l = 0; l < args.maps; ++l) {
    for (int64_t c = 0; c < args.head_dim; ++c) {
      const Real* from = state.sums + (l * width + c) * value_width;
      sums = std::copy_n(from, args.value_dim, sums);
      *key_sums++ = state.key_sums[l * width + c];
    }
  }
}
template <typename Real>
void pack_state(const SweepArgs<Real>& args, const Real* sums, const Real* key_sums,
                FarState<Real> state) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  for (int64_t l = 0; l < args.maps; ++l) {
    for (int64_t c = 0; c < args.head_dim; ++c, sums += args.value_dim) {
      std::copy_n(sums, args.value_dim, state.sums + (l * width + c) * value_width);
      state.key_sums[l * width + c] = *key_sums++;
    }
  }
}

}  // namespace fmmformer::cpu
