// SPDX-License-Identifier: Apache-2.0
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "bench/gpu.h"

namespace fmmformer::bench {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatType;
namespace allocator = c10::cuda::CUDACachingAllocator;

Stat allocated_bytes(const c10::Device& device) {
  return allocator::getDeviceStats(device.index())
      .allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)];
}

}  // namespace

std::string gpu_name(const c10::Device& device) {
  return at::cuda::getDeviceProperties(device.index())->name;
}

int64_t peak_gpu_bytes(const c10::Device& device, const Work& work) {
  c10::cuda::device_synchronize();
  const int64_t before = allocated_bytes(device).current;
  allocator::resetPeakStats(device.index());
  work();
  c10::cuda::device_synchronize();
  return allocated_bytes(device).peak - before;
}

void free_cached_gpu_memory() {
  c10::cuda::device_synchronize();
  allocator::emptyCache();
}

struct OwnStream::Guard {
  explicit Guard(const c10::cuda::CUDAStream& own) : stream(own) {}
  c10::cuda::CUDAStreamGuard stream;
};
OwnStream::OwnStream(const c10::Device& device) {
  c10::cuda::device_synchronize();  // what other streams still do must not run into it
  guard_ = std::make_unique<Guard>(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
}
OwnStream::~OwnStream() { c10::cuda::device_synchronize(); }

struct ReplayedGraph::Recording {
  at::cuda::CUDAGraph graph;
};

ReplayedGraph::ReplayedGraph(const Work& work) : recording_(std::make_unique<Recording>()) {
  constexpr int kWarmUps = 3;
  for (int i = 0; i < kWarmUps; ++i) work();
  c10::cuda::device_synchronize();
  // Thread-local: backward runs on a thread of torch's, which may do there what a recording thread
  // may not.
  recording_->graph.capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
  work();
  recording_->graph.capture_end();
}

ReplayedGraph::~ReplayedGraph() = default;

void ReplayedGraph::replay() { recording_->graph.replay(); }

}  // namespace fmmformer::bench
