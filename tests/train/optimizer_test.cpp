// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "train/optimizer_reference.h"
#include "train/torch_error.h"

namespace fmmformer::train {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

Tensor noise(at::IntArrayRef shape, int64_t seed, at::ScalarType type = at::kDouble) {
  const Tensor index = at::arange(at::empty(shape, at::kDouble).numel(), at::kDouble);
  return at::sin(index * 12.9898 + static_cast<double>(seed) * 78.233)
      .mul(43758.5453)
      .frac()
      .reshape(shape)
      .to(type);
}

std::vector<double> doubles(const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

double norm_of(const std::vector<double>& values) {
  double norm = 0;
  for (const double value : values) norm = std::hypot(norm, value);
  return norm;
}

double error_norm(const Tensor& tensor, const std::vector<double>& wanted) {
  std::vector<double> difference = doubles(tensor);
  for (size_t i = 0; i < wanted.size(); ++i) difference[i] -= wanted[i];
  return norm_of(difference);
}

// One that the clipping of a tensor's norm to 1 touches, one that it does not, and a scalar.
NamedTensors sample_parameters(at::ScalarType type) {
  NamedTensors parameters = {{"large", noise({17, 13}, 1, type)},
                             {"small", noise({5}, 2, type)},
                             {"scalar", noise({}, 3, type)}};
  for (auto& [name, tensor] : parameters) tensor.requires_grad_();
  return parameters;
}

void set_gradients(const NamedTensors& parameters, int64_t step) {
  int64_t seed = 100 * step;
  for (const auto& [name, tensor] : parameters) {
    const double scale = name == "small" ? 0.05 : 1.0;
    tensor.mutable_grad() = noise(tensor.sizes(), ++seed, tensor.scalar_type()).mul(scale);
  }
}

struct OptimizerCase {
  std::string name;
  OptimizerConfig config;
  double learning_rate = 1e-3;
};
void PrintTo(const OptimizerCase& sample, std::ostream* stream) { *stream << sample.name; }

const OptimizerCase kOptimizerCases[] = {
    {"adam", {.kind = OptimizerKind::kAdam}},
    {"adam_with_decay", {.kind = OptimizerKind::kAdam, .weight_decay = 0.1}},
    {"adamw", {.kind = OptimizerKind::kAdamW, .eps = 1e-6, .weight_decay = 0.01}},
    {"radam_of_the_copy_task",
     {.kind = OptimizerKind::kRAdam, .weight_decay = 0.01, .clip_tensor = 1}},
    {"radam_short_memory", {.kind = OptimizerKind::kRAdam, .beta2 = 0.9, .weight_decay = 0.5}},
    {"adamw_large_rate", {.kind = OptimizerKind::kAdamW, .clip_tensor = 0.5}, 0.5}};

class OptimizerCases
    : public testing::TestWithParam<std::tuple<OptimizerCase, at::ScalarType, OptimizerPath>> {};

TEST_P(OptimizerCases, FollowThePlainFormulaStepByStep) {
  const auto& [sample, type, path] = GetParam();
  const NamedTensors parameters = sample_parameters(type);
  std::vector<PlainOptimizer> plain;
  std::vector<double> largest;  // norm so far: a weight that shrinks keeps the roundings it has had
  for (const auto& [name, tensor] : parameters) {
    plain.push_back({.config = sample.config, .weight = doubles(tensor)});
    largest.push_back(norm_of(plain.back().weight));
  }
  Optimizer optimizer(parameters, sample.config, path);
  const double allowed = type == at::kDouble ? 1e-13 : 1e-6;
  for (int64_t step = 1; step <= 50; ++step) {
    const double beta1 = 0.95 - 0.002 * static_cast<double>(step);  // changes every step
    set_gradients(parameters, step);
    optimizer.step(sample.learning_rate, beta1);
    for (size_t i = 0; i < parameters.size(); ++i) {
      plain[i].step(doubles(parameters[i].second.grad()), sample.learning_rate, beta1);
      largest[i] = std::max(largest[i], norm_of(plain[i].weight));
      ASSERT_LE(error_norm(parameters[i].second, plain[i].weight), allowed * largest[i])
          << parameters[i].first << ", step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerCases,
    testing::Combine(testing::ValuesIn(kOptimizerCases), testing::Values(at::kFloat, at::kDouble),
                     testing::Values(OptimizerPath::kFusedCpu, OptimizerPath::kComposed)),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" + toString(std::get<1>(info.param)) +
             (std::get<2>(info.param) == OptimizerPath::kFusedCpu ? "_fused" : "_composed");
    });

class OptimizerPaths : public testing::TestWithParam<OptimizerPath> {};
INSTANTIATE_TEST_SUITE_P(Both, OptimizerPaths,
                         testing::Values(OptimizerPath::kFusedCpu, OptimizerPath::kComposed));

TEST_P(OptimizerPaths, HalfParametersAreRoundedFromAnFp32Master) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const NamedTensors parameters = sample_parameters(type);
    const OptimizerConfig config{.kind = OptimizerKind::kRAdam, .clip_tensor = 1};
    std::vector<PlainOptimizer> plain;
    for (const auto& [name, tensor] : parameters) plain.push_back({config, doubles(tensor)});
    Optimizer optimizer(parameters, config, GetParam());
    for (int64_t step = 1; step <= 50; ++step) {
      set_gradients(parameters, step);
      optimizer.step(1e-5, 0.9);  // most steps are smaller than a bf16 parameter can show
      for (size_t i = 0; i < parameters.size(); ++i) {
        plain[i].step(doubles(parameters[i].second.grad()), 1e-5, 0.9);
      }
    }
    const NamedTensors state = optimizer.save_state();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& [master_name, master] = state[3 * i + 3];
      EXPECT_EQ(master_name, parameters[i].first + ".master");
      EXPECT_EQ(master.scalar_type(), at::kFloat);
      EXPECT_LE(error_norm(master, plain[i].weight), 1e-6 * norm_of(plain[i].weight));
      EXPECT_TRUE(parameters[i].second.detach().equal(master.to(type)));
    }
  }
}

