// SPDX-License-Identifier: Apache-2.0
#include "analysis/attention_sample.h"

#include <algorithm>
#include <numeric>

#include "fmmformer/core/random.h"

namespace fmmformer::analysis {

std::vector<HeadPlace> random_heads(const SampleSpace& space, int64_t count, uint64_t seed) {
  std::vector<int64_t> numbers(static_cast<size_t>(space.size()));
  std::iota(numbers.begin(), numbers.end(), 0);
  Random random(derive_seed(seed, "heads to look at"));
  random.shuffle(std::span(numbers));
  numbers.resize(static_cast<size_t>(std::min(count, space.size())));
  std::ranges::sort(numbers);
  std::vector<HeadPlace> places;
  for (const int64_t number : numbers) {
    places.push_back({.example = number / (space.layers * space.heads),
                      .layer = number / space.heads % space.layers,
                      .head = number % space.heads});
  }
  return places;
}

void visit_attention(const Model& model, const ExampleInputs& inputs,
                     const std::vector<HeadPlace>& places, const OnMatrix& visit) {
  std::vector<AttentionRecord> records;
  int64_t captured = -1;
  for (const HeadPlace& place : places) {
    if (place.example != captured) {
      records = capture_attention(model, inputs(place.example));
      captured = place.example;
    }
    const AttentionRecord& record = records.at(static_cast<size_t>(place.layer));
    visit(place, attention_maps(record, 0, place.head).blended);
  }
}

}  // namespace fmmformer::analysis
