// SPDX-License-Identifier: Apache-2.0
// Items computed ahead of their use, by threads.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fmmformer::train {

struct PrefetchOptions {
  int64_t threads = 1;   // 0: compute when asked, in the asking thread
  int64_t capacity = 4;  // items ready or in the making, at most; at least one
  int64_t first = 0;     // index of the first item
  int64_t end = std::numeric_limits<int64_t>::max();  // one past the last
};

/// Gives make(first), make(first + 1), ... in this order, whatever the number of threads. `make`
/// must be a pure function of the index and safe to call from several threads at once. What it
/// throws is thrown by the next() that would have given the item; the items after it are still
/// there. The destructor waits for the calls of `make` that are under way.
template <typename Item>
class Prefetcher {
 public:
  using Make = std::function<Item(int64_t)>;

  Prefetcher(Make make, const PrefetchOptions& options)
      : make_(std::move(make)),
        end_(options.end),
        wanted_(options.first),
        started_(options.first),
        slots_(static_cast<size_t>(std::max<int64_t>(options.capacity, 1))) {
    for (int64_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this](std::stop_token stop) { work(stop); });
    }
  }

  /// Waits for the next item. Throws std::out_of_range after the last.
  Item next() {
    if (wanted_ >= end_) {
      throw std::out_of_range("Prefetcher: item " + std::to_string(wanted_) +
                              " was asked for, the last is " + std::to_string(end_ - 1));
    }
    if (threads_.empty()) return make_(wanted_++);
    Slot slot = take();
    if (slot.error) std::rethrow_exception(slot.error);
    return std::move(*slot.item);
  }

  /// Index of the item that next() gives.
  int64_t index() const { return wanted_; }

 private:
  struct Slot {
    bool ready = false;
    std::optional<Item> item;
    std::exception_ptr error;
  };

  Slot& slot_of(int64_t index) { return slots_[static_cast<size_t>(index) % slots_.size()]; }

  Slot take() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return slot_of(wanted_).ready; });
    Slot taken = std::exchange(slot_of(wanted_), Slot{});
    ++wanted_;
    room_.notify_one();
    return taken;
  }

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto has_room = [&] {
      return started_ < end_ && started_ - wanted_ < static_cast<int64_t>(slots_.size());
    };
    while (room_.wait(lock, stop, has_room)) {
      if (stop.stop_requested()) return;
      const int64_t index = started_++;
      lock.unlock();
      Slot made = compute(index);
      lock.lock();
      slot_of(index) = std::move(made);
      ready_.notify_all();
    }
  }

  Slot compute(int64_t index) {
    Slot slot{.ready = true};
    try {
      slot.item.emplace(make_(index));
    } catch (...) {
      slot.error = std::current_exception();
    }
    return slot;
  }

  const Make make_;
  const int64_t end_;
  std::mutex mutex_;
  std::condition_variable_any ready_;  // an item is there
  std::condition_variable_any room_;   // an item may be begun
  int64_t wanted_;                     // the next to give
  int64_t started_;                    // the next to begin
  std::vector<Slot> slots_;            // item i lies in slot i modulo the capacity
  std::vector<std::jthread> threads_;  // last, so that they end before what they use
};

}  // namespace fmmformer::train
