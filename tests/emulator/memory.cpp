// SPDX-License-Identifier: Apache-2.0
// Loads and stores, copies that go on beside a thread's work, and the events at which they arrive.
#include <algorithm>
#include <stdexcept>

#include "emulator/actions.h"
#include "emulator/block.h"
#include "emulator/tensor_map.h"

namespace fmmformer::emulator {
namespace {

enum class Space { kGlobal, kShared };  // kGlobal: any but shared memory's own addresses

[[noreturn]] void fail_not_aligned(const Instruction& i) {
  throw std::runtime_error("not aligned: " + std::string(i.text));
}

/// Where a lane's access goes.
struct Place {
  unsigned char* at;
  Range shared;  // if it is in shared memory: else address 0
};
template <Space kSpace>
Place place_of(Warp& w, const Instruction& i, const Operand& address, int lane, uint32_t bytes) {
  Place place;
  if constexpr (kSpace == Space::kShared) {
    place.shared = {w.shared_address(address, lane), bytes};
    place.at = w.block.shared(place.shared.begin, bytes);
  } else {
    place.at = std::bit_cast<unsigned char*>(w.address(address, lane));
    place.shared = {w.block.shared_address_of(place.at, bytes), bytes};
  }
  if (std::bit_cast<uint64_t>(place.at) % bytes != 0) fail_not_aligned(i);
  return place;
}
Races* races_at(const Warp& w, const Place& place) {
  return place.shared.begin != 0 ? w.block.races : nullptr;
}

template <Space kSpace, typename T, size_t kCount>
void load(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    T values[kCount];
    const Place from = place_of<kSpace>(w, i, i[kCount], lane, sizeof(values));
    if (Races* races = races_at(w, from)) races->read(w.number, from.shared, i.text);
    std::memcpy(values, from.at, sizeof(values));
    for (size_t n = 0; n < kCount; ++n) {
      if constexpr (std::is_signed_v<T>)
        w.write<int64_t>(i[n], lane, values[n]);
      else
        w.write<T>(i[n], lane, values[n]);
    }
  });
}
template <Space kSpace, typename T, size_t kCount>
void store(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    T values[kCount];
    for (size_t n = 0; n < kCount; ++n) values[n] = w.read<T>(i[1 + n], lane);
    const Place to = place_of<kSpace>(w, i, i[0], lane, sizeof(values));
    if (Races* races = races_at(w, to))
      races->write(w.number, to.shared, i.text, std::memcmp(to.at, values, sizeof(values)) != 0);
    std::memcpy(to.at, values, sizeof(values));
  });
}

template <Space kSpace, typename T>
void add_accesses(Meanings& all, const std::string& space, const std::string& type) {
  const auto add = [&](const std::string& vector, Action loads, Action stores) {
    for (const char* how : {"", ".volatile", ".relaxed.gpu", ".acquire.gpu", ".release.gpu"}) {
      all["ld" + std::string(how) + space + vector + "." + type] = {loads};
      all["st" + std::string(how) + space + vector + "." + type] = {stores};
    }
    all["ld" + space + ".cg" + vector + "." + type] = {loads};
    all["st" + space + ".cg" + vector + "." + type] = {stores};
    all["ld" + space + ".nc" + vector + "." + type] = {loads};
    all["ld" + space + ".nc.L1::no_allocate" + vector + "." + type] = {loads};
  };
  add("", load<kSpace, T, 1>, store<kSpace, T, 1>);
  add(".v2", load<kSpace, T, 2>, store<kSpace, T, 2>);
  if constexpr (sizeof(T) <= 4) add(".v4", load<kSpace, T, 4>, store<kSpace, T, 4>);
}
template <Space kSpace>
void add_accesses(Meanings& all, const std::string& space) {
  for (const char* type : {"u8", "b8"}) add_accesses<kSpace, uint8_t>(all, space, type);
  for (const char* type : {"u16", "b16", "f16"}) add_accesses<kSpace, uint16_t>(all, space, type);
  for (const char* type : {"u32", "b32", "f32"}) add_accesses<kSpace, uint32_t>(all, space, type);
  for (const char* type : {"u64", "s64", "b64", "f64"})
    add_accesses<kSpace, uint64_t>(all, space, type);
  add_accesses<kSpace, int8_t>(all, space, "s8"), add_accesses<kSpace, int16_t>(all, space, "s16");
  add_accesses<kSpace, int32_t>(all, space, "s32");
}

