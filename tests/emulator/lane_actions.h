// SPDX-License-Identifier: Apache-2.0
// Actions from functions of one to three numbers, lane by lane.
#pragma once

#include "emulator/block.h"

namespace fmmformer::emulator {

template <typename R, typename T, auto kOp>
void unary(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) { w.write<R>(i[0], lane, R(kOp(w.read<T>(i[1], lane)))); });
}
template <typename R, typename T, typename U, auto kOp>
void binary(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    w.write<R>(i[0], lane, R(kOp(w.read<T>(i[1], lane), w.read<U>(i[2], lane))));
  });
}
template <typename R, typename T, typename U, auto kOp>
void ternary(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    w.write<R>(i[0], lane,
               R(kOp(w.read<T>(i[1], lane), w.read<T>(i[2], lane), w.read<U>(i[3], lane))));
  });
}
template <typename R, typename T, auto kOp>
void quaternary(Warp& w, const Instruction& i, Lanes lanes) {
  each_lane(lanes, [&](int lane) {
    w.write<R>(i[0], lane,
               R(kOp(w.read<T>(i[1], lane), w.read<T>(i[2], lane), w.read<T>(i[3], lane),
                     w.read<T>(i[4], lane))));
  });
}
template <typename T, auto kOp>
constexpr Action kUnary = unary<T, T, kOp>;
template <typename T, auto kOp>
constexpr Action kBinary = binary<T, T, T, kOp>;
template <typename T, auto kOp>
constexpr Action kTernary = ternary<T, T, T, kOp>;

}  // namespace fmmformer::emulator
