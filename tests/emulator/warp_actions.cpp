// SPDX-License-Identifier: Apache-2.0
// What lanes and warps do together: branches, exchange, barriers.
#include <algorithm>
#include <stdexcept>

#include "emulator/actions.h"
#include "emulator/block.h"

namespace fmmformer::emulator {
namespace {

/// `to | inside, value, which, bounds, members`. kSource: the lane to read from, and whether that
/// is inside; of this lane, the number `which`, its segment's first lane and its bound, and the
/// bits that lanes of a segment have alike.
template <auto kSource>
void shuffle(Warp& w, const Instruction& i, Lanes lanes) {
  const bool tells = i.operands.size() == 6;  // whether the source was inside
  const size_t value = tells ? 2 : 1;
  uint32_t values[kWarpSize];
  for (int lane = 0; lane < kWarpSize; ++lane) values[lane] = w.read<uint32_t>(i[value], lane);
  each_lane(lanes, [&](int lane) {
    const auto which = w.read<int32_t>(i[value + 1], lane) & 31;
    const auto bounds = w.read<uint32_t>(i[value + 2], lane);
    const int segment = static_cast<int>(bounds >> 8 & 31),
              last_bits = static_cast<int>(bounds & 31);
    const int first = lane & segment, last = first | (last_bits & ~segment);
    bool inside = true;
    const int source = kSource(lane, which, first, last, segment, inside);
    w.write<uint32_t>(i[0], lane, values[inside ? source : lane]);
    if (tells) w.write<uint8_t>(i[1], lane, inside);
  });
}
constexpr auto kIndexed = [](int, int which, int first, int last, int segment, bool& inside) {
  const int source = first | (which & ~segment);
  inside = source <= last;
  return source;
};
constexpr auto kButterfly = [](int lane, int which, int, int last, int, bool& inside) {
  inside = (lane ^ which) <= last;
  return lane ^ which;
};
constexpr auto kUp = [](int lane, int which, int, int first, int, bool& inside) {
  inside = lane - which >= first;
  return lane - which;
};
constexpr auto kDown = [](int lane, int which, int, int last, int, bool& inside) {
  inside = lane + which <= last;
  return lane + which;
};

Lanes votes(Warp& w, const Instruction& i, Lanes lanes) {
  Lanes votes = 0;
  each_lane(lanes,
            [&](int lane) { votes |= w.read<uint8_t>(i[1], lane) != 0 ? Lanes{1} << lane : 0; });
  return votes;
}
template <typename T, auto kResult>
void vote(Warp& w, const Instruction& i, Lanes lanes) {
  const T result = kResult(votes(w, i, lanes), lanes);
  each_lane(lanes, [&](int lane) { w.write<T>(i[0], lane, result); });
}

template <bool kWaits>
void barrier(Warp& w, const Instruction& i, Lanes) {
  const int threads = i.operands.size() > 1 ? w.read_uniform<int32_t>(i[1]) : 0;
  w.block.arrive_at_barrier(w, w.read_uniform<int32_t>(i[0]), threads, kWaits);
}

/// bar.red: whether any thread that comes says so. The operands: where to, the barrier, the vote.
void barrier_of_votes(Warp& w, const Instruction& i, Lanes lanes) {
  bool any = false;
  const size_t vote = i.operands.size() - 1;  // before it there may be a number of threads
  each_lane(lanes, [&](int lane) { any |= w.read<uint8_t>(i[vote], lane) != 0; });
  const int threads = vote == 3 ? w.read_uniform<int32_t>(i[2]) : 0;
  w.block.arrive_at_barrier(w, w.read_uniform<int32_t>(i[1]), threads, true,
                            {.any = any, .to = &i[0]});
}
void arrive_at_cluster(Warp& w, const Instruction&, Lanes) { w.block.arrive_at_cluster(w); }
void await_cluster(Warp& w, const Instruction&, Lanes) { w.block.await_cluster(w); }

template <typename T, auto kOp>
void reduce(Warp& w, const Instruction& i, Lanes lanes) {
  T result = w.read<T>(i[1], std::countr_zero(lanes));
  each_lane(lanes, [&](int lane) { result = kOp(result, w.read<T>(i[1], lane)); });
  each_lane(lanes, [&](int lane) { w.write(i[0], lane, result); });
}

void only_flow(Warp&, const Instruction&, Lanes) {}

}  // namespace

void add_warp(Meanings& all) {
  all["bra"] = all["bra.uni"] = {only_flow, Flow::kBranch};
  all["exit"] = all["ret"] = {only_flow, Flow::kExit};
  all["bar.warp.sync"] = {only_flow, Flow::kTogether};
  all["shfl.sync.idx.b32"] = {shuffle<kIndexed>, Flow::kTogether};
  all["shfl.sync.bfly.b32"] = {shuffle<kButterfly>, Flow::kTogether};
  all["shfl.sync.up.b32"] = {shuffle<kUp>, Flow::kTogether};
  all["shfl.sync.down.b32"] = {shuffle<kDown>, Flow::kTogether};
  constexpr auto kBallot = [](Lanes votes, Lanes) { return votes; };
  constexpr auto kEvery = [](Lanes votes, Lanes lanes) { return uint8_t(votes == lanes); };
  constexpr auto kAny = [](Lanes votes, Lanes) { return uint8_t(votes != 0); };
  all["vote.sync.ballot.b32"] = {vote<uint32_t, kBallot>, Flow::kTogether};
  all["vote.sync.all.pred"] = {vote<uint8_t, kEvery>, Flow::kTogether};
  all["vote.sync.any.pred"] = {vote<uint8_t, kAny>, Flow::kTogether};
  all["bar.sync"] = all["barrier.sync"] = {barrier<true>, Flow::kBarrier};
  all["bar.red.or.pred"] = {barrier_of_votes, Flow::kBarrier};
  for (const char* how : {"", ".release", ".relaxed", ".aligned"})
    all["barrier.cluster.arrive" + std::string(how)] = {arrive_at_cluster, Flow::kTogether};
  for (const char* how : {"", ".acquire", ".aligned"})
    all["barrier.cluster.wait" + std::string(how)] = {await_cluster, Flow::kBarrier};
  constexpr auto kLargest = [](auto a, auto b) { return std::max(a, b); };
  constexpr auto kSmallest = [](auto a, auto b) { return std::min(a, b); };
  all["redux.sync.max.u32"] = {reduce<uint32_t, kLargest>, Flow::kTogether};
  all["redux.sync.max.s32"] = {reduce<int32_t, kLargest>, Flow::kTogether};
  all["redux.sync.min.u32"] = {reduce<uint32_t, kSmallest>, Flow::kTogether};
  all["redux.sync.min.s32"] = {reduce<int32_t, kSmallest>, Flow::kTogether};
  all["bar.arrive"] = {barrier<false>, Flow::kBarrier};
}

const Meanings& meanings() {
  static const Meanings all = [] {
    Meanings made;
    add_arithmetic(made), add_half_arithmetic(made), add_memory(made), add_warp(made);
    add_matrix_products(made);
    return made;
  }();
  return all;
}

}  // namespace fmmformer::emulator
