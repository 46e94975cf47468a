// SPDX-License-Identifier: Apache-2.0
// Instructions that are a lane's own: numbers in, a number out.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "emulator/actions.h"
#include "emulator/block.h"
#include "emulator/lane_actions.h"

namespace fmmformer::emulator {
namespace {

template <typename T>
constexpr int kBits = sizeof(T) * 8;
template <typename T>
T shifted_left(T x, uint32_t by) {
  return by >= uint32_t(kBits<T>) ? T(0) : T(x << by);
}
template <typename T>
T shifted_right(T x, uint32_t by) {
  return T(x >> std::min<uint32_t>(by, kBits<T> - 1) >> (by >= uint32_t(kBits<T>) ? 1 : 0));
}

/// Names of types, by the size and kind of the C++ type.
template <typename T>
std::string name_of() {
  const std::string bits = std::to_string(kBits<T>);
  return (std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "s" : "u") + bits;
}
template <typename T>
std::string bits_name() {
  return "b" + std::to_string(kBits<T>);
}

template <typename T>
void add_comparisons(Meanings& all, const std::string& type) {
  const auto add = [&](const std::string& name, auto op) {
    constexpr auto kOp = decltype(op)();
    all["setp." + name + "." + type] = {binary<uint8_t, T, T, kOp>};
  };
  add("eq", [](T a, T b) { return a == b; });
  add("ne", [](T a, T b) { return a != b && !(a != a) && !(b != b); });
  add("lt", [](T a, T b) { return a < b; });
  add("le", [](T a, T b) { return a <= b; });
  add("gt", [](T a, T b) { return a > b; });
  add("ge", [](T a, T b) { return a >= b; });
  if constexpr (std::is_floating_point_v<T>) {
    add("equ", [](T a, T b) { return !(a < b) && !(a > b); });
    add("neu", [](T a, T b) { return !(a == b); });
    add("ltu", [](T a, T b) { return !(a >= b); });
    add("leu", [](T a, T b) { return !(a > b); });
    add("gtu", [](T a, T b) { return !(a <= b); });
    add("geu", [](T a, T b) { return !(a < b); });
    add("nan", [](T a, T b) { return a != a || b != b; });
    add("num", [](T a, T b) { return a == a && b == b; });
  }
}

template <typename T>
void add_integers(Meanings& all) {
  using Unsigned = std::make_unsigned_t<T>;
  const std::string type = name_of<T>();
  all["add." + type] = {kBinary<T, [](T a, T b) { return T(Unsigned(a) + Unsigned(b)); }>};
  all["sub." + type] = {kBinary<T, [](T a, T b) { return T(Unsigned(a) - Unsigned(b)); }>};
  all["mul.lo." + type] = {kBinary<T, [](T a, T b) { return T(uint64_t(a) * uint64_t(b)); }>};
  all["mad.lo." + type] = {
      kTernary<T, [](T a, T b, T c) { return T(uint64_t(a) * uint64_t(b) + uint64_t(c)); }>};
  all["min." + type] = {kBinary<T, [](T a, T b) { return std::min(a, b); }>};
  all["max." + type] = {kBinary<T, [](T a, T b) { return std::max(a, b); }>};
  // Of the smallest number by -1, in the way of unsigned ones.
  all["div." + type] = {kBinary<T, [](T a, T b) {
    return b == 0 ? T(-1) : b == T(-1) && std::is_signed_v<T> ? T(-Unsigned(a)) : T(a / b);
  }>};
  all["rem." + type] = {kBinary<T, [](T a, T b) {
    return b == 0 ? a : b == T(-1) && std::is_signed_v<T> ? T(0) : T(a % b);
  }>};
  all["shr." + type] = {binary<T, T, uint32_t, shifted_right<T>>};
  all["neg." + type] = {kUnary<T, [](T a) { return T(-Unsigned(a)); }>};
  all["selp." + type] = {ternary<T, T, uint8_t, [](T a, T b, uint8_t p) { return p ? a : b; }>};
  add_comparisons<T>(all, type);
  if constexpr (std::is_signed_v<T>)
    all["abs." + type] = {kUnary<T, [](T a) { return T(a < 0 ? -Unsigned(a) : Unsigned(a)); }>};
  if constexpr (sizeof(T) < 8) {
    using Wide = std::conditional_t<sizeof(T) == 2,
                                    std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                    std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    all["mul.wide." + type] = {binary<Wide, T, T, [](T a, T b) { return Wide(a) * Wide(b); }>};
    all["mad.wide." + type] = {ternary<Wide, T, Wide, [](T a, T b, Wide c) {
      using Sum = std::make_unsigned_t<Wide>;
      return Wide(Sum(Wide(a) * Wide(b)) + Sum(c));
    }>};
    all["mul.hi." + type] = {
        kBinary<T, [](T a, T b) { return T((Wide(a) * Wide(b)) >> kBits<T>); }>};
  } else {
    all["mul.hi." + type] = {kBinary<T, [](T a, T b) {
      using Widest = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
      return T((Widest(a) * Widest(b)) >> 64);
    }>};
  }
}

// Sums of several words: each lane has a carry.
template <bool kTakes, bool kLeaves>
void add_with_carry(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const Lanes mine = Lanes{1} << lane;
    const uint64_t sum = uint64_t{w.read<uint32_t>(i[1], lane)} + w.read<uint32_t>(i[2], lane) +
                         (kTakes && (w.carry & mine) != 0);
    w.write(i[0], lane, static_cast<uint32_t>(sum));
    if (kLeaves) w.carry = (w.carry & ~mine) | (sum >> 32 != 0 ? mine : 0);
  });
}

