// SPDX-License-Identifier: Apache-2.0
// Which states in memory a segment's sweep begins with.
#pragma once

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda {

/// The entries of args.start that a segment begins with: `count` from `first` on.
struct StartEntries {
  int64_t first = 0;
  int count = 0;

  /// `place`: the pair and segment of a thread block.
  template <typename Place>
  __device__ StartEntries(const SweepArgs& args, const Place& place) {
    const int parts = args.start.parts;
    const int64_t own = int64_t(place.pair) * args.segments * parts;
    switch (args.start.source) {
      case StateSource::kNothing:
        break;
      case StateSource::kOwn:
        first = own + place.segment, count = 1;
        break;
      case StateSource::kBefore:
        first = own, count = place.segment * parts;
        break;
      case StateSource::kAfter:
        first = own + (place.segment + 1) * parts;
        count = (args.segments - place.segment - 1) * parts;
        break;
      case StateSource::kAll:
        first = own, count = args.segments * parts;
        break;
      case StateSource::kPair:
        first = place.pair, count = 1;
        break;
    }
  }
};

}  // namespace fmmformer::cuda
