// SPDX-License-Identifier: Apache-2.0
#include "report/synthetic_runs.h"

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

namespace fmmformer::report {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kSteps = 2000, kLayers = 4, kHeads = 8, kChannels = 32, kLength = 64;
constexpr int kBandwidth = 10;

struct Model {
  std::string name;
  double floor;      // the loss that it tends to
  double pace;       // in steps
  int64_t blending;  // parameters beyond the others'
  double tokens_per_second;
};
const std::map<std::string, Model> kModels = {
    {"fmm", {"FMM, 2 kernels + band 10", 0.012, 210, 3072, 412000}},
    {"linear", {"linear transformer", 0.31, 420, 0, 455000}},
    {"softmax", {"softmax transformer", 0.004, 150, 0, 268000}}};

json common(const std::string& kind) {
  json record = minimal_record(kind);
  record["created"] = "2026-11-15T18:40:00Z";
  record["commit"] = "3195ab047e";
  record["machine"] = {{"cpu", "AMD EPYC 9654"}, {"cores", 2}, {"instruction set", "AVX-512"}};
  record["versions"] = {{"fmmformer", "0.1.0"}, {"torch", "2.11.0"}};
  return record;
}

json curve(const Model& model, int every, double noise, std::mt19937& random) {
  std::normal_distribution<double> normal(0, noise);
  json points = json::array();
  for (int step = every; step <= kSteps; step += every) {
    const double ideal = model.floor + 2.35 / (1 + std::exp((step - 3 * model.pace) / model.pace));
    const double loss = ideal * std::exp(normal(random));
    points.push_back(
        {{"step", step}, {"loss", loss}, {"metric", 0.1 + 0.9 * std::exp(-0.9 * loss)}});
  }
  return points;
}

json blend(const std::string& attention, std::mt19937& random) {
  json layers = json::array();
  if (attention != "fmm") return layers;
  std::normal_distribution<double> normal(0, 0.06);
  const auto field = [&](double centre) {
    json heads = json::array();
    for (int head = 0; head < kHeads; ++head) {
      json channels = json::array();
      const double level = centre + 3 * normal(random);
      for (int channel = 0; channel < kChannels; ++channel) {
        channels.push_back(level + normal(random));
      }
      heads.push_back(channels);
    }
    return heads;
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    layers.push_back({{"layer", layer},
                      {"near", field(0.75 - 0.15 * layer)},
                      {"far", {field(0.35 + 0.1 * layer), field(0.2)}},
                      {"feature_maps", {"elu", "elu_flip"}}});
  }
  return layers;
}

/// Causal rows that sum to 1: the own place, the band, the copied symbol half a sequence before.
json attention_map(const std::string& field, int layer, int head) {
  json rows = json::array();
  for (int i = 0; i < kLength; ++i) {
    std::vector<double> row(kLength, 0.0);
    double sum = 0;
    for (int j = 0; j <= i; ++j) {
      if (field == "near" && i - j >= kBandwidth) continue;
      const double copied = std::exp(-0.5 * std::pow((i - j - kLength / 2 + 1) / (1.0 + head), 2));
      const double local = std::exp(-(i - j) / (1.0 + 0.8 * head + layer));
      row[static_cast<size_t>(j)] = field == "near" ? local : 0.05 + copied + 0.2 * local;
      sum += row[static_cast<size_t>(j)];
    }
    for (double& value : row) value = std::round(value / sum * 1e6) / 1e6;
    rows.push_back(row);
  }
  return rows;
}

json maps(const std::string& attention) {
  json tokens = json::array();
  for (int i = 0; i < kLength; ++i) tokens.push_back(std::to_string(i * 7 % 10));
  json heads = json::array();
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      json one = {{"layer", layer}, {"head", head}, {"blend", attention_map("far", layer, head)}};
      if (attention == "fmm") {
        one["near"] = attention_map("near", layer, head);
        one["far"] = one["blend"];
        for (size_t i = 0; i < kLength; ++i) {
          for (size_t j = 0; j < kLength; ++j) {
            const double near = one["near"][i][j], far = one["far"][i][j];
            one["blend"][i][j] = 0.4 * near + 0.6 * far;
          }
        }
      }
      heads.push_back(one);
    }
  }
  return {{"tokens", tokens}, {"heads", heads}};
}

void write_json(const fs::path& file, const json& value) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << value.dump();
}

}  // namespace

