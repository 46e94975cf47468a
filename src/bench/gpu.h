// SPDX-License-Identifier: Apache-2.0
// What timing needs of a GPU itself. In a build without CUDA (gpu_absent.cpp) every part of it
// throws std::invalid_argument.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "bench/statistics.h"

namespace fmmformer::bench {

/// "NVIDIA H200".
std::string gpu_name(const c10::Device& device);

/// The most bytes that `work` held at one time in torch's allocator for the GPU, beyond those that
/// were held before it.
int64_t peak_gpu_bytes(const c10::Device& device, const Work& work);

/// Gives back what the allocator keeps for later: the next candidate finds an empty GPU.
void free_cached_gpu_memory();

/// Makes a stream of its own the current one as long as it lives. What is to be recorded has to
/// live on such a stream from its inputs on: the default stream cannot be recorded, and backward
/// goes on wherever an input was first used.
class OwnStream {
 public:
  explicit OwnStream(const c10::Device& device);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

/// A piece of work recorded as a CUDA graph of the current device: replaying it costs the host one
/// launch, so what remains is the GPU's own time.
class ReplayedGraph {
 public:
  /// Runs `work` a few times, then records it. The current stream must not be the default one.
  explicit ReplayedGraph(const Work& work);
  ~ReplayedGraph();
  ReplayedGraph(const ReplayedGraph&) = delete;
  ReplayedGraph& operator=(const ReplayedGraph&) = delete;

  void replay();

 private:
  struct Recording;
  std::unique_ptr<Recording> recording_;
};

}  // namespace fmmformer::bench