TEST_P(OptimizerPaths, AParameterWithoutAGradientIsLeftAlone) {
  const NamedTensors parameters = sample_parameters(at::kFloat);
  set_gradients(parameters, 1);
  parameters[1].second.mutable_grad().reset();
  const Tensor before = parameters[1].second.detach().clone();
  Optimizer optimizer(parameters, {.weight_decay = 0.1}, GetParam());
  optimizer.step(0.1, 0.9);
  EXPECT_TRUE(parameters[1].second.detach().equal(before));
  EXPECT_FALSE(parameters[0].second.detach().equal(noise({17, 13}, 1, at::kFloat)));
}

TEST_P(OptimizerPaths, GradientsStayAsTheyAre) {
  const NamedTensors parameters = sample_parameters(at::kFloat);
  set_gradients(parameters, 1);
  const Tensor before = parameters[0].second.grad().clone();
  Optimizer(parameters, {.kind = OptimizerKind::kAdam, .weight_decay = 0.1, .clip_tensor = 0.1},
            GetParam())
      .step(0.1, 0.9);
  EXPECT_TRUE(parameters[0].second.grad().equal(before));
}

TEST_P(OptimizerPaths, AGradientMayHaveAnyStrides) {
  const NamedTensors one = {{"weight", noise({6, 4}, 1, at::kFloat).requires_grad_()}};
  const NamedTensors other = {{"weight", noise({6, 4}, 1, at::kFloat).requires_grad_()}};
  one[0].second.mutable_grad() = noise({4, 6}, 5, at::kFloat).t();
  other[0].second.mutable_grad() = one[0].second.grad().contiguous();
  for (const NamedTensors& parameters : {one, other}) {
    Optimizer optimizer(parameters, {}, GetParam());
    optimizer.global_clip(0.1);
    optimizer.step(0.1, 0.9);
  }
  EXPECT_TRUE(one[0].second.detach().equal(other[0].second.detach()));
}

