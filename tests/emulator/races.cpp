// SPDX-License-Identifier: Apache-2.0
#include "emulator/races.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace fmmformer::emulator {
namespace {

constexpr uint32_t kCellBytes = 2;
constexpr uint32_t kNotYet = std::numeric_limits<uint32_t>::max();  // of a write under way
constexpr size_t kMostFound = 32;

/// Whether all of these times are known.
bool knows_all(const uint32_t (&times)[kMostWarps], const Clock& clock) {
  for (int warp = 0; warp < kMostWarps; ++warp)
    if (times[warp] > clock.known[warp]) return false;
  return true;
}

}  // namespace

void Clock::join(const Clock& other) {
  for (int agent = 0; agent < kMostAgents; ++agent) {
    known[agent] = std::max(known[agent], other.known[agent]);
    shown[agent] = std::max(shown[agent], other.shown[agent]);
  }
}

void Races::begin_block(int warps, int64_t shared_bytes) {
  if (warps > kMostWarps) throw std::runtime_error("more warps than Races has room for");
  agents_ = warps;
  clocks_.assign(static_cast<size_t>(warps), {});
  for (int warp = 0; warp < warps; ++warp) clock(warp).known[warp] = 1;
  cells_.assign(static_cast<size_t>(shared_bytes) / kCellBytes + 1, {});
}
int Races::add_event() {
  if (agents_ == kMostAgents) throw std::runtime_error("more events than Races has room for");
  return agents_++;
}

template <typename F>
void Races::each_cell(Range range, F&& f) {
  const uint32_t end = range.begin + range.bytes;
  for (uint32_t at = range.begin / kCellBytes; at * kCellBytes < end; ++at) f(cells_.at(at));
}
void Races::report(std::string_view what, const Cell& cell, int warp, std::string_view text) {
  if (!told_.emplace(cell.text.data(), text.data()).second || found_.size() == kMostFound) return;
  found_.push_back("at " + std::to_string((&cell - cells_.data()) * kCellBytes) + ", " +
                   std::string(what) + ": last written by " + std::string(cell.text) + "; warp " +
                   std::to_string(warp) + "'s " + std::string(text));
}

bool Races::is_written(const Cell& cell) { return !cell.text.empty(); }
bool Races::knows_write(const Cell& cell, const Clock& clock) {
  if (cell.engine.agent >= 0) return cell.engine.time <= clock.known[cell.engine.agent];
  for (int warp = 0; warp < kMostWarps; ++warp)
    if (cell.writes[warp] != 0 && cell.writes[warp] <= clock.known[warp]) return true;
  return !is_written(cell);
}
bool Races::knows_shown_write(const Cell& cell, const Clock& clock) {
  if (cell.engine.agent >= 0 || !is_written(cell)) return true;
  for (int warp = 0; warp < kMostWarps; ++warp)
    if (cell.writes[warp] != 0 && cell.writes[warp] <= clock.shown[warp]) return true;
  return false;
}

void Races::check_read(const Cell& cell, int warp, std::string_view text) {
  if (!knows_write(cell, clock(warp)))
    report("read before it is sure to be written", cell, warp, text);
  check_changes(cell, warp, text);
}
void Races::check_changes(const Cell& cell, int warp, std::string_view text) {
  if (!knows_all(cell.changes, clock(warp)))
    report("used while another may still change it", cell, warp, text);
}
void Races::check_shown(const Cell& cell, int warp, std::string_view text) {
  if (knows_write(cell, clock(warp)) && !knows_shown_write(cell, clock(warp)))
    report("written, but not shown to the copy engine and warpgroups", cell, warp, text);
}
/// Of a write of something else: all of what was before must be known.
void Races::check_write(const Cell& cell, int warp, std::string_view text) {
  const Clock& now = clock(warp);
  const bool after_engine =
      cell.engine.agent < 0 || cell.engine.time <= now.known[cell.engine.agent];
  if (!after_engine || !knows_all(cell.writes, now))
    report("written twice, in no order", cell, warp, text);
  if (!knows_all(cell.reads, now)) report("written where another may still read", cell, warp, text);
  check_changes(cell, warp, text);
}