json minimal_record(const std::string& kind) {
  return {{"format", "fmmformer-record"}, {"version", 1}, {"kind", kind}};
}

json synthetic_training(const std::string& attention, int seed) {
  const Model& model = kModels.at(attention);
  std::mt19937 random(static_cast<unsigned>(seed) * 7919U +
                      static_cast<unsigned>(attention.size()));
  Model own = model;
  own.pace *= 1 + 0.12 * seed;
  json record = common("training");
  record["name"] = attention + "-s" + std::to_string(seed);
  record["group"] = model.name;
  record["seed"] = seed;
  record["task"] = "copy 128";
  record["attention"] = attention;
  record["command"] = "fmmformer train configs/copy/" + attention +
                      ".toml --set seed=" + std::to_string(seed) + " --out runs/" + attention +
                      "-s" + std::to_string(seed);
  record["config"] = {
      {"model", {{"layers", kLayers}, {"heads", kHeads}, {"width", 256}, {"attention", attention}}},
      {"task", {{"name", "copy"}, {"length", 128}}},
      {"train", {{"steps", kSteps}, {"learning_rate", 0.001}, {"batch", 64}}},
      {"seed", seed}};
  if (attention == "fmm") {
    record["config"]["model"]["bandwidth"] = kBandwidth;
    record["config"]["model"]["feature_maps"] = {"elu", "elu_flip"};
  }
  record["parameters"] = 3163787 + model.blending;
  record["metric"] = {{"name", "accuracy"}, {"higher_is_better", true}, {"is_share", true}};
  record["curves"] = {{"train", curve(own, 10, 0.06, random)},
                      {"valid", curve(own, 100, 0.02, random)}};
  record["result"] = {{"test_metric", record["curves"]["valid"].back()["metric"]},
                      {"steps", kSteps},
                      {"seconds", kSteps * 64 * 128 / model.tokens_per_second},
                      {"tokens_per_second", model.tokens_per_second * (1 + 0.01 * seed)},
                      {"peak_bytes", attention == "softmax" ? 912e6 : 538e6}};
  record["blend"] = blend(attention, random);
  record["maps"] = maps(attention);
  record["pictures"] = {{"step", 900}, {"weights", "best"}};
  return record;
}

json synthetic_language_model() {
  json record = synthetic_training("softmax", 1);
  record["name"] = "wikitext2/softmax";
  record["group"] = "wikitext2/softmax #12";
  record["task"] = "wikitext 256";
  record["config"]["model"]["vocabulary"] = 33278;
  record["metric"] = {{"name", "perplexity"}, {"higher_is_better", false}, {"is_share", false}};
  for (auto& [split, curve] : record["curves"].items()) {
    for (json& point : curve) {
      point["loss"] = 4 + point["loss"].get<double>();
      point["metric"] = std::exp(point["loss"].get<double>());
    }
  }
  record["result"]["test_metric"] = 92.25;
  json bands = json::array();
  for (const int bandwidth : {0, 5, 10, 20}) {
    json ranks = json::array(), values = json::array();
    for (int rank = 150 - 3 * bandwidth; rank < 240 - bandwidth; rank += 10)
      ranks.push_back({rank, 111});
    for (int i = 0; i < 256; ++i) values.push_back(std::exp(-0.01 * (10 + bandwidth) * i));
    bands.push_back({{"bandwidth", bandwidth},
                     {"bound", 256 - bandwidth},
                     {"absolute", ranks},
                     {"relative", ranks},
                     {"singular_values", values}});
  }
  const json shares = {{"mass", {0.1, 0.5, 1.0}}, {"energy", {0.3, 0.8, 1.0}}};
  record["analysis"] = {
      {"rank",
       {{"step", 900}, {"matrices", 1000}, {"tokens", 256}, {"causal", true}, {"bands", bands}}},
      {"bands",
       {{"step", 900},
        {"matrices", 64},
        {"widths", {1, 10, 256}},
        {"layers", {shares, shares}},
        {"all", shares}}}};
  record["samples"] = {{{"prompt", "The game"},
                        {"text", " was <unk> in 1999 .\n = History = "},
                        {"seed", 1},
                        {"step", 900},
                        {"sampling", {{"temperature", 0.8}, {"top_k", 40}, {"top_p", 1.0}}}},
                       {{"prompt", "<b>bold</b>"},
                        {"text", " the the"},
                        {"seed", 1},
                        {"step", 900},
                        {"sampling", {{"temperature", 0}, {"top_k", 0}, {"top_p", 1.0}}}}};
  return record;
}

