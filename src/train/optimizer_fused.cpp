// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "train/optimizer_loop.h"
#include "train/optimizer_work.h"

namespace fmmformer::train {
namespace {

using at::Tensor;

ElementType element_type(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return ElementType::kFloat;
    case at::kDouble:
      return ElementType::kDouble;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kHalf:
      return ElementType::kHalf;
    default:
      TORCH_INTERNAL_ASSERT(false, "parameters are of floating point types");
  }
}

struct Block {
  size_t tensor;
  int64_t begin;
  int64_t end;
};

/// All tensors cut into blocks, tensor by tensor.
template <typename Items, typename TensorOf>
std::vector<Block> blocks_of(const Items& items, const TensorOf& tensor_of) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < items.size(); ++i) {
    const int64_t count = tensor_of(items[i]).numel();
    for (int64_t begin = 0; begin < count; begin += kBlockElements) {
      blocks.push_back({i, begin, std::min(begin + kBlockElements, count)});
    }
  }
  return blocks;
}

template <typename Work>
void for_each_block(const std::vector<Block>& blocks, const Work& work) {
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(blocks[i], i);
  };
  const int64_t count = static_cast<int64_t>(blocks.size());
#ifdef FMMFORMER_STD_THREADS  // thread sanitizer builds: it does not understand OpenMP's barriers
  const int64_t threads =
      std::clamp<int64_t>(at::get_num_threads(), 1, std::max<int64_t>(count, 1));
  std::vector<std::thread> running;
  for (int64_t t = 0; t < threads; ++t) {
    running.emplace_back(run, count * t / threads, count * (t + 1) / threads);
  }
  for (std::thread& thread : running) thread.join();
#else
  at::parallel_for(0, count, 2, run);
#endif
}

/// The sum of squares of each tensor, its blocks added in their order.
std::vector<double> sums_of_squares(const std::vector<Tensor>& tensors,
                                    const std::vector<Block>& blocks) {
  std::vector<double> of_block(blocks.size());
  for_each_block(blocks, [&](const Block& block, int64_t index) {
    const Tensor& tensor = tensors[block.tensor];
    of_block[index] =
        sum_of_squares(element_type(tensor), tensor.const_data_ptr(), block.begin, block.end);
  });
  std::vector<double> sums(tensors.size(), 0.0);
  for (size_t i = 0; i < blocks.size(); ++i) sums[blocks[i].tensor] += of_block[i];
  return sums;
}

// Writing through pointers goes past autograd, which must learn that the values changed.
void note_change(const Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

}  // namespace

void step_fused(const std::vector<OptimizerWork>& work, const UpdateFactors<double>& factors,
                double clip_tensor) {
  const std::vector<Block> blocks =
      blocks_of(work, [](const OptimizerWork& item) { return item.gradient; });
  std::vector<double> scales(work.size(), 1.0);
  if (clip_tensor > 0) {
    std::vector<Tensor> gradients;
    for (const OptimizerWork& item : work) gradients.push_back(item.gradient);
    const std::vector<double> sums = sums_of_squares(gradients, blocks);
    for (size_t i = 0; i < sums.size(); ++i)
      scales[i] = clip_factor(std::sqrt(sums[i]), clip_tensor);
  }
  std::vector<UpdateBlock> tensors;
  for (const OptimizerWork& item : work) {
    tensors.push_back({.type = element_type(item.parameter),
                       .parameter = item.parameter.mutable_data_ptr(),
                       .gradient = item.gradient.const_data_ptr(),
                       .weight = item.weight.mutable_data_ptr(),
                       .first_moment = item.first_moment.mutable_data_ptr(),
                       .second_moment = item.second_moment.mutable_data_ptr()});
  }
  for_each_block(blocks, [&](const Block& block, int64_t) {
    UpdateBlock part = tensors[block.tensor];
    part.begin = block.begin;
    part.end = block.end;
    update_block(part, factors, scales[block.tensor]);
  });
  for (const OptimizerWork& item : work) note_change(item.parameter);
}

Tensor global_clip_fused(const std::vector<Tensor>& gradients, double max_norm) {
  std::vector<Tensor> contiguous;
  for (const Tensor& gradient : gradients) contiguous.push_back(gradient.contiguous());
  const std::vector<Block> blocks =
      blocks_of(contiguous, [](const Tensor& tensor) { return tensor; });
  double sum = 0;
  for (const double part : sums_of_squares(contiguous, blocks)) sum += part;
  const double norm = std::sqrt(sum);
  const double factor = max_norm > 0 ? clip_factor(norm, max_norm) : 1.0;
  if (factor != 1.0) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].is_contiguous()) gradients[i].mul_(factor);
    }
    for_each_block(blocks, [&](const Block& block, int64_t) {
      const Tensor& tensor = gradients[block.tensor];
      if (!tensor.is_contiguous()) return;
      scale_block(element_type(tensor), tensor.mutable_data_ptr(), block.begin, block.end, factor);
    });
  }
  return at::scalar_tensor(norm, at::kDouble);
}

}  // namespace fmmformer::train