void Races::read(int warp, Range range, std::string_view text) {
  each_cell(range, [&](Cell& cell) {
    check_read(cell, warp, text);
    cell.reads[warp] = clock(warp).known[warp];
  });
}
void Races::use(int warp, Range range, std::string_view text) {
  each_cell(range, [&](Cell& cell) { check_read(cell, warp, text); });
}
void Races::write(int warp, Range range, std::string_view text, bool changes) {
  const uint32_t now = clock(warp).known[warp];
  each_cell(range, [&](Cell& cell) {
    const bool again = !changes && is_written(cell) && cell.engine.agent < 0;
    if (again) {
      check_changes(cell, warp, text);
    } else {
      check_write(cell, warp, text);
      cell = {};
    }
    cell.writes[warp] = now, cell.text = text;
  });
}
void Races::change(int warp, Range range, std::string_view text) {
  const Clock& now = clock(warp);
  each_cell(range, [&](Cell& cell) {
    if (!knows_write(cell, now)) report("read before it is sure to be written", cell, warp, text);
    if (!knows_all(cell.reads, now))
      report("written where another may still read", cell, warp, text);
    cell.changes[warp] = now.known[warp];
  });
}
void Races::show(int warp) {
  Clock& now = clock(warp);
  now.shown[warp] = now.known[warp]++;
}

void Races::write_by_engine(int warp, Range range, Stamp stamp, std::string_view text) {
  each_cell(range, [&](Cell& cell) {
    check_write(cell, warp, text);
    check_shown(cell, warp, text);
    cell = {};
    cell.engine = stamp, cell.text = text;
  });
}
void Races::begin_reading(int warp, PendingWork::Lane& work, std::vector<Range> ranges,
                          std::string_view text) {
  Clock& now = clock(warp);
  for (const Range& range : ranges) {
    each_cell(range, [&](Cell& cell) {
      check_read(cell, warp, text);
      check_shown(cell, warp, text);
    });
  }
  work.open.push_back({.ranges = std::move(ranges), .reads = true, .begun = now, .text = text});
  ++now.known[warp];  // what the warp does from now on is not before it
}
void Races::begin_writing(int warp, PendingWork::Lane& work, Range range, std::string_view text) {
  each_cell(range, [&](Cell& cell) {
    check_write(cell, warp, text);
    cell = {};
    cell.writes[warp] = kNotYet, cell.text = text;
  });
  work.open.push_back({.ranges = {range}, .reads = false, .begun = {}, .text = text});
}
void Races::commit(PendingWork::Lane& work) {
  work.groups.push_back(std::move(work.open));
  work.open.clear();
}
void Races::finish(Cell& cell, const PendingWork::Piece& piece, int warp) {
  const uint32_t now = clock(warp).known[warp];
  if (piece.reads) {
    if (!knows_write(cell, piece.begun))
      report("written while it may still be read", cell, warp, piece.text);
    cell.reads[warp] = now;
  } else if (cell.writes[warp] == kNotYet) {
    cell.writes[warp] = now;
  }
}
void Races::finish(const std::vector<PendingWork::Piece>& group, int warp) {
  for (const PendingWork::Piece& piece : group)
    for (const Range& range : piece.ranges)
      each_cell(range, [&](Cell& cell) { finish(cell, piece, warp); });
}
void Races::finish(int warp, PendingWork::Lane& work, size_t but_newest) {
  while (work.groups.size() > but_newest) {
    finish(work.groups.front(), warp);
    work.groups.erase(work.groups.begin());
  }
}
void Races::end(int warp, PendingWork::Lane& work) {
  commit(work);
  for (const auto& group : work.groups) {
    finish(group, warp);
    for (const PendingWork::Piece& piece : group)
      report("still under way where its thread ends", cells_.at(0), warp, piece.text);
  }
  work = {};
}

}  // namespace fmmformer::emulator
