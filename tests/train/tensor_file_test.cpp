// SPDX-License-Identifier: Apache-2.0
#include "train/tensor_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/temporary_folder.h"
#include "train/checkpoint_store.h"
#include "train/optimizer.h"
#include "train/torch_error.h"

namespace fmmformer::train {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

TEST(TensorFile, TensorsOfEveryTypeComeBackAsTheyWere) {
  const TemporaryFolder folder;
  NamedTensors tensors = {{"strided", at::arange(12, at::kFloat).reshape({3, 4}).t()},
                          {"scalar", at::scalar_tensor(3, at::kLong)},
                          {"empty", at::zeros({0, 5})}};
  for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kByte, at::kBool}) {
    tensors.emplace_back(toString(type), at::arange(5).to(type));
  }
  write_safetensors(folder / "file", TensorViews(tensors).views());
  NamedTensors empty;
  for (const auto& [name, tensor] : tensors) empty.emplace_back(name, at::zeros_like(tensor));
  copy_tensors(tensors_of(read_safetensors(folder / "file")), empty, "the file");
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(tensors[i].second.equal(empty[i].second)) << tensors[i].first;
  }
}

TEST(TensorFile, ATypeThatIsNotStoredIsNamed) {
  EXPECT_THAT(torch_error_of([] {
                TensorViews({{"odd", at::zeros({1}, at::kComplexFloat)}});
              }),
              AllOf(HasSubstr("'odd'"), HasSubstr("ComplexFloat")));
}

TEST(TensorFile, ACheckpointOfAnotherModelIsNamedByItsFirstTensor) {
  const NamedTensors model = {{"embed.weight", at::zeros({11, 8})}, {"head.bias", at::zeros({3})}};
  const auto load = [&](const NamedTensors& stored) {
    return torch_error_of([&] { copy_tensors(stored, model, "checkpoint 'x'"); });
  };
  EXPECT_THAT(load({{"embed.weight", at::ones({11, 16})}, {"head.bias", at::ones({3})}}),
              AllOf(HasSubstr("checkpoint 'x'"), HasSubstr("'embed.weight'"), HasSubstr("[11, 16]"),
                    HasSubstr("[11, 8]")));
  EXPECT_THAT(load({{"embed.weight", at::ones({11, 8})}}),
              AllOf(HasSubstr("lacks tensor 'head.bias'"), HasSubstr("[3]")));
  EXPECT_THAT(load({{"embed.weight", at::ones({11, 8})},
                    {"head.bias", at::ones({3})},
                    {"head.weight", at::ones({3, 8})}}),
              AllOf(HasSubstr("'head.weight'"), HasSubstr("[3, 8]"), HasSubstr("not wanted")));
  EXPECT_THAT(load({{"embed.weights", at::ones({11, 8})}, {"head.bias", at::ones({3})}}),
              HasSubstr("nearest name is 'embed.weights'"));
  EXPECT_THAT(load({{"embed.weight", at::ones({11, 8}, at::kHalf)}, {"head.bias", at::ones({3})}}),
              AllOf(HasSubstr("Half"), HasSubstr("Float")));
  EXPECT_TRUE(model[0].second.equal(at::zeros({11, 8}))) << "an error changes nothing";
}

TEST(TensorFile, TrainingGoesOnBitForBitFromACheckpoint) {
  const TemporaryFolder folder;
  const CheckpointStore store(folder / "checkpoints", StoreAccess::kWrite);
  const OptimizerConfig config{.kind = OptimizerKind::kRAdam, .clip_tensor = 1};
  const auto fresh = [] { return at::linspace(-1, 1, 1000).to(at::kBFloat16).requires_grad_(); };
  const auto train = [](Optimizer& optimizer, const Tensor& weight, int64_t last) {
    while (optimizer.steps() < last) {
      weight.mutable_grad() =
          at::sin(weight.detach().to(at::kFloat) * 7 + optimizer.steps()).to(at::kBFloat16);
      optimizer.step(1e-2, 0.9);
    }
  };
  const Tensor whole = fresh();
  Optimizer uninterrupted({{"weight", whole}}, config);
  train(uninterrupted, whole, 20);
  {
    const Tensor weight = fresh();
    Optimizer optimizer({{"weight", weight}}, config);
    train(optimizer, weight, 9);
    const TensorViews model({{"weight", weight}});
    const TensorViews state(optimizer.save_state());
    store.save(9, {.model = model.views(), .optimizer = state.views()});
  }
  const Tensor weight = fresh();
  Optimizer optimizer({{"weight", weight}}, config);
  const LoadedCheckpoint loaded = store.load(store.latest_good().step.value());
  copy_tensors(tensors_of(loaded.model), {{"weight", weight}}, "the checkpoint");
  optimizer.load_state(tensors_of(loaded.optimizer));
  train(optimizer, weight, 20);
  EXPECT_TRUE(weight.detach().equal(whole.detach()));
}

}  // namespace
}  // namespace fmmformer::train
