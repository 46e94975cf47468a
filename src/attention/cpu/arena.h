// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace fmmformer::cpu {

/// Scratch memory of one thread: take() hands out 64-byte aligned arrays, reset() takes them all
/// back and keeps the memory, so that the many small tasks of one call do not each fault in fresh
/// pages.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (const Block& block : blocks_) std::free(block.data);
  }

  template <typename T>
  T* take(int64_t count) {
    // One cache line beyond the end: kernels may read (never use) one vector past a row.
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 127) / 64 * 64;
    while (current_ < blocks_.size() && blocks_[current_].used + bytes > blocks_[current_].size)
      ++current_;
    if (current_ == blocks_.size()) add_block(bytes);
    Block& block = blocks_[current_];
    std::byte* result = block.data + block.used;
    block.used += bytes;
    return reinterpret_cast<T*>(result);
  }

  template <typename T>
  T* take_zeros(int64_t count) {
    T* result = take<T>(count);
    for (int64_t i = 0; i < count; ++i) result[i] = T(0);
    return result;
  }

  void reset() {
    for (Block& block : blocks_) block.used = 0;
    current_ = 0;
  }

 private:
  struct Block {
    std::byte* data;
    size_t size, used;
  };

  void add_block(size_t at_least) {
    // Holds the tiles of a D = 64, r = 3 sweep. Larger blocks are whole multiples, so that requests
    // that grow a little with every call do not each leave a block behind.
    constexpr size_t kBlockSize = size_t{1} << 20;
    const size_t size = (at_least + kBlockSize - 1) / kBlockSize * kBlockSize;
    auto* data = static_cast<std::byte*>(std::aligned_alloc(64, size));
    if (data == nullptr) throw std::bad_alloc();
    blocks_.push_back({data, size, 0});
  }

  std::vector<Block> blocks_;
  size_t current_ = 0;
};

}  // namespace fmmformer::cpu
