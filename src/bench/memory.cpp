// SPDX-License-Identifier: Apache-2.0
#include "bench/memory.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>

namespace fmmformer::bench {
namespace {

std::atomic<int64_t> live_bytes = 0;
std::atomic<int64_t> peak_bytes = 0;

/// Torch's own allocator, with a count. It stays in place once installed, because memory that it
/// gave out must come back to its deleter; the price is two atomic additions per tensor.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    const auto usable = static_cast<int64_t>(malloc_usable_size(memory));
    const int64_t now = live_bytes.fetch_add(usable) + usable;
    for (int64_t peak = peak_bytes; peak < now && !peak_bytes.compare_exchange_weak(peak, now);) {
    }
    return {memory, memory, &CountingAllocator::release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* memory) {
    live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
    c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
  }
};

void install_once() {
  static const bool installed = [] {
    static CountingAllocator allocator;
    c10::SetCPUAllocator(&allocator, /*priority=*/1);  // torch's own has priority 0
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

int64_t peak_tensor_bytes(const std::function<void()>& work) {
  install_once();
  // Tensors from before the installation leave through torch's own deleter and are never counted,
  // on either side.
  const int64_t before = live_bytes;
  peak_bytes = before;
  work();
  return peak_bytes - before;
}

}  // namespace fmmformer::bench
