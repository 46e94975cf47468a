// SPDX-License-Identifier: Apache-2.0
// Products of matrices by a warp (mma) or a warpgroup (wgmma), and what moves matrices between
// registers and shared memory. PTX's manual has the layouts; in all of them lane 4g + t holds
// columns 2t and 2t + 1 of row g of eight rows and columns.
#include <array>
#include <stdexcept>

#include "emulator/actions.h"
#include "emulator/block.h"
#include "emulator/half_types.h"
#include "emulator/tensor_map.h"

namespace fmmformer::emulator {
namespace {

constexpr int kEight = 8;
using Tile = std::array<std::array<uint16_t, kEight>, kEight>;

uint16_t half_of(uint32_t pair, int which) { return static_cast<uint16_t>(pair >> 16 * which); }

/// From registers: a row of eight numbers is four lanes'.
Tile tile_of(const Warp& w, const Operand& from) {
  Tile tile;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto pair = w.read<uint32_t>(from, lane);
    for (int p = 0; p < 2; ++p) tile[lane / 4][lane % 4 * 2 + p] = half_of(pair, p);
  }
  return tile;
}
void put_tile(Warp& w, const Operand& to, const Tile& tile) {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& row = tile[lane / 4];
    w.write<uint32_t>(to, lane, row[lane % 4 * 2] | uint32_t(row[lane % 4 * 2 + 1]) << 16);
  }
}
Tile transposed(const Tile& tile) {
  Tile turned;
  for (size_t r = 0; r < kEight; ++r)
    for (size_t c = 0; c < kEight; ++c) turned[r][c] = tile[c][r];
  return turned;
}

constexpr uint32_t kRowBytes = kEight * sizeof(uint16_t);

/// The addresses of eight rows come from eight lanes.
uint32_t row_address(const Warp& w, const Instruction& i, const Operand& from, size_t lane) {
  const uint32_t at = w.shared_address(from, static_cast<int>(lane));
  if (at % kRowBytes != 0) throw std::runtime_error("not aligned: " + std::string(i.text));
  return at;
}
template <size_t kCount, bool kTurned>
void load_matrices(Warp& w, const Instruction& i, Lanes) {
  Tile tiles[kCount];
  for (size_t n = 0; n < kCount; ++n) {
    for (size_t row = 0; row < kEight; ++row) {
      const uint32_t at = row_address(w, i, i[kCount], n * kEight + row);
      if (w.block.races) w.block.races->read(w.number, {at, kRowBytes}, i.text);
      std::memcpy(tiles[n][row].data(), w.block.shared(at, kRowBytes), kRowBytes);
    }
  }
  for (size_t n = 0; n < kCount; ++n) put_tile(w, i[n], kTurned ? transposed(tiles[n]) : tiles[n]);
}
template <size_t kCount, bool kTurned>
void store_matrices(Warp& w, const Instruction& i, Lanes) {
  for (size_t n = 0; n < kCount; ++n) {
    const Tile held = tile_of(w, i[1 + n]), tile = kTurned ? transposed(held) : held;
    for (size_t row = 0; row < kEight; ++row) {
      const uint32_t at = row_address(w, i, i[0], n * kEight + row);
      unsigned char* to = w.block.shared(at, kRowBytes);
      const bool changes = std::memcmp(to, tile[row].data(), kRowBytes) != 0;
      if (w.block.races) w.block.races->write(w.number, {at, kRowBytes}, i.text, changes);
      std::memcpy(to, tile[row].data(), kRowBytes);
    }
  }
}
void turn_matrix(Warp& w, const Instruction& i, Lanes) {
  put_tile(w, i[0], transposed(tile_of(w, i[1])));
}

constexpr int kRows = 16, kDepth = 16;
using Left = std::array<std::array<float, kDepth>, kRows>;

/// Sixteen rows and columns in four registers: rows 0 to 7 and 8 to 15 of the first eight columns,
/// then of the others.
template <typename H>
Left left_of(const Warp& w, const Instruction& i, size_t first) {
  Left a;
  for (size_t n = 0; n < 4; ++n) {
    const Tile tile = tile_of(w, i[first + n]);
    for (size_t r = 0; r < kEight; ++r)
      for (size_t c = 0; c < kEight; ++c)
        a[n % 2 * kEight + r][n / 2 * kEight + c] = H::to_float(tile[r][c]);
  }
  return a;
}

