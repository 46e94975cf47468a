// SPDX-License-Identifier: Apache-2.0
// A thread block at work: its warps in turns, one instruction for all lanes that are at it.
//
// Where lanes of a warp part, those at the earliest instruction go on first; at an instruction for
// all lanes the ones that have come wait for the rest. Copies that run beside a thread's work are
// made at once; what may be read of them, and when, is for Races to watch.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "emulator/module.h"
#include "emulator/races.h"

namespace fmmformer::emulator {

constexpr Lanes kAllLanes = ~Lanes{0};
/// Where a block's shared memory begins: what is before is the GPU's own.
constexpr uint32_t kSharedBegin = 1024;
constexpr int kNamedBarriers = 16;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;

  unsigned count() const { return x * y * z; }
};

struct Launch {
  const Kernel* kernel = nullptr;
  Dim3 grid, block;
  unsigned cluster = 1;  // blocks, side by side in x
  uint32_t dynamic_shared_bytes = 0;
  const unsigned char* parameters = nullptr;
};

class Block;

template <typename F>
void each_lane(Lanes lanes, F&& f) {
  if (lanes == kAllLanes) {
    for (int lane = 0; lane < kWarpSize; ++lane) f(lane);
    return;
  }
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

class Warp {
 public:
  Warp(Block& block, int number);
  ~Warp();

  template <typename T>
  T read(const Operand& from, int lane) const {
    T value;
    std::memcpy(&value, &registers_[index(from, lane)], sizeof(T));
    return value;
  }
  template <typename T>
  void write(const Operand& to, int lane, T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    registers_[index(to, lane)] = bits;
  }
  /// What all lanes have alike.
  template <typename T>
  T read_uniform(const Operand& from) const {
    return read<T>(from, std::countr_zero(alive_));
  }
  /// An address [register + offset].
  uint64_t address(const Operand& from, int lane) const {
    return read<uint64_t>(from, lane) + static_cast<uint64_t>(from.offset);
  }
  uint32_t shared_address(const Operand& from, int lane) const {
    return static_cast<uint32_t>(address(from, lane));
  }

  /// Goes on until it must wait.
  void run();
  bool done() const { return alive_ == 0; }
  std::string where() const;
  std::string_view text() const { return text_; }  // of the instruction at hand

  Block& block;
  const int number;
  // Set by actions: whether what a kWait instruction waits for has not happened, or the warp is at
  // a barrier.
  bool waits = false, at_barrier = false, at_cluster_barrier = false;
  int cluster_turn = -1;  // of the cluster's barrier, at which the warp has arrived
  Lanes carry = 0;        // of sums of several words
  // Products of a warpgroup and copies that go on beside the warp's work: what Races is told when
  // they are waited for.
  PendingWork products, stores, copies;

 private:
  size_t index(const Operand& operand, int lane) const {
    return static_cast<size_t>(operand.number * kWarpSize + lane);
  }
  void set_special_registers();
  /// The lanes that go on first, and where they are. Those in `held` are at an instruction for
  /// which others must come.
  Lanes first_lanes(Lanes held, int& at) const;
  void end_if_done();
  void step(const Instruction& instruction, int at, Lanes lanes);

  std::vector<uint64_t> registers_;   // [registers][lanes]
  std::vector<unsigned char> local_;  // [lanes][bytes]
  std::array<int, kWarpSize> at_{};
  Lanes alive_ = kAllLanes, held_ = 0;
  std::string_view text_;
};

struct Cluster;

/// What a warp brings to a barrier that votes, and where the result goes.
struct Vote {
  bool any = false;
  const Operand* to = nullptr;
};

class Block {
 public:
  Block(const Launch& launch, Dim3 index, Cluster& cluster, Races* races);

  /// Every warp goes on until it must wait. Returns whether anything happened. Throws
  /// std::runtime_error at an unknown instruction, an address beyond shared memory and the like.
  bool run();
  bool done() const;
  std::string where() const;

  /// Bytes of shared memory, by their address there.
  unsigned char* shared(uint32_t address, int64_t bytes);
  /// The address of shared memory that a generic one stands for, or 0.
  uint32_t shared_address_of(const void* generic, int64_t bytes) const;
  uint64_t generic_address(uint32_t shared) const;

  /// Named barriers (bar.sync, bar.arrive). `threads`: 0 for all of the block.
  void arrive_at_barrier(Warp& warp, int barrier, int threads, bool waits, Vote vote = {});
  /// The cluster's barrier, and its other blocks.
  void arrive_at_cluster(Warp& warp);
  void await_cluster(Warp& warp);
  Block& in_cluster(uint32_t rank) const;
  /// What a warp has done before it changes a number in shared memory, another knows that reads
  /// it.
  void release(const Warp& warp, uint32_t address);
  void acquire(const Warp& warp, uint32_t address);

  /// Events in shared memory (mbarrier).
  void init_event(const Warp& warp, uint32_t address, int count);
  void arrive_at_event(const Warp& warp, uint32_t address, int64_t expected_bytes);
  void complete_bytes(uint32_t address, int64_t bytes);
  bool has_completed(const Warp& warp, uint32_t address, int parity);
  /// The turn that is under way, as writes that arrive at the event belong to it.
  Stamp stamp_of_event(const Warp& warp, uint32_t address);

  const Launch& launch;
  const Dim3 index;
  Races* const races;  // or none

 private:
  friend struct Cluster;
  struct Waiting {
    Warp* warp;
    Vote vote;
  };
  struct Barrier {
    int arrived = 0, expected = 0;
    bool any = false;  // vote
    std::vector<Waiting> waiting;
    uint32_t warps = 0;  // that have arrived
    Clock clock;
  };
  struct Event {
    int count = 0, pending = 0, number = 0;
    int64_t bytes = 0;
    uint32_t turn = 0;
    Clock clock, last_clock;  // of those who have arrived in this turn; in all before
  };
  Event& event_at(uint32_t address);
  Event& used_event(const Warp& warp, uint32_t address);
  void end_turn_if_complete(Event& event);
  void release_if_complete(Barrier& barrier);
  void exit_if_done();
  int live_threads() const;

  Cluster& cluster_;
  std::vector<unsigned char> shared_;
  std::vector<std::unique_ptr<Warp>> warps_;
  // Of this block's warps that have arrived at the cluster's barrier; in its last turn.
  Clock cluster_clock_, last_cluster_clock_;
  std::unordered_map<uint32_t, Clock> released_;
  std::array<Barrier, kNamedBarriers> barriers_;
  std::unordered_map<uint32_t, Event> events_;
  bool progress_ = false;
};

/// Blocks that run at a time and reach each other's shared memory; most clusters are one block.
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  int turn = 0;     // of the barrier
  int arrived = 0;  // warps

  /// Runs blocks from `first` on to their end. Throws as Block::run does, and where all wait for
  /// what never happens. Races between blocks are not looked for.
  Cluster(const Launch& launch, Dim3 first, Races* races);
  void release_if_complete();
};

}  // namespace fmmformer::emulator
