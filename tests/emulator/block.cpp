// SPDX-License-Identifier: Apache-2.0
#include "emulator/block.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace fmmformer::emulator {

namespace {

constexpr int64_t kMostSharedBytes = 228 * 1024;
constexpr int64_t kMostSteps = int64_t{1} << 30;  // of a warp between waits: it goes round forever

/// %tid, %ctaid and the like: the letter after the dot.
unsigned component(const Dim3& dim, char letter) {
  return letter == 'x' ? dim.x : letter == 'y' ? dim.y : dim.z;
}
Dim3 thread_of(const Dim3& block, unsigned number) {
  return {number % block.x, number / block.x % block.y, number / block.x / block.y};
}

/// Memory of warps that are done, for others: a block's registers are many megabytes, which the
/// system would have to clear.
std::vector<std::vector<uint64_t>>& spare_registers() {
  static std::vector<std::vector<uint64_t>> spare;
  return spare;
}

}  // namespace

Warp::~Warp() { spare_registers().push_back(std::move(registers_)); }
Warp::Warp(Block& block, int number) : block(block), number(number) {
  const Kernel& kernel = *block.launch.kernel;
  if (auto& spare = spare_registers(); !spare.empty())
    registers_ = std::move(spare.back()), spare.pop_back();
  registers_.resize(static_cast<size_t>(kernel.registers) * kWarpSize);
  const int64_t local_bytes = (kernel.local_bytes + 31) / 16 * 16;
  local_.resize(static_cast<size_t>(local_bytes) * kWarpSize + 16);
  unsigned char* local = local_.data() + (16 - std::bit_cast<uintptr_t>(local_.data()) % 16) % 16;
  const int threads = static_cast<int>(block.launch.block.count()) - number * kWarpSize;
  if (threads < kWarpSize) alive_ = (Lanes{1} << threads) - 1;
  for (const auto& [to, value] : kernel.constants)
    for (int lane = 0; lane < kWarpSize; ++lane) write(Operand{to}, lane, value);
  for (const auto& [to, variable] : kernel.addresses) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      using Space = Variable::Space;
      const auto offset = static_cast<uint64_t>(variable.offset);
      const uint64_t base =
          variable.space == Space::kParameter ? std::bit_cast<uint64_t>(block.launch.parameters)
          : variable.space == Space::kShared  ? kSharedBegin
          : variable.space == Space::kDynamicShared
              ? kSharedBegin + static_cast<uint64_t>(kernel.shared_bytes + 15) / 16 * 16
          : variable.space == Space::kLocal ? std::bit_cast<uint64_t>(local + lane * local_bytes)
                                            : 0;
      write(Operand{to}, lane, base + offset);
    }
  }
  set_special_registers();
}

void Warp::set_special_registers() {
  const Launch& launch = block.launch;
  for (const auto& [to, name] : launch.kernel->special_registers) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const Dim3 thread = thread_of(launch.block, static_cast<unsigned>(number * kWarpSize + lane));
      uint32_t value = 0;
      if (name.starts_with("%tid."))
        value = component(thread, name.back());
      else if (name.starts_with("%ntid."))
        value = component(launch.block, name.back());
      else if (name.starts_with("%ctaid."))
        value = component(block.index, name.back());
      else if (name.starts_with("%nctaid."))
        value = component(launch.grid, name.back());
      else if (name == "%laneid")
        value = static_cast<uint32_t>(lane);
      else if (name == "%cluster_ctarank")
        value = block.index.x % launch.cluster;
      else if (name == "%cluster_nctarank")
        value = launch.cluster;
      else
        throw std::runtime_error("unknown special register " + std::string(name));
      write(Operand{to}, lane, value);
    }
  }
}

Lanes Warp::first_lanes(Lanes held, int& at) const {
  const Lanes free = alive_ & ~held;
  if (free == 0) return 0;
  at = at_[std::countr_zero(free)];
  each_lane(free, [&](int lane) { at = std::min(at, at_[lane]); });
  Lanes lanes = 0;
  each_lane(free, [&](int lane) { lanes |= at_[lane] == at ? Lanes{1} << lane : 0; });
  return lanes;
}

