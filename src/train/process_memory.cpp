// SPDX-License-Identifier: Apache-2.0
#include "train/process_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

#include <fstream>

namespace fmmformer::train {

namespace {

c10::DeviceAllocator* gpu_allocator() {
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
}

c10::DeviceIndex index_of(const c10::Device& device) {
  return device.index() < 0 ? c10::DeviceIndex{0} : device.index();
}

}  // namespace

int64_t peak_bytes(const c10::Device& device) {
  if (device.is_cuda()) {
    auto* allocator = gpu_allocator();
    if (allocator == nullptr || !allocator->initialized()) return 0;
    const auto stats = allocator->getDeviceStats(index_of(device));
    return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
        .peak;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

void forget_peak_bytes(const c10::Device& device) {
  if (device.is_cuda()) {
    auto* allocator = gpu_allocator();
    if (allocator != nullptr && allocator->initialized()) {
      allocator->resetPeakStats(index_of(device));
    }
    return;
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // Linux: the peak becomes what is in use now
}

}  // namespace fmmformer::train