json synthetic_scaling() {
  struct Method {
    std::string name, attention;
    double fixed, linear, quadratic, bytes_linear, bytes_quadratic;
  };
  const Method methods[] = {{"softmax transformer", "softmax", 0.0004, 4e-6, 2.2e-8, 12e3, 0.4},
                            {"linear transformer", "linear", 0.0005, 6.1e-6, 0, 9e3, 0},
                            {"FMM, 2 kernels + band 10", "fmm", 0.0006, 1.2e-5, 0, 11e3, 0},
                            {"FMM, 3 kernels + band 30", "fmm", 0.0007, 1.9e-5, 0, 11.4e3, 0}};
  json record = common("scaling");
  record["name"] = "scaling";
  record["command"] = "fmmformer bench scaling --out runs/scaling";
  record["config"] = {{"batch", 1}, {"heads", 8}, {"head_dim", 64}, {"pass", "forward+backward"}};
  record["series"] = json::array();
  for (const Method& method : methods) {
    json points = json::array();
    for (double n = 512; n <= 65536; n *= 2) {
      if (method.attention == "softmax" && n > 16384) {
        points.push_back({{"length", n}, {"failure", "out of memory"}});
        continue;
      }
      const double seconds = method.fixed + method.linear * n + method.quadratic * n * n;
      points.push_back(
          {{"length", n},
           {"seconds", seconds},
           {"seconds_low", seconds * 0.97},
           {"seconds_high", seconds * 1.04},
           {"peak_bytes", 1e5 + method.bytes_linear * n + method.bytes_quadratic * n * n}});
    }
    record["series"].push_back(
        {{"name", method.name}, {"attention", method.attention}, {"points", points}});
  }
  return record;
}

json synthetic_gpu() {
  const auto timing = [](double milliseconds) { return json{{"median_ms", milliseconds}}; };
  json record = common("gpu");
  record["name"] = "fmm_attention on a GPU";
  record["copy_bytes_per_second"] = 4.1e12;
  record["kernel_hash"] = "0123456789abcdef0123456789abcdef";
  record["timings"] = json::array();
  for (const std::string dtype : {"bf16", "fp32"}) {
    record["timings"].push_back(
        {{"case", "gpu_copy"},
         {"shape_text", "64x512x8x32 causal 3+30"},
         {"dtype", dtype},
         {"ours", {{"graph", timing(0.2)}, {"eager", timing(0.3)}, {"peak_bytes", 9e7}}},
         {"forward", timing(0.05)},
         {"floor_ms", 0.04},
         {"limit_ms", dtype == "bf16" ? 0.15 : 0.6},
         {"peers",
          {{"sdpa", {{"graph", timing(0.29)}}}, {"composite", {{"not_run", "has no dropout"}}}}}});
  }
  record["timings"].push_back({{"case", "gpu_1048576_r3_band30"},
                               {"shape_text", "1x1048576x8x64 causal 3+30"},
                               {"dtype", "bf16"},
                               {"failure", "out of memory"}});
  record["bars"] = {{{"what", "bf16: softmax over 3 + 30 at 65536 tokens"},
                     {"measured", "21.0 x"},
                     {"wanted", ">= 20 x"},
                     {"met", true}},
                    {{"what", "bf16: one decoding step"},
                     {"measured", "12.0 us"},
                     {"wanted", "<= 10 us"},
                     {"met", false}}};
  record["checks"] = {{{"name", "tests"}, {"passed", 120}, {"failed", 0}, {"skipped", 7}},
                      {{"name", "racecheck"}, {"note", "not run: compute-sanitizer is not here"}}};
  return record;
}

void write_synthetic_runs(const fs::path& folder) {
  for (const std::string attention : {"softmax", "linear", "fmm"}) {
    for (const int seed : {1, 2}) {
      const json record = synthetic_training(attention, seed);
      write_json(folder / record["name"].get<std::string>() / "record.json", record);
    }
  }
  write_json(folder / "scaling" / "record.json", synthetic_scaling());
  write_json(folder / "gpu" / "record.json", synthetic_gpu());
}

void write_language_model(const fs::path& folder) {
  write_json(folder / "record.json", synthetic_language_model());
}

}  // namespace fmmformer::report