std::string Warp::where() const {
  int at = 0;
  if (first_lanes(0, at) == 0) return "done";
  if (at > 0 && (at_barrier || waits)) --at;  // it goes on after what it waits at
  return std::string(block.launch.kernel->code[static_cast<size_t>(at)].text);
}

void Warp::run() {
  waits = false;
  const std::vector<Instruction>& code = block.launch.kernel->code;
  for (int64_t steps = 0; !done() && !at_barrier && !waits; ++steps) {
    if (steps == kMostSteps) throw std::runtime_error("no end in sight at " + where());
    int at = 0;
    Lanes lanes = first_lanes(held_, at);
    if (lanes == 0) {  // those that the others waited for have ended
      held_ = 0, lanes = first_lanes(0, at);
      if (lanes != alive_) throw std::runtime_error("lanes wait for each other at " + where());
    }
    // As long as lanes stay together there is no need to look for the first.
    const bool together = lanes == alive_;
    do {
      const Instruction& instruction = code.at(static_cast<size_t>(at));
      const bool for_all =
          instruction.flow == Flow::kTogether || instruction.flow == Flow::kBarrier;
      if (for_all && (lanes | held_) != alive_) {
        held_ |= lanes;  // others may come later
        break;
      }
      if (for_all) {
        each_lane(held_, [&](int lane) {
          if (at_[lane] != at) throw std::runtime_error("lanes apart at " + where());
        });
        lanes |= held_, held_ = 0;
      }
      step(instruction, at, lanes);
      if (instruction.flow != Flow::kOn && instruction.flow != Flow::kTogether) break;
      ++at, ++steps;
    } while (together);
  }
  end_if_done();
}
void Warp::end_if_done() {
  if (!done() || !block.races) return;
  for (PendingWork* work : {&products, &stores, &copies})
    for (PendingWork::Lane& lane : work->lanes) block.races->end(number, lane);
}

void Warp::step(const Instruction& instruction, int at, Lanes lanes) {
  Lanes active = lanes;
  if (instruction.guard >= 0) {
    each_lane(lanes, [&](int lane) {
      const bool holds = read<uint64_t>(Operand{instruction.guard}, lane) != 0;
      if (holds == instruction.unless) active &= ~(Lanes{1} << lane);
    });
  }
  const bool branches = instruction.flow == Flow::kBranch;
  each_lane(lanes, [&](int lane) {
    at_[lane] = branches && (active >> lane & 1) ? instruction.target : at + 1;
  });
  if (instruction.flow == Flow::kExit) alive_ &= ~active;
  if (active == 0 || branches || instruction.flow == Flow::kExit) return;
  text_ = instruction.text;
  if (!instruction.action)
    throw std::runtime_error("unknown instruction " + std::string(instruction.text));
  instruction.action(*this, instruction, active);
}

Block::Block(const Launch& launch, Dim3 index, Cluster& cluster, Races* races)
    : launch(launch), index(index), races(races), cluster_(cluster) {
  const int64_t bytes = kSharedBegin + (launch.kernel->shared_bytes + 15) / 16 * 16 +
                        int64_t{launch.dynamic_shared_bytes};
  if (bytes > kMostSharedBytes) throw std::runtime_error("more shared memory than a GPU has");
  shared_.resize(static_cast<size_t>(bytes) + 16, 0xff);  // bf16 and fp32 numbers that are none
  const int warps = static_cast<int>((launch.block.count() + kWarpSize - 1) / kWarpSize);
  if (races) races->begin_block(warps, bytes);
  for (int i = 0; i < warps; ++i) warps_.push_back(std::make_unique<Warp>(*this, i));
}

