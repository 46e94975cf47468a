// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace fmmformer {

/// log p of every token that may come next, in parts that are computed when they are asked for. Of
/// an adaptive softmax the parts are its head and its clusters, and a cluster's probability as a
/// whole is known before that of any of its words: whoever looks for likely words can often leave
/// large clusters alone, and be exact. There may be bounds as well, which cost less than the scores
/// between them. Any other output is a single part.
class TokenScores {
 public:
  struct Part {
    int64_t begin = 0;  // its tokens are begin .. begin + size - 1; parts follow each other
    int64_t size = 0;
    double log_mass = 0;  // log of the sum of its p; no token of the part has a larger log p
  };
  using Compute = std::function<at::Tensor(size_t part)>;  // its log p, [size], any device and type

  /// low[i] <= log p of the part's token i <= high[i], rounding included.
  struct Bounds {
    std::vector<float> low, high;
  };
  enum class Sharpness { kRough, kSharp, kSharpest };           // narrower, each for some more time
  using Bound = std::function<Bounds(size_t part, Sharpness)>;  // both empty: none are known

  /// `compute` and `bound` are called at most once a part (and sharpness, rougher ones first),
  /// while this object lives.
  TokenScores(std::vector<Part> parts, Compute compute, Bound bound = {});

  std::span<const Part> parts() const { return parts_; }
  int64_t tokens() const { return parts_.back().begin + parts_.back().size; }
  bool is_computed(size_t part) const { return computed_[part].has_value(); }
  bool is_bounded(size_t part) const { return bounds_[0][part] && !bounds_[0][part]->high.empty(); }
  /// log p of a part's tokens.
  std::span<const float> log_p(size_t part) const;
  /// Bounds of a part's tokens; empty where all that can be done is to compute it.
  const Bounds& bounds(size_t part, Sharpness sharpness) const;
  /// log p of all: [tokens] in fp32, on the CPU.
  at::Tensor all() const;

 private:
  std::vector<Part> parts_;
  Compute compute_;
  Bound bound_;
  mutable std::vector<std::optional<at::Tensor>> computed_;
  mutable std::array<std::vector<std::optional<Bounds>>, 3> bounds_;  // [sharpness][part]
};

}  // namespace fmmformer
