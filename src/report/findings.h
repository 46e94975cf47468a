// SPDX-License-Identifier: Apache-2.0
// What was found out about a trained model afterwards: members "analysis" and "samples" of its
// record.
//
//    "analysis": {
//      "rank": {"step": 900, "matrices": 1000, "tokens": 256, "causal": true, "threshold": 1e-6,
//               "bands": [{"bandwidth": 5, "bound": 251, "absolute": [[rank, how often], ...],
//                          "relative": [...], "singular_values": [median of each, falling]}, ...]},
//      "bands": {"step": 900, "matrices": 64, "widths": [1, 2, ..],
//                "layers": [{"mass": [share a width], "energy": [..]}, ...], "all": {..}}},
//    "samples": [{"prompt": "The game", "text": " was ..", "step": 900, "seed": 1, "sample": 1,
//                 "sampling": {"temperature": 0.8, ..}}, ...]
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "report/unknown.h"

namespace fmmformer::report {

class JsonNode;

using RankHistogram = std::vector<std::pair<int64_t, int64_t>>;  // rank, how often

struct RankBand {
  int64_t bandwidth = 0;
  int64_t bound = 0;  // what the rank cannot exceed
  RankHistogram absolute, relative;
  std::vector<double> singular_values;
};

struct RankFindings {
  double step = kUnknown;
  double matrices = kUnknown;
  double tokens = kUnknown;  // of the matrix of median length; the bounds are its own
  bool causal = true;
  std::vector<RankBand> bands;  // none: it was not looked at
};

struct BandShares {
  std::vector<double> mass, energy;  // one a width
};

struct BandFindings {
  double step = kUnknown;
  double matrices = kUnknown;
  std::vector<double> widths;  // none: it was not looked at
  std::vector<BandShares> layers;
  BandShares all;
};

struct TextSample {
  std::string prompt, text;
  std::string settings;  // "temperature 0.8, top_k 40": those that are not 0 or 1
  double step = kUnknown;
  double seed = kUnknown;
};

struct Findings {
  RankFindings rank;
  BandFindings bands;
  std::vector<TextSample> samples;
};

/// From a record. Throws std::invalid_argument for members that do not fit each other.
Findings read_findings(const JsonNode& root);

/// For the page's scripts; members that are empty are null.
nlohmann::json findings_json(const Findings& findings);

}  // namespace fmmformer::report