bool Block::done() const { return std::ranges::all_of(warps_, &Warp::done); }
std::string Block::where() const {
  std::string places;
  for (const auto& warp : warps_)
    if (!warp->done()) places += "\n  warp " + std::to_string(warp->number) + ": " + warp->where();
  return places;
}
bool Block::run() {
  progress_ = false;
  for (const auto& warp : warps_) {
    if (warp->done() || warp->at_barrier) continue;
    warp->run();
    if (!warp->waits) progress_ = true;
    if (warp->done()) exit_if_done();
  }
  return progress_;
}

unsigned char* Block::shared(uint32_t address, int64_t bytes) {
  if (address < kSharedBegin || address + bytes > static_cast<int64_t>(shared_.size()) - 16)
    throw std::runtime_error("not in shared memory: " + std::to_string(address));
  return shared_.data() + address;
}
uint32_t Block::shared_address_of(const void* generic, int64_t bytes) const {
  const auto* at = static_cast<const unsigned char*>(generic);
  const bool inside = at >= shared_.data() && at + bytes <= shared_.data() + shared_.size();
  return inside ? static_cast<uint32_t>(at - shared_.data()) : 0;
}
uint64_t Block::generic_address(uint32_t shared) const {
  return std::bit_cast<uint64_t>(shared_.data() + shared);
}

int Block::live_threads() const {
  int warps = 0;
  for (const auto& warp : warps_) warps += !warp->done();
  return warps * kWarpSize;
}
void Block::exit_if_done() {
  // Who has gone need not come to a barrier of all.
  for (Barrier& barrier : barriers_)
    if (barrier.expected == 0 && barrier.arrived > 0) release_if_complete(barrier);
  cluster_.release_if_complete();
}
void Block::arrive_at_barrier(Warp& warp, int number, int threads, bool waits, Vote vote) {
  Barrier& barrier = barriers_[static_cast<size_t>(number)];
  if (barrier.arrived > 0 && barrier.expected != threads)
    throw std::runtime_error("barrier " + std::to_string(number) + " is for another number at " +
                             warp.where());
  if (barrier.warps >> warp.number & 1)
    throw std::runtime_error("warp " + std::to_string(warp.number) + " comes to barrier " +
                             std::to_string(number) +
                             " a second time before it opens: " + warp.where());
  barrier.warps |= uint32_t{1} << warp.number;
  barrier.expected = threads, barrier.arrived += kWarpSize;
  if (races) {
    Clock& clock = races->clock(warp.number);
    barrier.clock.join(clock);
    ++clock.known[warp.number];
  }
  barrier.any |= vote.any;
  if (waits) warp.at_barrier = true, barrier.waiting.push_back({&warp, vote});
  release_if_complete(barrier);
}
void Block::release_if_complete(Barrier& barrier) {
  const int expected = barrier.expected == 0 ? live_threads() : barrier.expected;
  if (barrier.arrived > expected) throw std::runtime_error("too many warps at a barrier");
  if (barrier.arrived < expected) return;
  for (const auto& [warp, vote] : barrier.waiting) {
    warp->at_barrier = false;
    if (races) races->clock(warp->number).join(barrier.clock);
    if (vote.to)
      for (int lane = 0; lane < kWarpSize; ++lane)
        warp->write<uint8_t>(*vote.to, lane, barrier.any);
  }
  barrier = {};
  progress_ = true;
}

void Block::arrive_at_cluster(Warp& warp) {
  warp.cluster_turn = cluster_.turn, ++cluster_.arrived;
  if (races) {
    Clock& clock = races->clock(warp.number);
    cluster_clock_.join(clock);
    ++clock.known[warp.number];
  }
  cluster_.release_if_complete();
}
void Block::await_cluster(Warp& warp) {
  if (warp.cluster_turn == cluster_.turn)
    warp.at_barrier = warp.at_cluster_barrier = true;
  else if (races)
    races->clock(warp.number).join(last_cluster_clock_);
}
Block& Block::in_cluster(uint32_t rank) const { return *cluster_.blocks.at(rank); }
void Block::release(const Warp& warp, uint32_t address) {
  if (!races) return;
  Clock& clock = races->clock(warp.number);
  released_[address].join(clock);
  ++clock.known[warp.number];
}
void Block::acquire(const Warp& warp, uint32_t address) {
  if (races) races->clock(warp.number).join(released_[address]);
}