// Addresses: those of shared memory are its own, all others the machine's.
void keep_address(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) { w.write(i[0], lane, w.read<uint64_t>(i[1], lane)); });
}
void to_shared_address(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const auto* at = std::bit_cast<const void*>(w.read<uint64_t>(i[1], lane));
    w.write<uint64_t>(i[0], lane, w.block.shared_address_of(at, 0));
  });
}
void to_generic_address(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    w.write(i[0], lane, w.block.generic_address(w.read<uint32_t>(i[1], lane)));
  });
}

/// Atomic operations: `atom` gives back what was there, `red` does not.
template <Space kSpace, typename T, auto kOp, bool kGivesBack>
void change(Warp& w, const Instruction& i, Lanes lanes) {
  constexpr size_t kAddress = kGivesBack ? 1 : 0;
  each_lane(lanes, [&](int lane) {
    const Place place = place_of<kSpace>(w, i, i[kAddress], lane, sizeof(T));
    if (Races* races = races_at(w, place)) races->change(w.number, place.shared, i.text);
    T before;
    std::memcpy(&before, place.at, sizeof(T));
    const T after = kOp(before, w.read<T>(i[kAddress + 1], lane));
    std::memcpy(place.at, &after, sizeof(T));
    if constexpr (kGivesBack) w.write(i[0], lane, before);
  });
}
template <typename T, auto kOp>
void add_changes(Meanings& all, const std::string& operation) {
  for (const char* order : {"", ".relaxed.gpu", ".acquire.gpu", ".release.gpu", ".acq_rel.gpu"}) {
    all["atom" + std::string(order) + ".global." + operation] = {
        change<Space::kGlobal, T, kOp, true>};
    all["red" + std::string(order) + ".global." + operation] = {
        change<Space::kGlobal, T, kOp, false>};
  }
  all["atom.shared." + operation] = {change<Space::kShared, T, kOp, true>};
  all["red.shared." + operation] = {change<Space::kShared, T, kOp, false>};
}

// Numbers in shared memory by which warps tell each other how far they are.
void tell(Warp& w, const Instruction& i, Lanes lanes) {
  constexpr auto kSum = [](uint32_t a, uint32_t b) { return a + b; };
  change<Space::kShared, uint32_t, kSum, false>(w, i, lanes);
  // After the change, so that who reads the number knows of that, too.
  each_lane(lanes, [&](int lane) { w.block.release(w, w.shared_address(i[0], lane)); });
}
void ask(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const uint32_t address = w.shared_address(i[1], lane);
    uint32_t number;
    std::memcpy(&number, w.block.shared(address, sizeof(number)), sizeof(number));
    w.write(i[0], lane, number);
    w.block.acquire(w, address);
    if (Races* races = w.block.races) races->use(w.number, {address, sizeof(number)}, i.text);
  });
  w.waits = true;
}
template <typename T>
void ask_memory(Warp& w, const Instruction& i, Lanes lanes) {
  load<Space::kGlobal, T, 1>(w, i, lanes);
  w.waits = true;
}

// Clusters: addresses of other blocks' shared memory.
void map_to_block(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const auto* at = std::bit_cast<const void*>(w.read<uint64_t>(i[1], lane));
    const uint32_t shared = w.block.shared_address_of(at, 0);
    w.write(i[0], lane, w.block.in_cluster(w.read<uint32_t>(i[2], lane)).generic_address(shared));
  });
}

// Copies of a thread to shared memory (cp.async). ---------------------------------------------

void copy_to_shared(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    // The third number is the size; a fourth, how many bytes are copied: the rest are zeros.
    const auto size = w.read<uint32_t>(i[2], lane);
    const uint32_t bytes = i.operands.size() > 3 ? w.read<uint32_t>(i[3], lane) : size;
    const uint32_t to = w.shared_address(i[0], lane);
    const auto from = w.address(i[1], lane);
    if (to % size != 0 || (bytes > 0 && from % size != 0)) fail_not_aligned(i);
    unsigned char* at = w.block.shared(to, size);
    std::memset(at, 0, size);
    if (bytes > 0) std::memcpy(at, std::bit_cast<const void*>(from), bytes);
    if (Races* races = w.block.races)
      races->begin_writing(w.number, w.copies.lanes[lane], {to, size}, i.text);
  });
}
void commit(Warp& w, PendingWork& work, Lanes lanes) {
  if (!w.block.races) return;
  each_lane(lanes, [&](int lane) { w.block.races->commit(work.lanes[lane]); });
}
void finish(Warp& w, PendingWork& work, Lanes lanes, size_t but_newest) {
  if (!w.block.races) return;
  each_lane(lanes,
            [&](int lane) { w.block.races->finish(w.number, work.lanes[lane], but_newest); });
}
void commit_copies(Warp& w, const Instruction&, Lanes lanes) { commit(w, w.copies, lanes); }
void await_copies(Warp& w, const Instruction& i, Lanes lanes) {
  finish(w, w.copies, lanes, w.read_uniform<uint32_t>(i[0]));
}
void await_all_copies(Warp& w, const Instruction&, Lanes lanes) {
  commit(w, w.copies, lanes);
  finish(w, w.copies, lanes, 0);
}

