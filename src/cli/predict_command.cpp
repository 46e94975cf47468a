// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/live_line.h"
#include "cli/run_options.h"
#include "cli/token_input.h"
#include "fmmformer/core/atomic_file.h"
#include "fmmformer/core/safetensors.h"
#include "fmmformer/models/batch_tensors.h"
#include "train/tensor_file.h"

namespace fmmformer::cli {
namespace {

struct PredictOptions {
  RunOptions run;
  std::string second;  // the second argument without a name: the input, unless --run was given
  std::string output;
  std::string logits;
  DeviceOptions device;
};

struct RunAndInput {
  std::string run, input;
};

// `predict RUN INPUT` or `predict --run RUN INPUT`, in whatever order.
RunAndInput run_and_input(const PredictOptions& options) {
  const bool named = !options.run.run.empty();
  if (options.run.first.empty() || options.second.empty() != named) {
    throw UsageError("give a run folder and an input, such as `runs/x tokens.jsonl`" +
                     std::string(named ? "; --run has named the folder already" : ""));
  }
  return named ? RunAndInput{options.run.run, options.run.first}
               : RunAndInput{options.run.first, options.second};
}

// One example as a batch. A classifier gets its task's length, padded: its mean (and, for some, its
// normaliser) is over that. A language model is causal and needs no padding.
Batch batch_of(const TokenInput& input, const ModelConfig& model) {
  const bool pad = model.kind != ModelKind::kLanguageModel;
  Batch batch{.size = 1};
  batch.length = pad ? model.max_length : std::ssize(input.tokens);
  const auto length = static_cast<size_t>(batch.length);
  const auto padded = [&](std::vector<int64_t> tokens) {
    tokens.resize(length, 0);
    return tokens;
  };
  const auto mask = [&](const std::vector<int64_t>& tokens) {
    std::vector<uint8_t> real(length, 0);
    std::fill_n(real.begin(), tokens.size(), uint8_t{1});
    return real;
  };
  batch.tokens = padded(input.tokens);
  if (pad) batch.token_mask = mask(input.tokens);
  if (!input.other_tokens.empty()) {
    batch.other_tokens = padded(input.other_tokens);
    batch.other_token_mask = mask(input.other_tokens);
  }
  batch.targets.resize(1);  // of a class that nobody asks for
  return batch;
}

std::string answer_line(const at::Tensor& logits) {
  nlohmann::ordered_json answer;
  const at::Tensor best = logits.argmax(-1);
  if (best.dim() == 0) {
    answer["label"] = best.item<int64_t>();
  } else {
    const at::Tensor plain = best.to(at::kCPU).contiguous();
    answer["next_tokens"] = std::vector<int64_t>(plain.const_data_ptr<int64_t>(),
                                                 plain.const_data_ptr<int64_t>() + plain.numel());
  }
  return answer.dump() + "\n";
}

}  // namespace

int run_predict(const CommandLine& line) {
  PredictOptions options;
  CLI::App app(
      "Applies a trained model to token ids: a label an example, or for a model of tokens the most "
      "likely next token\nat every position.");
  add_run_options(app, options.run);
  app.add_option(
      "INPUT", options.second,
      "JSON lines ({\"tokens\": [..]}), a safetensors file with `tokens`, or - for stdin");
  app.add_option("-o,--output", options.output, "write the answers here (default: print them)")
      ->type_name("FILE");
  app.add_option("--logits", options.logits,
                 "also write all logits, tensors logits.0, logits.1, ..")
      ->type_name("F.safetensors");
  add_device_options(app, options.device);
  app.footer("Example:\n  echo '[3, 1, 4, 0]' | fmmformer predict runs/x -");
  if (!read_options(app, line)) return kDone;

  const auto [run, input] = run_and_input(options);
  check_output_file("--output", options.output);
  check_output_file("--logits", options.logits);
  const c10::Device device = use_device(options.device);
  const train::TrainedModel trained = load_trained(run, options.run, device);
  const ModelConfig& model = trained.experiment.model;
  const std::vector<TokenInput> inputs = read_token_input(input);
  check_token_input(inputs, {.vocabulary = model.vocabulary,
                             .longest = model.max_length,
                             .pair = model.kind == ModelKind::kPairClassifier});
  at::NoGradGuard no_gradient;
  const LiveLine live;
  std::string answers;
  train::NamedTensors all_logits;
  for (size_t i = 0; i < inputs.size(); ++i) {
    live.show(std::to_string(i + 1) + "/" + std::to_string(inputs.size()));
    const at::Tensor logits =
        trained.model->forward(batch_tensors(batch_of(inputs[i], model), device).inputs, {})[0];
    answers += answer_line(logits);
    if (!options.logits.empty())
      all_logits.emplace_back("logits." + std::to_string(i), logits.to(at::kCPU, at::kFloat));
  }
  live.clear();
  if (!options.logits.empty())
    write_safetensors(options.logits, train::TensorViews(all_logits).views());
  if (options.output.empty()) {
    std::fputs(answers.c_str(), stdout);
  } else {
    write_file_atomically(options.output, answers);
  }
  return kDone;
}

}  // namespace fmmformer::cli
