// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fmmformer/models/attention_capture.h"

namespace fmmformer::analysis {

/// One head of one layer on one example.
struct HeadPlace {
  int64_t example = 0, layer = 0, head = 0;
  friend bool operator==(const HeadPlace&, const HeadPlace&) = default;
};

struct SampleSpace {
  int64_t examples = 0, layers = 0, heads = 0;
  int64_t size() const { return examples * layers * heads; }
};

/// `count` different heads, or all there are, each as likely as any other; example by example.
std::vector<HeadPlace> random_heads(const SampleSpace& space, int64_t count, uint64_t seed);

/// The inputs of an example by its number: one row, cut to the tokens that are looked at.
using ExampleInputs = std::function<ModelInputs(int64_t example)>;
/// What is looked at: the whole attention matrix of a head, near and far fields blended, [N, N] in
/// double.
using OnMatrix = std::function<void(const HeadPlace& place, const at::Tensor& matrix)>;

/// Visits the matrices at `places` (sorted by example), with one pass of the model an example. Of a
/// pair of texts the first is looked at.
void visit_attention(const Model& model, const ExampleInputs& inputs,
                     const std::vector<HeadPlace>& places, const OnMatrix& visit);

}  // namespace fmmformer::analysis