// The copy engine (cp.async.bulk). ------------------------------------------------------------

void check_bulk(const Instruction& i, uint64_t to, uint64_t from, int64_t bytes) {
  if ((to | from | static_cast<uint64_t>(bytes)) % 16 != 0) fail_not_aligned(i);
}
void bulk_load(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const uint32_t to = w.shared_address(i[0], lane), event = w.shared_address(i[3], lane),
                   bytes = w.read<uint32_t>(i[2], lane);
    const uint64_t from = w.address(i[1], lane);
    check_bulk(i, to, from, bytes);
    if (Races* races = w.block.races)
      races->write_by_engine(w.number, {to, bytes}, w.block.stamp_of_event(w, event), i.text);
    std::memcpy(w.block.shared(to, bytes), std::bit_cast<const void*>(from), bytes);
    w.block.complete_bytes(event, bytes);
  });
}
void bulk_store(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const uint32_t from = w.shared_address(i[1], lane), bytes = w.read<uint32_t>(i[2], lane);
    const uint64_t to = w.address(i[0], lane);
    check_bulk(i, to, from, bytes);
    if (Races* races = w.block.races)
      races->begin_reading(w.number, w.stores.lanes[lane], {{from, bytes}}, i.text);
    std::memcpy(std::bit_cast<void*>(to), w.block.shared(from, bytes), bytes);
  });
}
/// A box of a tensor, {channel, head, token, batch entry}.
template <typename F>
void each_box_piece(Warp& w, const TensorMap& map, const Instruction& i, size_t coordinates,
                    uint32_t shared, int lane, F&& f) {
  int32_t first[TensorMap::kDims];
  for (size_t d = 0; d < TensorMap::kDims; ++d)
    first[d] = w.read<int32_t>(i[coordinates + d], lane);
  map.each_piece(first, shared, f);
}
void tensor_load(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const TensorMap& map = TensorMap::at(std::bit_cast<const void*>(w.address(i[1], lane)));
    const uint32_t to = w.shared_address(i[0], lane), event = w.shared_address(i[6], lane);
    const auto bytes = static_cast<uint32_t>(map.box_bytes());
    if (to % TensorMap::kAligned != 0) fail_not_aligned(i);
    if (Races* races = w.block.races)
      races->write_by_engine(w.number, {to, bytes}, w.block.stamp_of_event(w, event), i.text);
    each_box_piece(w, map, i, 2, to, lane, [&](uint32_t at, const unsigned char* from) {
      unsigned char* piece = w.block.shared(at, TensorMap::kPieceBytes);
      std::memset(piece, 0, TensorMap::kPieceBytes);
      if (from) std::memcpy(piece, from, TensorMap::kPieceBytes);
    });
    w.block.complete_bytes(event, bytes);
  });
}
void tensor_store(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const TensorMap& map = TensorMap::at(std::bit_cast<const void*>(w.address(i[0], lane)));
    const uint32_t from = w.shared_address(i[5], lane);
    if (from % TensorMap::kAligned != 0) fail_not_aligned(i);
    if (Races* races = w.block.races)
      races->begin_reading(w.number, w.stores.lanes[lane], {{from, uint32_t(map.box_bytes())}},
                           i.text);
    each_box_piece(w, map, i, 1, from, lane, [&](uint32_t at, unsigned char* to) {
      if (to) std::memcpy(to, w.block.shared(at, TensorMap::kPieceBytes), TensorMap::kPieceBytes);
    });
  });
}
void commit_stores(Warp& w, const Instruction&, Lanes lanes) { commit(w, w.stores, lanes); }
void await_stores(Warp& w, const Instruction& i, Lanes lanes) {
  finish(w, w.stores, lanes, w.read_uniform<uint32_t>(i[0]));
}
void show_to_engine(Warp& w, const Instruction&, Lanes) {
  if (w.block.races) w.block.races->show(w.number);
}