template <typename T>
void add_bits(Meanings& all) {
  const std::string type = bits_name<T>();
  all["and." + type] = {kBinary<T, [](T a, T b) { return T(a & b); }>};
  all["or." + type] = {kBinary<T, [](T a, T b) { return T(a | b); }>};
  all["xor." + type] = {kBinary<T, [](T a, T b) { return T(a ^ b); }>};
  all["not." + type] = {kUnary<T, [](T a) { return T(~a); }>};
  all["shl." + type] = {binary<T, T, uint32_t, shifted_left<T>>};
  all["shr." + type] = {binary<T, T, uint32_t, shifted_right<T>>};
  all["selp." + type] = {ternary<T, T, uint8_t, [](T a, T b, uint8_t p) { return p ? a : b; }>};
  add_comparisons<T>(all, type);
}

template <typename T>
void add_floats(Meanings& all) {
  const std::string type = name_of<T>();
  const auto add = [&](const char* operation, Action action) {
    for (const char* how : {".", ".rn.", ".ftz.", ".rn.ftz."})
      all[std::string(operation) + how + type] = {action};
  };
  add("add", kBinary<T, [](T a, T b) { return a + b; }>);
  add("sub", kBinary<T, [](T a, T b) { return a - b; }>);
  add("mul", kBinary<T, [](T a, T b) { return a * b; }>);
  add("div", kBinary<T, [](T a, T b) { return a / b; }>);
  all["div.approx." + type] = all["div.full." + type] = all["div.rn." + type];
  add("fma", kTernary<T, [](T a, T b, T c) { return std::fma(a, b, c); }>);
  add("min", kBinary<T, [](T a, T b) { return std::fmin(a, b); }>);
  add("max", kBinary<T, [](T a, T b) { return std::fmax(a, b); }>);
  add("neg", kUnary<T, [](T a) { return -a; }>);
  add("abs", kUnary<T, [](T a) { return std::fabs(a); }>);
  all["selp." + type] = {ternary<T, T, uint8_t, [](T a, T b, uint8_t p) { return p ? a : b; }>};
  add_comparisons<T>(all, type);
  const auto add_approximate = [&](const char* operation, Action action) {
    for (const char* how : {".approx.ftz.", ".approx.", ".rn."})
      all[std::string(operation) + how + type] = {action};
  };
  add_approximate("rcp", kUnary<T, [](T a) { return T(1) / a; }>);
  add_approximate("sqrt", kUnary<T, [](T a) { return std::sqrt(a); }>);
  add_approximate("rsqrt", kUnary<T, [](T a) { return T(1) / std::sqrt(a); }>);
  add_approximate("ex2", kUnary<T, [](T a) { return std::exp2(a); }>);
  add_approximate("lg2", kUnary<T, [](T a) { return std::log2(a); }>);
  add_approximate("tanh", kUnary<T, [](T a) { return std::tanh(a); }>);
}