TEST_P(OptimizerPaths, GlobalClipScalesAllGradientsByOneFactor) {
  const NamedTensors parameters = sample_parameters(at::kDouble);
  set_gradients(parameters, 1);
  NamedTensors before;
  double squares = 0;
  for (const auto& [name, tensor] : parameters) {
    before.emplace_back(name, tensor.grad().clone());
    squares += tensor.grad().square().sum().item<double>();
  }
  Optimizer optimizer(parameters, {}, GetParam());
  const double norm = std::sqrt(squares);
  EXPECT_NEAR(optimizer.global_clip(0).item<double>(), norm, 1e-12 * norm);  // only measures
  EXPECT_NEAR(optimizer.global_clip(2 * norm).item<double>(), norm, 1e-12 * norm);
  EXPECT_TRUE(parameters[0].second.grad().equal(before[0].second));
  EXPECT_NEAR(optimizer.global_clip(0.25).item<double>(), norm, 1e-12 * norm);
  const double factor = 0.25 / (norm + 1e-6);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(parameters[i].second.grad(), before[i].second * factor, 1e-12, 0));
  }
}

TEST_P(OptimizerPaths, AResumedRunIsTheSameBits) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const OptimizerConfig config{.kind = OptimizerKind::kRAdam, .clip_tensor = 1};
    const NamedTensors whole = sample_parameters(type);
    const NamedTensors resumed = sample_parameters(type);
    const auto train = [](Optimizer& optimizer, const NamedTensors& parameters, int64_t last) {
      while (optimizer.steps() < last) {
        set_gradients(parameters, optimizer.steps() + 1);
        optimizer.step(1e-2, 0.9);
      }
    };
    Optimizer uninterrupted(whole, config, GetParam());
    train(uninterrupted, whole, 12);
    Optimizer first(resumed, config, GetParam());
    train(first, resumed, 7);
    Optimizer second(resumed, config, GetParam());
    second.load_state(first.save_state());
    EXPECT_EQ(second.steps(), 7);
    train(second, resumed, 12);
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(whole[i].second.detach().equal(resumed[i].second.detach()));
    }
    const NamedTensors states[] = {uninterrupted.save_state(), second.save_state()};
    for (size_t i = 0; i < states[0].size(); ++i) {
      EXPECT_EQ(states[0][i].first, states[1][i].first);
      EXPECT_TRUE(states[0][i].second.equal(states[1][i].second)) << states[0][i].first;
    }
  }
}