// Events (mbarrier). ----------------------------------------------------------------------------

void init_event(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    w.block.init_event(w, w.shared_address(i[0], lane), w.read<int32_t>(i[1], lane));
  });
}
/// The operands: what nobody wants, the event, bytes.
void expect_and_arrive(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const uint32_t event = w.shared_address(i[1], lane);
    w.block.arrive_at_event(w, event, w.read<uint32_t>(i[2], lane));
  });
}
void arrive(Warp& w, const Instruction& i, Lanes lanes) {
  if (i.operands.size() != 2) throw std::runtime_error("several arrive at once");
  each_lane(lanes, [&](int lane) {
    w.block.arrive_at_event(w, w.shared_address(i[1], lane), /*expected_bytes=*/0);
  });
}
void try_event(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const bool completed =
        w.block.has_completed(w, w.shared_address(i[1], lane), w.read<int32_t>(i[2], lane));
    w.write<uint8_t>(i[0], lane, completed);
    if (!completed) w.waits = true;
  });
}

void order_memory(Warp&, const Instruction&, Lanes) {}  // there is but one order here

}  // namespace

void add_memory(Meanings& all) {
  add_accesses<Space::kShared>(all, ".shared");
  for (const char* space : {".global", ".local", ".param", ".const", ""})
    add_accesses<Space::kGlobal>(all, space);
  for (const char* space : {"global", "local", "const", "param"}) {
    all["cvta." + std::string(space) + ".u64"] = {keep_address};
    all["cvta.to." + std::string(space) + ".u64"] = {keep_address};
  }
  all["cvta.to.shared.u64"] = {to_shared_address};
  all["cvta.shared.u64"] = {to_generic_address};

  all["mapa.u64"] = {map_to_block};

  constexpr auto kSum = [](auto a, auto b) { return decltype(a)(a + b); };
  constexpr auto kLargest = [](auto a, auto b) { return std::max(a, b); };
  constexpr auto kSmallest = [](auto a, auto b) { return std::min(a, b); };
  constexpr auto kNextBelow = [](uint32_t a, uint32_t b) { return a >= b ? 0u : a + 1; };
  add_changes<uint32_t, kSum>(all, "add.u32"), add_changes<int32_t, kSum>(all, "add.s32");
  add_changes<uint64_t, kSum>(all, "add.u64"), add_changes<uint32_t, kNextBelow>(all, "inc.u32");
  add_changes<uint32_t, kLargest>(all, "max.u32"), add_changes<int32_t, kLargest>(all, "max.s32");
  add_changes<uint32_t, kSmallest>(all, "min.u32"), add_changes<int32_t, kSmallest>(all, "min.s32");
  all["red.release.cta.shared::cta.add.u32"] = {tell};
  all["ld.acquire.cta.shared::cta.u32"] = {ask, Flow::kWait};
  for (const char* type : {"b32", "u32", "s32"})
    all["ld.acquire.gpu.global." + std::string(type)] = {ask_memory<uint32_t>, Flow::kWait};
  for (const char* name :
       {"membar.gl", "membar.cta", "fence.acq_rel.gpu", "fence.sc.gpu", "fence.acq_rel.cta",
        "fence.sc.cta", "fence.mbarrier_init.release.cluster", "prefetch.global.L2"})
    all[name] = {order_memory};

  for (const char* name : {"cp.async.cg.shared.global", "cp.async.cg.shared.global.L2::128B",
                           "cp.async.ca.shared.global"})
    all[name] = {copy_to_shared};
  all["cp.async.commit_group"] = {commit_copies};
  all["cp.async.wait_group"] = {await_copies};
  all["cp.async.wait_all"] = {await_all_copies};

  all["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"] = {bulk_load};
  all["cp.async.bulk.global.shared::cta.bulk_group"] = {bulk_store};
  all["cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"] = {
      tensor_load};
  all["cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"] = {tensor_store};
  all["cp.async.bulk.commit_group"] = {commit_stores};
  all["cp.async.bulk.wait_group"] = all["cp.async.bulk.wait_group.read"] = {await_stores};
  all["fence.proxy.async.shared::cta"] = {show_to_engine};

  all["mbarrier.init.shared::cta.b64"] = {init_event};
  all["mbarrier.arrive.expect_tx.shared::cta.b64"] = {expect_and_arrive};
  all["mbarrier.arrive.shared::cta.b64"] = {arrive};
  all["mbarrier.try_wait.parity.shared::cta.b64"] = {try_event, Flow::kWait};
}

}  // namespace fmmformer::emulator
