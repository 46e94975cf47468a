// SPDX-License-Identifier: Apache-2.0
// Whether accesses to shared memory are in an order that the program asks for, whatever the order
// in which they happened to be carried out.
//
// Agents are the warps of a block and the events at which copies arrive. A clock says how much of
// each agent's work is known to have happened: barriers, events and waits join clocks. An access is
// a race when one before it, of which one writes, is not in the clock of who makes it. Warps that
// write what already is there, or that change a number by atomic operations, are in no race with
// each other.
//
// Ordinary writes that the copy engine or products of a warpgroup read must also have been shown to
// them (fence.proxy.async) by the warp that wrote, before that: a second clock, of what has been
// shown. What is written for other lanes of the same warp counts as ordered.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fmmformer::emulator {

constexpr int kMostWarps = 20, kMostAgents = 64;

struct Stamp {
  int agent = -1;  // nobody
  uint32_t time = 0;
};
struct Clock {
  uint32_t known[kMostAgents] = {}, shown[kMostAgents] = {};

  void join(const Clock& other);
};

/// A range of shared memory.
struct Range {
  uint32_t begin = 0, bytes = 0;
};

/// Work that goes on beside a thread's own: copies, and products of a warpgroup. A thread commits
/// and awaits what it has begun itself; products are the first lane's.
struct PendingWork {
  struct Piece {
    std::vector<Range> ranges;
    bool reads = true;  // or writes
    Clock begun;
    std::string_view text;
  };
  struct Lane {
    std::vector<std::vector<Piece>> groups;  // committed, oldest first
    std::vector<Piece> open;
  };
  std::array<Lane, 32> lanes;
};

class Races {
 public:
  /// Of a block with so many warps and bytes of shared memory.
  void begin_block(int warps, int64_t shared_bytes);
  /// A new agent, an event's.
  int add_event();

  Clock& clock(int warp) { return clocks_[static_cast<size_t>(warp)]; }

  void read(int warp, Range range, std::string_view text);
  /// `changes`: whether anything else was there.
  void write(int warp, Range range, std::string_view text, bool changes);
  void change(int warp, Range range, std::string_view text);  // by an atomic operation
  /// Of something that must have been written, which the access itself does not read or write.
  void use(int warp, Range range, std::string_view text);
  /// The warp's writes so far are shown to the copy engine and to products of a warpgroup.
  void show(int warp);

  /// The copy engine writes what arrives at an event; asked for by a warp.
  void write_by_engine(int warp, Range range, Stamp stamp, std::string_view text);
  /// Products or copies read, or write, from when they begin until they are waited for.
  void begin_reading(int warp, PendingWork::Lane& work, std::vector<Range> ranges,
                     std::string_view text);
  void begin_writing(int warp, PendingWork::Lane& work, Range range, std::string_view text);
  void commit(PendingWork::Lane& work);
  /// All groups but so many of the newest are done.
  void finish(int warp, PendingWork::Lane& work, size_t but_newest);
  /// The thread ends: nothing may be under way.
  void end(int warp, PendingWork::Lane& work);

  /// What has been found, in words; each pair of instructions once.
  const std::vector<std::string>& found() const { return found_; }

 private:
  /// Two bytes. Times of all warps who wrote what is there, and of who has read or changed it
  /// since.
  struct Cell {
    Stamp engine;  // if it wrote
    uint32_t writes[kMostWarps] = {}, reads[kMostWarps] = {}, changes[kMostWarps] = {};
    std::string_view text;  // the instruction that wrote last
  };
  template <typename F>
  void each_cell(Range range, F&& f);
  static bool is_written(const Cell& cell);
  /// Whether one of those who wrote is known; or shown.
  static bool knows_write(const Cell& cell, const Clock& clock);
  static bool knows_shown_write(const Cell& cell, const Clock& clock);
  void check_read(const Cell& cell, int warp, std::string_view text);
  void check_changes(const Cell& cell, int warp, std::string_view text);
  void check_write(const Cell& cell, int warp, std::string_view text);
  void check_shown(const Cell& cell, int warp, std::string_view text);
  void finish(Cell& cell, const PendingWork::Piece& piece, int warp);
  void finish(const std::vector<PendingWork::Piece>& group, int warp);
  /// Of what another did to a cell, and an instruction of `warp`.
  void report(std::string_view what, const Cell& cell, int warp, std::string_view text);

  int agents_ = 0;
  std::vector<Clock> clocks_;  // of warps
  std::vector<Cell> cells_;
  std::set<std::pair<const char*, const char*>> told_;  // pairs of instructions
  std::vector<std::string> found_;
};

}  // namespace fmmformer::emulator
