// SPDX-License-Identifier: Apache-2.0
// Instructions on numbers of sixteen bits, two in a register.
#include <cmath>

#include "emulator/actions.h"
#include "emulator/half_types.h"
#include "emulator/lane_actions.h"

namespace fmmformer::emulator {
namespace {

/// Two numbers of half a type in a register, from those of up to three registers.
template <typename H, int kCount, auto kOp>
void of_halves(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    uint32_t result = 0;
    for (int half = 0; half < 2; ++half) {
      const auto number = [&](size_t of) {
        return H::to_float(uint16_t(w.read<uint32_t>(i[of], lane) >> half * 16));
      };
      float x;
      if constexpr (kCount == 1) x = kOp(number(1));
      if constexpr (kCount == 2) x = kOp(number(1), number(2));
      if constexpr (kCount == 3) x = kOp(number(1), number(2), number(3));
      result |= uint32_t(H::from_float(x)) << half * 16;
    }
    w.write<uint32_t>(i[0], lane, result);
  });
}

template <typename H>
void add_half_type(Meanings& all, const std::string& type) {
  const auto add = [&](const std::string& name, Action action) {
    all[name + "." + type + "x2"] = {action};
  };
  const auto add_rounded = [&](const std::string& name, Action action) {
    add(name, action), add(name + ".rn", action);
  };
  add_rounded("add", of_halves<H, 2, [](float x, float y) { return x + y; }>);
  add_rounded("sub", of_halves<H, 2, [](float x, float y) { return x - y; }>);
  add_rounded("mul", of_halves<H, 2, [](float x, float y) { return x * y; }>);
  add_rounded("fma", of_halves<H, 3, [](float x, float y, float z) { return std::fma(x, y, z); }>);
  add("min", of_halves<H, 2, [](float x, float y) { return std::fmin(x, y); }>);
  add("max", of_halves<H, 2, [](float x, float y) { return std::fmax(x, y); }>);
  add("min.NaN", of_halves<H, 2, [](float x, float y) { return x < y || x != x ? x : y; }>);
  add("max.NaN", of_halves<H, 2, [](float x, float y) { return y < x || x != x ? x : y; }>);
  add("neg", kUnary<uint32_t, [](uint32_t a) { return a ^ 0x80008000u; }>);
  add("abs", kUnary<uint32_t, [](uint32_t a) { return a & 0x7fff7fffu; }>);
  for (const std::string how : {".approx", ".approx.ftz"}) {
    add("ex2" + how, of_halves<H, 1, [](float x) { return std::exp2(x); }>);
    add("tanh" + how, of_halves<H, 1, [](float x) { return std::tanh(x); }>);
  }
  // A result of all bits where it holds; geu: also where one is no number.
  all["set.geu.u32." + type + "x2"] = {kBinary<uint32_t, [](uint32_t a, uint32_t b) {
    uint32_t bits = 0;
    for (int half = 0; half < 2; ++half) {
      const float x = H::to_float(uint16_t(a >> half * 16)),
                  y = H::to_float(uint16_t(b >> half * 16));
      if (!(x < y)) bits |= 0xffffu << half * 16;
    }
    return bits;
  }>};
  all["cvt.rn." + type + ".f32"] = {unary<uint16_t, float, H::from_float>};
  all["cvt.f32." + type] = {unary<float, uint16_t, H::to_float>};
  all["cvt.rn." + type + "x2.f32"] = {binary<uint32_t, float, float, [](float high, float low) {
    return uint32_t(H::from_float(high)) << 16 | H::from_float(low);
  }>};
}

}  // namespace

void add_half_arithmetic(Meanings& all) {
  add_half_type<BFloat16>(all, "bf16"), add_half_type<Float16>(all, "f16");
}

}  // namespace fmmformer::emulator
