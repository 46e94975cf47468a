// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/cluster_capacity.h"

#include <algorithm>
#include <bit>

namespace fmmformer {
namespace {

constexpr int64_t kLeastCapacity = 128;  // a tile of a matrix product: fewer rows cost as much

}  // namespace

int64_t cluster_capacity(int64_t members, int64_t tokens) {
  const int64_t wanted = std::max(members, kLeastCapacity);
  const int64_t quarter = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(wanted))) / 4;
  return std::min((wanted + quarter - 1) / quarter * quarter, tokens);
}

std::vector<int64_t> cluster_capacities(std::span<const int64_t> targets,
                                        std::span<const int64_t> cutoffs) {
  std::vector<int64_t> members(cutoffs.size(), 0);
  for (const int64_t target : targets) {
    const auto after = std::ranges::upper_bound(cutoffs, target) - cutoffs.begin();
    if (after > 0) ++members[static_cast<size_t>(after - 1)];
  }
  for (int64_t& count : members) count = cluster_capacity(count, std::ssize(targets));
  return members;
}

}  // namespace fmmformer