TEST(Optimizer, IsTheSameBitsForEveryNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<NamedTensors> results;
  std::vector<double> norms;
  for (const int threads : {1, 2, 3, 7}) {
    at::set_num_threads(threads);
    NamedTensors parameters;
    for (const int64_t size : {1, 1000, 16384, 16385, 200'003}) {
      parameters.emplace_back(std::to_string(size),
                              noise({size}, size, at::kFloat).requires_grad_());
    }
    Optimizer optimizer(parameters, {.kind = OptimizerKind::kRAdam, .clip_tensor = 1});
    for (int64_t step = 1; step <= 8; ++step) {
      set_gradients(parameters, step);
      norms.push_back(optimizer.global_clip(20).item<double>());
      optimizer.step(1e-2, 0.9);
    }
    results.push_back(parameters);
  }
  at::set_num_threads(before);
  for (const NamedTensors& result : results) {
    for (size_t i = 0; i < result.size(); ++i) {
      EXPECT_TRUE(result[i].second.detach().equal(results[0][i].second.detach()));
    }
  }
  for (size_t i = 0; i < norms.size(); ++i) EXPECT_EQ(norms[i], norms[i % 8]);
}

TEST(Optimizer, TakesEmptyTensorsAndNoTensors) {
  for (const OptimizerPath path : {OptimizerPath::kFusedCpu, OptimizerPath::kComposed}) {
    const Tensor empty = at::empty({0, 3}).requires_grad_();
    empty.mutable_grad() = at::empty({0, 3});
    Optimizer optimizer({{"empty", empty}}, {.clip_tensor = 1}, path);
    optimizer.global_clip(1);
    optimizer.step(0.1, 0.9);
    Optimizer none({}, {}, path);
    EXPECT_EQ(none.global_clip(1).item<double>(), 0);
    none.step(0.1, 0.9);
    EXPECT_EQ(none.save_state().size(), 1U);
  }
}

TEST(Optimizer, TellsAutogradThatParametersChanged) {
  const NamedTensors parameters = sample_parameters(at::kFloat);
  set_gradients(parameters, 1);
  const auto before = parameters[0].second._version();
  Optimizer optimizer(parameters, {});
  optimizer.step(0.1, 0.9);
  EXPECT_GT(parameters[0].second._version(), before);
  EXPECT_TRUE(parameters[0].second.requires_grad());
  optimizer.zero_grad();
  EXPECT_FALSE(parameters[0].second.grad().defined());
}

TEST(Optimizer, AGpuAgreesWithTheCpuAndTakesItsState) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const OptimizerConfig config{
        .kind = OptimizerKind::kRAdam, .weight_decay = 0.01, .clip_tensor = 1};
    const NamedTensors here = sample_parameters(type);
    NamedTensors there;
    for (const auto& [name, tensor] : here) {
      there.emplace_back(name, tensor.detach().to(at::kCUDA).requires_grad_());
    }
    Optimizer cpu(here, config);
    Optimizer gpu(there, config);
    for (int64_t step = 1; step <= 20; ++step) {
      if (step == 10) gpu.load_state(cpu.save_state());
      set_gradients(here, step);
      for (size_t i = 0; i < here.size(); ++i) {
        there[i].second.mutable_grad() = here[i].second.grad().to(at::kCUDA);
      }
      const double norm = cpu.global_clip(2).item<double>();
      EXPECT_NEAR(gpu.global_clip(2).item<double>(), norm, 1e-2 * norm);
      cpu.step(1e-2, 0.9);
      gpu.step(1e-2, 0.9);
    }
    const double allowed = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-6 : 1e-2;
    for (size_t i = 0; i < here.size(); ++i) {
      const std::vector<double> wanted = doubles(here[i].second);
      EXPECT_LE(error_norm(there[i].second.cpu(), wanted), allowed * norm_of(wanted));
    }
  }
}

TEST(Optimizer, AStepInTwoHalvesIsAStep) {
  const OptimizerConfig config{.kind = OptimizerKind::kRAdam, .clip_tensor = 1};
  for (const OptimizerPath path : {OptimizerPath::kFusedCpu, OptimizerPath::kComposed}) {
    const NamedTensors whole = sample_parameters(at::kFloat),
                       halves = sample_parameters(at::kFloat);
    Optimizer a(whole, config, path), b(halves, config, path);
    for (int64_t step = 1; step <= 8; ++step) {  // past RAdam's first steps, which do not divide
      set_gradients(whole, step);
      set_gradients(halves, step);
      a.step(1e-2, 0.9);
      PackedFactors factors = b.count_step(1e-2, 0.9);
      b.advance(at::from_blob(factors.value, {kFactorCount}, at::kDouble));
    }
    EXPECT_EQ(a.steps(), b.steps());
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(at::equal(whole[i].second.detach(), halves[i].second.detach()));
    }
  }
}

