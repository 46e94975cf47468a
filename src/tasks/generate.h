// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <future>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fmmformer::tasks {

/// Examples 0 .. count - 1 of the data set that `seed` names.
struct GenerateRequest {
  int64_t count = 0;
  uint64_t seed = 0;
  int threads = 1;
};

/// Calls sink(make(0)), sink(make(1)), .. in this order, from the calling thread, while `threads`
/// others make what comes next. As make is a function of the index alone, the sink gets the same
/// for any number of threads. What make or sink throws arrives here; no thread is left running.
template <typename Make, typename Sink>
void generate_in_order(const GenerateRequest& request, const Make& make, const Sink& sink) {
  using Block = std::vector<decltype(make(int64_t{0}))>;
  constexpr int64_t kBlock = 128;  // tens of milliseconds of work, beside which a thread is cheap
  if (request.count < 0 || request.threads < 1) {
    throw std::invalid_argument("generate: count is " + std::to_string(request.count) +
                                " and threads " + std::to_string(request.threads) +
                                ", allowed is at least 0 and 1");
  }
  const auto make_block = [&](int64_t first) {
    Block block;
    for (int64_t i = first; i < std::min(first + kBlock, request.count); ++i) {
      block.push_back(make(i));
    }
    return block;
  };
  std::deque<std::future<Block>> running;
  int64_t next = 0;
  while (next < request.count || !running.empty()) {
    while (next < request.count && std::ssize(running) < request.threads) {
      running.push_back(std::async(std::launch::async, make_block, next));
      next += kBlock;
    }
    const Block block = running.front().get();
    running.pop_front();
    for (const auto& example : block) sink(example);
  }
}

}  // namespace fmmformer::tasks
