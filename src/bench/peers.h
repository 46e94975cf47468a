// SPDX-License-Identifier: Apache-2.0
// What a user has today: the ways to the same result, or to softmax attention, that the operator is
// timed against.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "bench/case_tensors.h"

namespace fmmformer::bench {

struct Peer {
  std::string_view name;
  std::string_view what;
  at::Tensor (*run)(const AttentionInputs&, const BlendWeights&, const FmmOptions&);
  Layout best_layout;  // what it is given: a peer is never charged for a transposition
  int64_t longest;     // beyond this length it takes minutes or more memory than machines have
  bool is_fmm;         // computes FMM attention; else softmax over all keys
};

/// sdpa, composite, dense_near.
std::span<const Peer> peers();

/// Throws std::invalid_argument that lists the peers.
const Peer& peer_named(std::string_view name);

/// Why a peer cannot run a case, or "" when it can: none of them knows masks or dropout.
std::string reason_against(const Peer& peer, const AttentionCase& attention_case);

}  // namespace fmmformer::bench