// More tensors than one launch takes, of sizes around a thread block's share.
NamedTensors many_parameters(at::ScalarType type) {
  NamedTensors parameters;
  for (int64_t i = 0; i < 150; ++i) {
    const int64_t size = i % 3 == 0 ? 4095 + i % 5 : i - 1;  // the second is empty
    parameters.emplace_back(std::to_string(i),
                            noise({size}, i, type).to(at::kCUDA).requires_grad_());
  }
  return parameters;
}

TEST(Optimizer, OnAGpuTheFusedStepAgreesWithTorchsOperatorsAndRepeatsItsBits) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const OptimizerKind kind :
       {OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kRAdam}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const OptimizerConfig config{.kind = kind, .weight_decay = 0.01, .clip_tensor = 0.5};
      const NamedTensors fused = many_parameters(type), again = many_parameters(type),
                         composed = many_parameters(type);
      Optimizer a(fused, config), b(again, config), c(composed, config, OptimizerPath::kComposed);
      for (int64_t step = 1; step <= 8; ++step) {
        for (const NamedTensors* parameters : {&fused, &again, &composed}) {
          for (const auto& [name, tensor] : *parameters) {
            tensor.mutable_grad() =
                noise(tensor.sizes(), step + tensor.numel(), type).to(at::kCUDA);
          }
        }
        a.step(1e-2, 0.9), b.step(1e-2, 0.9), c.step(1e-2, 0.9);
      }
      const NamedTensors fused_state = a.save_state(), composed_state = c.save_state();
      for (size_t i = 0; i < fused.size(); ++i) {
        EXPECT_TRUE(at::equal(fused[i].second.detach(), again[i].second.detach()));
      }
      const double allowed = type == at::kDouble ? 1e-10 : 1e-5;
      for (size_t i = 1; i < fused_state.size(); ++i) {  // moments and masters: fp32 at least
        EXPECT_TRUE(at::allclose(fused_state[i].second, composed_state[i].second, allowed, allowed))
            << fused_state[i].first;
      }
    }
  }
}

TEST(Optimizer, RefusesAStateThatIsNotItsOwn) {
  const NamedTensors parameters = sample_parameters(at::kFloat);
  Optimizer optimizer(parameters, {});
  const NamedTensors state = optimizer.save_state();
  NamedTensors changed = state;
  changed.pop_back();
  EXPECT_THAT(torch_error_of([&] { optimizer.load_state(changed); }),
              AllOf(HasSubstr("lacks"), HasSubstr("scalar.second_moment")));
  changed = state;
  changed[1].second = at::zeros({3});
  EXPECT_THAT(torch_error_of([&] { optimizer.load_state(changed); }),
              AllOf(HasSubstr("large.first_moment"), HasSubstr("[3]"), HasSubstr("[17, 13]")));
  changed = state;
  changed.emplace_back("larger.first_moment", at::zeros({2}));
  EXPECT_THAT(torch_error_of([&] { optimizer.load_state(changed); }),
              AllOf(HasSubstr("larger.first_moment"), HasSubstr("not wanted")));
}

TEST(Optimizer, RefusesParametersItCannotAdvance) {
  const Tensor tensor = at::zeros({4, 3});
  EXPECT_THAT(torch_error_of([&] {
                Optimizer({{"a", tensor.t()}}, {});
              }),
              HasSubstr("not contiguous"));
  EXPECT_THAT(torch_error_of([&] {
                Optimizer({{"a", at::zeros({2}, at::kLong)}}, {});
              }),
              HasSubstr("allowed: float64"));
  EXPECT_THAT(torch_error_of([&] {
                Optimizer({{"a", tensor}, {"a", at::zeros({1})}}, {});
              }),
              HasSubstr("two parameters are called 'a'"));
  EXPECT_THAT(torch_error_of([&] {
                Optimizer({{"a", tensor}, {"b", tensor}}, {});
              }),
              HasSubstr("'b' is given twice"));
}

static_assert(Config<OptimizerConfig>);

}  // namespace
}  // namespace fmmformer::train
