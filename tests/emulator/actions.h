// SPDX-License-Identifier: Apache-2.0
// What instructions mean, kind by kind.
#pragma once

#include "emulator/module.h"

namespace fmmformer::emulator {

void add_arithmetic(Meanings& all);       // a lane's own numbers
void add_half_arithmetic(Meanings& all);  // likewise, of sixteen bits
void add_memory(Meanings& all);           // loads, stores, copies, events
void add_warp(Meanings& all);             // control flow, exchange between lanes, barriers
void add_matrix_products(Meanings& all);  // of a warp, of a warpgroup; and what moves matrices

}  // namespace fmmformer::emulator
