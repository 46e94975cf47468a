// SPDX-License-Identifier: Apache-2.0
// Random numbers that are a function of a seed and of nothing else: the same on every machine,
// compiler and thread count. No global state.
#pragma once

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <numbers>
#include <span>
#include <string_view>
#include <utility>

namespace fmmformer {

/// A bijection of 64-bit numbers that looks random (the finaliser of SplitMix64).
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// FNV-1a: a number for a name.
constexpr uint64_t name_hash(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

constexpr uint64_t seed_part(std::string_view name) { return name_hash(name); }
constexpr uint64_t seed_part(std::integral auto number) { return static_cast<uint64_t>(number); }

/// The seed for one purpose, from the seed of the run: derive_seed(seed, "dropout", step). Parts
/// are names and integers; their order matters. Different parts give unrelated seeds.
template <typename... Parts>
constexpr uint64_t derive_seed(uint64_t seed, const Parts&... parts) {
  ((seed = mix64(mix64(seed + 0x9E3779B97F4A7C15u) ^ seed_part(parts))), ...);
  return seed;
}

/// A stream of random numbers: SplitMix64. Copying it copies its place in the stream.
class Random {
 public:
  explicit constexpr Random(uint64_t seed) : state_(seed) {}

  /// 64 random bits.
  constexpr uint64_t next() { return mix64(state_ += 0x9E3779B97F4A7C15u); }

  /// Uniform in [0, bound), without bias; bound >= 1.
  constexpr uint64_t below(uint64_t bound) {
    // Values under the remainder of 2^64 / bound would make the first numbers more likely.
    const uint64_t remainder = (0 - bound) % bound;
    uint64_t value = next();
    while (value < remainder) value = next();
    return value % bound;
  }

  /// Uniform in [low, high], both included.
  constexpr int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }

  /// Uniform in [0, 1), a multiple of 2^-53.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  /// Normal with mean 0 and variance 1 (Box-Muller, one of the two).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  template <typename T>
  constexpr void shuffle(std::span<T> items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

  /// Where in the stream it is: Random(state()) goes on from here.
  constexpr uint64_t state() const { return state_; }

 private:
  uint64_t state_;
};

}  // namespace fmmformer