/// As near as the type comes.
template <typename To, typename From, auto kRound>
To as_integer(From x) {
  if (x != x) return To(0);
  const From rounded = kRound(x);
  if (rounded >= From(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  if (rounded <= From(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  return To(rounded);
}
template <typename To, typename From>
void add_conversion(Meanings& all) {
  constexpr bool kToInteger = std::is_integral_v<To>, kFromInteger = std::is_integral_v<From>;
  const std::string types = name_of<To>() + "." + name_of<From>();
  if constexpr (kToInteger && !kFromInteger) {
    constexpr auto kTruncated = [](From x) { return std::trunc(x); };
    constexpr auto kNearest = [](From x) { return std::nearbyint(x); };
    constexpr auto kFloor = [](From x) { return std::floor(x); };
    constexpr auto kCeiling = [](From x) { return std::ceil(x); };
    all["cvt.rzi." + types] = {unary<To, From, as_integer<To, From, kTruncated>>};
    all["cvt.rni." + types] = {unary<To, From, as_integer<To, From, kNearest>>};
    all["cvt.rmi." + types] = {unary<To, From, as_integer<To, From, kFloor>>};
    all["cvt.rpi." + types] = {unary<To, From, as_integer<To, From, kCeiling>>};
  } else {
    const char* rounding = kToInteger || (!kFromInteger && sizeof(To) >= sizeof(From)) ? "" : "rn.";
    all["cvt." + std::string(rounding) + types] = {unary<To, From, [](From x) { return To(x); }>};
  }
}
template <typename To, typename... From>
void add_conversions_to(Meanings& all) {
  (add_conversion<To, From>(all), ...);
}
template <typename... T>
void add_conversions(Meanings& all) {
  (add_conversions_to<T, T...>(all), ...);
}

uint32_t permuted_bytes(uint32_t a, uint32_t b, uint32_t select) {
  const uint64_t both = uint64_t(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t which = select >> i * 4 & 15;
    auto byte = static_cast<uint8_t>(both >> (which & 7) * 8);
    if (which & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= uint32_t(byte) << i * 8;
  }
  return result;
}
template <typename T>
void insert_field(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    const T a = w.read<T>(i[1], lane), b = w.read<T>(i[2], lane);
    const auto first = w.read<uint8_t>(i[3], lane), count = w.read<uint8_t>(i[4], lane);
    const T ones = count >= kBits<T> ? T(~T(0)) : T((T(1) << count) - 1);
    const T mask = shifted_left(ones, first);
    w.write<T>(i[0], lane, T((b & ~mask) | (shifted_left(a, first) & mask)));
  });
}
uint32_t extracted_field(uint32_t a, uint32_t first, uint32_t count) {
  first &= 255, count &= 255;
  if (first >= 32) return 0;
  return a >> first & (count >= 32 ? ~0u : (1u << count) - 1);
}
uint32_t table_of_three(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t result = 0;
  for (uint32_t row = 0; row < 8; ++row) {
    if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
  }
  return result;
}
// To the nearest tf32 number; of two, the one farther from zero, or the even one.
constexpr uint32_t kTf32Nan = 0x7fffffff;
uint32_t to_tf32(float x) {
  return x != x ? kTf32Nan : (std::bit_cast<uint32_t>(x) + 0x1000u) & ~0x1fffu;
}
uint32_t to_even_tf32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return x != x ? kTf32Nan : (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
}
/// A sum of two numbers without rounding: the second part is what the first has not.
struct ExactSum {
  double sum, rest;
  ExactSum(double a, double b) : sum(a + b) {
    const double part = sum - a;
    rest = (a - (sum - part)) + (b - part);
  }
  /// Of a number in fp32: whether it is above, or below.
  bool is_below(float x) const { return double(x) > sum || (double(x) == sum && rest < 0); }
  bool is_above(float x) const { return double(x) < sum || (double(x) == sum && rest > 0); }
};
float rounded_down(const ExactSum& exact) {
  const auto nearest = static_cast<float>(exact.sum);
  return exact.is_below(nearest) ? std::nextafter(nearest, -INFINITY) : nearest;
}
float cut(const ExactSum& exact) {
  const auto nearest = static_cast<float>(exact.sum);
  const bool too_far = nearest > 0 ? exact.is_below(nearest) : exact.is_above(nearest);
  return too_far && nearest != 0 ? std::nextafter(nearest, 0.f) : nearest;
}

void add_other_bits(Meanings& all) {
  all["prmt.b32"] = {kTernary<uint32_t, permuted_bytes>};
  all["bfi.b32"] = {insert_field<uint32_t>};
  all["bfi.b64"] = {insert_field<uint64_t>};
  all["bfe.u32"] = {kTernary<uint32_t, extracted_field>};
  all["lop3.b32"] = {quaternary<uint32_t, uint32_t, table_of_three>};
  all["cvt.rna.tf32.f32"] = {unary<uint32_t, float, to_tf32>};
  all["cvt.rn.tf32.f32"] = {unary<uint32_t, float, to_even_tf32>};
  all["cvt.sat.f32.f32"] = {
      kUnary<float, [](float x) { return x != x ? 0.f : std::clamp(x, 0.f, 1.f); }>};
  all["fma.rm.f32"] = {kTernary<float, [](float a, float b, float c) {
    return rounded_down({double(a) * b, c});
  }>};
  all["add.rz.f32"] = {kBinary<float, [](float a, float b) { return cut({a, b}); }>};
  all["copysign.f32"] = {
      // the sign comes first
      kBinary<float, [](float sign, float x) { return std::copysign(x, sign); }>};
  all["popc.b32"] = {unary<uint32_t, uint32_t, [](uint32_t x) { return std::popcount(x); }>};
  all["clz.b32"] = {unary<uint32_t, uint32_t, [](uint32_t x) { return std::countl_zero(x); }>};
  all["brev.b32"] = {kUnary<uint32_t, [](uint32_t x) {
    uint32_t turned = 0;
    for (int i = 0; i < 32; ++i) turned |= (x >> i & 1) << (31 - i);
    return turned;
  }>};
  constexpr auto kLeft = [](uint32_t low, uint32_t high, uint32_t by) {
    return uint32_t((uint64_t(high) << 32 | low) << (by & 31) >> 32);
  };
  constexpr auto kRight = [](uint32_t low, uint32_t high, uint32_t by) {
    return uint32_t((uint64_t(high) << 32 | low) >> (by & 31));
  };
  all["shf.l.wrap.b32"] = {kTernary<uint32_t, kLeft>};
  all["shf.r.wrap.b32"] = {kTernary<uint32_t, kRight>};
}

void add_predicates(Meanings& all) {
  // As a constant a predicate may be -1.
  all["and.pred"] = {kBinary<uint8_t, [](uint8_t a, uint8_t b) { return uint8_t(a && b); }>};
  all["or.pred"] = {kBinary<uint8_t, [](uint8_t a, uint8_t b) { return uint8_t(a || b); }>};
  all["xor.pred"] = {kBinary<uint8_t, [](uint8_t a, uint8_t b) { return uint8_t(!a != !b); }>};
  all["not.pred"] = {kUnary<uint8_t, [](uint8_t a) { return uint8_t(a == 0); }>};
  all["mov.pred"] = {kUnary<uint8_t, [](uint8_t a) { return uint8_t(a != 0); }>};
}

/// mov, which also puts numbers together and takes them apart: `mov.b64 {a, b}, x` and `mov.b64 x,
/// {a, b}` differ by where the brace is.
template <typename T>
void move(Warp& w, const Instruction& i, Lanes lanes) {
  const size_t parts = i.operands.size() - 1, bits = kBits<T> / parts;
  const bool apart = i.text.find('{') < i.text.find(',');
  const uint64_t ones = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  each_lane(lanes, [&](int lane) {
    if (parts == 1) {
      w.write<T>(i[0], lane, static_cast<T>(w.address(i[1], lane)));
    } else if (apart) {
      const uint64_t all = w.read<T>(i[parts], lane);
      for (size_t n = 0; n < parts; ++n) w.write<uint64_t>(i[n], lane, all >> n * bits & ones);
    } else {
      uint64_t all = 0;
      for (size_t n = 0; n < parts; ++n)
        all |= (w.read<uint64_t>(i[1 + n], lane) & ones) << n * bits;
      w.write<T>(i[0], lane, static_cast<T>(all));
    }
  });
}

void only_time(Warp&, const Instruction&, Lanes) {}

}  // namespace

void add_arithmetic(Meanings& all) {
  add_integers<int16_t>(all), add_integers<uint16_t>(all), add_integers<int32_t>(all);
  add_integers<uint32_t>(all), add_integers<int64_t>(all), add_integers<uint64_t>(all);
  add_bits<uint16_t>(all), add_bits<uint32_t>(all), add_bits<uint64_t>(all);
  for (const char* type : {"u32", "s32"}) {
    all[std::string("add.cc.") + type] = {add_with_carry</*kTakes=*/false, /*kLeaves=*/true>};
    all[std::string("addc.") + type] = {add_with_carry<true, false>};
    all[std::string("addc.cc.") + type] = {add_with_carry<true, true>};
  }
  add_floats<float>(all), add_floats<double>(all);
  add_conversions<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t, float,
                  double>(all);
  add_other_bits(all), add_predicates(all);
  for (const char* type : {"b16", "u16", "s16", "f16"})
    all[std::string("mov.") + type] = {move<uint16_t>};
  for (const char* type : {"b32", "u32", "s32", "f32"})
    all[std::string("mov.") + type] = {move<uint32_t>};
  for (const char* type : {"b64", "u64", "s64", "f64"})
    all[std::string("mov.") + type] = {move<uint64_t>};
  // Who has how many registers, and what begins before what, is nothing to us.
  for (const char* name : {"setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32",
                           "griddepcontrol.launch_dependents", "griddepcontrol.wait"})
    all[name] = {only_time};
}

}  // namespace fmmformer::emulator
