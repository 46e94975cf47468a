// SPDX-License-Identifier: Apache-2.0
#include "report/findings.h"

#include <nlohmann/json.hpp>

#include "report/json_node.h"

namespace fmmformer::report {
namespace {

using nlohmann::json;

std::vector<double> read_numbers(const JsonNode& node) {
  std::vector<double> numbers;
  for (const JsonNode& element : node.elements()) numbers.push_back(element.number(kUnknown));
  return numbers;
}

RankHistogram read_histogram(const JsonNode& node) {
  RankHistogram histogram;
  for (const JsonNode& pair : node.elements()) {
    const auto numbers = pair.elements();
    if (numbers.size() != 2) pair.fail("a rank and how often it came");
    histogram.emplace_back(numbers[0].integer(0), numbers[1].integer(0));
  }
  return histogram;
}

RankFindings read_rank(const JsonNode& node) {
  RankFindings rank{.step = node["step"].number(kUnknown),
                    .matrices = node["matrices"].number(kUnknown),
                    .tokens = node["tokens"].number(kUnknown),
                    .causal = node["causal"].flag(true)};
  for (const JsonNode& band : node["bands"].elements()) {
    rank.bands.push_back({.bandwidth = band["bandwidth"].integer(0),
                          .bound = band["bound"].integer(0),
                          .absolute = read_histogram(band["absolute"]),
                          .relative = read_histogram(band["relative"]),
                          .singular_values = read_numbers(band["singular_values"])});
  }
  return rank;
}

BandShares read_shares(const JsonNode& node, size_t widths) {
  BandShares shares{.mass = read_numbers(node["mass"]), .energy = read_numbers(node["energy"])};
  if (shares.mass.size() != widths || shares.energy.size() != widths) {
    node.fail("a share of mass and of energy for each of " + std::to_string(widths) + " widths");
  }
  return shares;
}

BandFindings read_bands(const JsonNode& node) {
  BandFindings bands{.step = node["step"].number(kUnknown),
                     .matrices = node["matrices"].number(kUnknown),
                     .widths = read_numbers(node["widths"])};
  if (bands.widths.empty()) return bands;
  for (const JsonNode& layer : node["layers"].elements()) {
    bands.layers.push_back(read_shares(layer, bands.widths.size()));
  }
  bands.all = read_shares(node["all"], bands.widths.size());
  return bands;
}

/// What `fmmformer generate` does unless told: not worth a word.
bool is_usual(const std::string& setting, double value) {
  return value == (setting == "top_k" ? 0 : 1);
}

TextSample read_sample(const JsonNode& node) {
  TextSample sample{.prompt = node["prompt"].text(),
                    .text = node["text"].text(),
                    .step = node["step"].number(kUnknown),
                    .seed = node["seed"].number(kUnknown)};
  for (const auto& [name, value] : node["sampling"].members()) {
    if (is_usual(name, value.number(kUnknown))) continue;
    sample.settings += name + " " + value.shown() + ", ";
  }
  if (!sample.settings.empty()) sample.settings.resize(sample.settings.size() - 2);
  return sample;
}

json rank_json(const RankFindings& rank) {
  if (rank.bands.empty()) return nullptr;
  json bands = json::array();
  for (const RankBand& band : rank.bands) {
    bands.push_back({{"bandwidth", band.bandwidth},
                     {"bound", band.bound},
                     {"absolute", band.absolute},
                     {"relative", band.relative},
                     {"singular_values", band.singular_values}});
  }
  return {{"step", rank.step},
          {"matrices", rank.matrices},
          {"tokens", rank.tokens},
          {"causal", rank.causal},
          {"bands", bands}};
}

json shares_json(const BandShares& shares) {
  return {{"mass", shares.mass}, {"energy", shares.energy}};
}

json bands_json(const BandFindings& bands) {
  if (bands.widths.empty()) return nullptr;
  json layers = json::array();
  for (const BandShares& layer : bands.layers) layers.push_back(shares_json(layer));
  return {{"step", bands.step},
          {"matrices", bands.matrices},
          {"widths", bands.widths},
          {"layers", layers},
          {"all", shares_json(bands.all)}};
}

json samples_json(const std::vector<TextSample>& samples) {
  json list = json::array();
  for (const TextSample& sample : samples) {
    list.push_back({{"prompt", sample.prompt},
                    {"text", sample.text},
                    {"settings", sample.settings},
                    {"step", sample.step},
                    {"seed", sample.seed}});
  }
  return list;
}

}  // namespace

Findings read_findings(const JsonNode& root) {
  Findings findings{.rank = read_rank(root["analysis"]["rank"]),
                    .bands = read_bands(root["analysis"]["bands"])};
  for (const JsonNode& sample : root["samples"].elements()) {
    findings.samples.push_back(read_sample(sample));
  }
  return findings;
}

json findings_json(const Findings& findings) {
  return {{"rank", rank_json(findings.rank)},
          {"bands", bands_json(findings.bands)},
          {"samples", samples_json(findings.samples)}};
}

}  // namespace fmmformer::report
