// SPDX-License-Identifier: Apache-2.0
#include "train/process_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

namespace fmmformer::train {

int64_t peak_bytes(const c10::Device& device) {
  if (device.is_cuda()) {
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
    if (allocator == nullptr) return 0;
    const auto stats = allocator->getDeviceStats(device.index() < 0 ? 0 : device.index());
    return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
        .peak;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace fmmformer::train