void Cluster::release_if_complete() {
  int live = 0;
  for (const auto& block : blocks)
    for (const auto& warp : block->warps_) live += !warp->done();
  if (arrived == 0 || arrived < live) return;
  ++turn, arrived = 0;
  for (const auto& block : blocks) {
    block->progress_ = true;
    block->last_cluster_clock_ = std::exchange(block->cluster_clock_, {});
    for (const auto& warp : block->warps_) {
      if (!warp->at_cluster_barrier) continue;
      warp->at_barrier = warp->at_cluster_barrier = false;
      if (block->races) block->races->clock(warp->number).join(block->last_cluster_clock_);
    }
  }
}
Cluster::Cluster(const Launch& launch, Dim3 first, Races* races) {
  for (unsigned i = 0; i < launch.cluster; ++i) {
    const Dim3 index{first.x + i, first.y, first.z};
    blocks.push_back(
        std::make_unique<Block>(launch, index, *this, launch.cluster == 1 ? races : nullptr));
  }
  // Who looks at a number again and again that another is to change does nothing for a while.
  constexpr int kPatience = 100'000;
  for (int idle = 0; idle < kPatience; ++idle) {
    bool all_done = true;
    for (const auto& block : blocks) {
      if (block->run()) idle = 0;
      all_done &= block->done();
    }
    if (all_done) return;
  }
  std::string places;
  for (const auto& block : blocks) places += block->where();
  throw std::runtime_error("all wait for what never happens:" + places);
}

Block::Event& Block::event_at(uint32_t address) {
  const auto found = events_.find(address);
  if (found == events_.end()) throw std::runtime_error("no event at " + std::to_string(address));
  return found->second;
}
constexpr uint32_t kEventBytes = 8;

Block::Event& Block::used_event(const Warp& warp, uint32_t address) {
  if (races) races->use(warp.number, {address, kEventBytes}, warp.text());
  return event_at(address);
}
void Block::init_event(const Warp& warp, uint32_t address, int count) {
  if (address % kEventBytes != 0) throw std::runtime_error("not aligned: an event");
  Event& event = events_[address];
  event = {};
  event.count = event.pending = count;
  if (!races) return;
  races->write(warp.number, {address, kEventBytes}, warp.text(), /*changes=*/true);
  event.number = races->add_event();
}
Stamp Block::stamp_of_event(const Warp& warp, uint32_t address) {
  const Event& event = used_event(warp, address);
  return {event.number, event.turn + 1};
}
void Block::end_turn_if_complete(Event& event) {
  if (event.pending > 0 || event.bytes != 0) return;
  ++event.turn;
  event.pending = event.count;
  event.last_clock = event.clock;
  event.last_clock.known[event.number] = event.turn;
  event.last_clock.shown[event.number] = event.turn;
  event.clock = event.last_clock;
  progress_ = true;
}
void Block::arrive_at_event(const Warp& warp, uint32_t address, int64_t expected_bytes) {
  Event& event = used_event(warp, address);
  event.bytes += expected_bytes;
  if (--event.pending < 0) throw std::runtime_error("too many arrive at an event");
  if (races) {
    Clock& clock = races->clock(warp.number);
    event.clock.join(clock);
    ++clock.known[warp.number];
  }
  end_turn_if_complete(event);
}
void Block::complete_bytes(uint32_t address, int64_t bytes) {
  Event& event = event_at(address);
  event.bytes -= bytes;
  end_turn_if_complete(event);
}
bool Block::has_completed(const Warp& warp, uint32_t address, int parity) {
  const Event& event = used_event(warp, address);
  if (static_cast<int>(event.turn & 1) == parity) return false;
  if (races) races->clock(warp.number).join(event.last_clock);
  return true;
}

}  // namespace fmmformer::emulator