/// d = a b + c, 16 x 8, of `kNumbers` each.
template <size_t kNumbers>
using Right = std::array<std::array<float, kEight>, kNumbers>;
template <typename A, size_t kNumbers>
void store_product(Warp& w, const Instruction& i, const A& a, const Right<kNumbers>& b) {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    float results[4];
    for (int n = 0; n < 4; ++n) {
      const int row = lane / 4 + n / 2 * kEight, column = lane % 4 * 2 + n % 2;
      double sum = w.read<float>(i[10 + n], lane);
      for (size_t k = 0; k < kNumbers; ++k) sum += double(a[row][k]) * b[k][column];
      results[n] = static_cast<float>(sum);
    }
    for (int n = 0; n < 4; ++n) w.write(i[n], lane, results[n]);
  }
}
template <typename H>
void multiply(Warp& w, const Instruction& i, Lanes) {
  Right<kDepth> b;
  for (size_t n = 0; n < 2; ++n) {  // columns of b are rows of what registers hold
    const Tile tile = tile_of(w, i[8 + n]);
    for (size_t r = 0; r < kEight; ++r)
      for (size_t c = 0; c < kEight; ++c) b[n * kEight + c][r] = H::to_float(tile[r][c]);
  }
  store_product(w, i, left_of<H>(w, i, 4), b);
}
void multiply_tf32(Warp& w, const Instruction& i, Lanes) {
  std::array<std::array<float, kEight>, kRows> a;
  Right<kEight> b;
  const auto number = [](uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); };
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int n = 0; n < 4; ++n)
      a[g + n % 2 * kEight][t + n / 2 * 4] = number(w.read<uint32_t>(i[4 + n], lane));
    for (int n = 0; n < 2; ++n) b[t + n * 4][g] = number(w.read<uint32_t>(i[8 + n], lane));
  }
  store_product(w, i, a, b);
}

/// An operand of a warpgroup in shared memory: `line` counts rows of a or columns of b, `depth` the
/// numbers that are added up.
class SharedOperand {
 public:
  SharedOperand(uint64_t descriptor, bool turned)
      : begin_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4),
        turned_(turned) {
    constexpr uint32_t kBytesOfRows[] = {16, 128, 64, 32};
    row_bytes_ = kBytesOfRows[descriptor >> 62];
    if ((turned && row_bytes_ == 16) || (descriptor >> 49 & 7) != 0)
      throw std::runtime_error("an operand of a kind that is not known here");
  }
  bool turned() const { return turned_; }
  uint32_t address(uint32_t line, uint32_t depth) const {
    constexpr uint32_t kBytes = 2;
    const uint32_t along = turned_ ? line : depth, across = turned_ ? depth : line;
    const uint32_t numbers = row_bytes_ / kBytes;
    // Pieces of eight rows follow each other at stride_; what does not fit into a row, at leading_.
    const uint32_t plain = begin_ + across / kEight * stride_ + across % kEight * row_bytes_ +
                           along / numbers * leading_ + along % numbers * kBytes;
    return TensorMap::permuted(plain, row_bytes_ == 16 ? 0 : row_bytes_);
  }

 private:
  uint32_t begin_, leading_, stride_, row_bytes_ = 0;
  bool turned_;
};

template <typename H>
float read_number(Warp& w, const SharedOperand& operand, uint32_t line, uint32_t depth) {
  uint16_t bits;
  std::memcpy(&bits, w.block.shared(operand.address(line, depth), sizeof(bits)), sizeof(bits));
  return H::to_float(bits);
}
/// Tells Races of what a product reads, a piece of eight numbers at a time.
void note_reading(Warp& w, const SharedOperand& operand, uint32_t first_line, uint32_t lines,
                  std::string_view text) {
  if (!w.block.races) return;
  const uint32_t line_step = operand.turned() ? kEight : 1,
                 depth_step = operand.turned() ? 1 : kEight;
  std::vector<Range> pieces;
  for (uint32_t line = first_line; line < first_line + lines; line += line_step)
    for (uint32_t depth = 0; depth < uint32_t(kDepth); depth += depth_step)
      pieces.push_back({operand.address(line, depth), TensorMap::kPieceBytes});
  w.block.races->begin_reading(w.number, w.products.lanes[0], std::move(pieces), text);
}

/// c (+)= a b: this warp's sixteen rows of 64. After c's registers: a, in four registers or as an
/// operand; b; whether to add; two signs; which operands are turned.
template <typename H, size_t kColumns, bool kLeftShared>
void multiply_by_warpgroup(Warp& w, const Instruction& i, Lanes) {
  constexpr size_t kSums = kColumns / 2, kLeft = kLeftShared ? 1 : 4;
  const size_t b_at = kSums + kLeft, turned_at = b_at + 4;
  const bool adds = w.read_uniform<uint8_t>(i[b_at + 1]) != 0;
  for (const size_t sign : {b_at + 2, b_at + 3})
    if (w.read_uniform<int32_t>(i[sign]) != 1) throw std::runtime_error("products with a minus");
  const bool a_turned = kLeftShared && w.read_uniform<int32_t>(i[turned_at]) != 0;
  const bool b_turned = w.read_uniform<int32_t>(i[turned_at + (kLeftShared ? 1 : 0)]) != 0;
  const SharedOperand b(w.read_uniform<uint64_t>(i[b_at]), b_turned);
  Left a;
  if constexpr (kLeftShared) {
    const SharedOperand left(w.read_uniform<uint64_t>(i[kSums]), a_turned);
    const uint32_t first = static_cast<uint32_t>(w.number % 4) * kRows;
    for (uint32_t r = 0; r < uint32_t(kRows); ++r)
      for (uint32_t k = 0; k < uint32_t(kDepth); ++k)
        a[r][k] = read_number<H>(w, left, first + r, k);
    note_reading(w, left, first, kRows, i.text);
  } else {
    a = left_of<H>(w, i, kSums);
  }
  note_reading(w, b, 0, kColumns, i.text);
  double products[kRows][kColumns] = {};
  for (uint32_t k = 0; k < uint32_t(kDepth); ++k) {
    double row[kColumns];
    for (uint32_t n = 0; n < kColumns; ++n) row[n] = read_number<H>(w, b, n, k);
    for (size_t r = 0; r < kRows; ++r)
      for (size_t n = 0; n < kColumns; ++n) products[r][n] += a[r][k] * row[n];
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (size_t n = 0; n < kSums; ++n) {
      const size_t row = lane / 4 + n / 2 % 2 * kEight,
                   column = n / 4 * kEight + lane % 4 * 2 + n % 2;
      const double before = adds ? w.read<float>(i[n], lane) : 0.f;
      w.write(i[n], lane, static_cast<float>(before + products[row][column]));
    }
  }
}
template <typename H, size_t kColumns>
void multiply_by_warpgroup(Warp& w, const Instruction& i, Lanes lanes) {
  // With a in registers there are four numbers where there is else one, and nothing says whether
  // it is turned.
  const bool shared = i.operands.size() == kColumns / 2 + 7;
  shared ? multiply_by_warpgroup<H, kColumns, true>(w, i, lanes)
         : multiply_by_warpgroup<H, kColumns, false>(w, i, lanes);
}
template <typename H, size_t... kColumns>
void add_warpgroup(Meanings& all, const std::string& type) {
  ((all["wgmma.mma_async.sync.aligned.m64n" + std::to_string(kColumns) + "k16.f32." + type] =
        {multiply_by_warpgroup<H, kColumns>, Flow::kTogether}),
   ...);
}
void commit_products(Warp& w, const Instruction&, Lanes) {
  if (w.block.races) w.block.races->commit(w.products.lanes[0]);
}
void await_products(Warp& w, const Instruction& i, Lanes) {
  if (w.block.races)
    w.block.races->finish(w.number, w.products.lanes[0], w.read_uniform<uint32_t>(i[0]));
}
void order_registers(Warp&, const Instruction&, Lanes) {}

template <size_t kCount>
void add_moves(Meanings& all) {
  const std::string count = ".x" + std::to_string(kCount);
  const auto add = [&](const char* name, Action action, const char* how) {
    all[name + count + how] = {action, Flow::kTogether};
  };
  add("ldmatrix.sync.aligned.m8n8", load_matrices<kCount, false>, ".shared.b16");
  add("ldmatrix.sync.aligned.m8n8", load_matrices<kCount, true>, ".trans.shared.b16");
  add("stmatrix.sync.aligned.m8n8", store_matrices<kCount, false>, ".shared.b16");
  add("stmatrix.sync.aligned.m8n8", store_matrices<kCount, true>, ".trans.shared.b16");
}

}  // namespace

void add_matrix_products(Meanings& all) {
  add_moves<1>(all), add_moves<2>(all), add_moves<4>(all);
  all["movmatrix.sync.aligned.m8n8.trans.b16"] = {turn_matrix, Flow::kTogether};
  const std::string warp = "mma.sync.aligned.";
  all[warp + "m16n8k16.row.col.f32.bf16.bf16.f32"] = {multiply<BFloat16>, Flow::kTogether};
  all[warp + "m16n8k16.row.col.f32.f16.f16.f32"] = {multiply<Float16>, Flow::kTogether};
  all[warp + "m16n8k8.row.col.f32.tf32.tf32.f32"] = {multiply_tf32, Flow::kTogether};
  add_warpgroup<BFloat16, 32, 40, 64, 128, 256>(all, "bf16.bf16");
  add_warpgroup<Float16, 32, 64>(all, "f16.f16");
  all["wgmma.fence.sync.aligned"] = {order_registers, Flow::kTogether};
  all["wgmma.commit_group.sync.aligned"] = {commit_products, Flow::kTogether};
  all["wgmma.wait_group.sync.aligned"] = {await_products, Flow::kTogether};
}

}  // namespace fmmformer::emulator
