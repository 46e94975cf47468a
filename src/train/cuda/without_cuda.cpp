// SPDX-License-Identifier: Apache-2.0
// What a build without CUDA links in place of the other files of this folder. A torch with CUDA may
// still be there: training on its GPU then works, one launch at a time.
#include <ATen/ATen.h>

#include "train/batch_runner.h"
#include "train/optimizer_work.h"

namespace fmmformer::train {

bool has_step_cuda() { return false; }

void step_cuda(const std::vector<OptimizerWork>&, const at::Tensor&, double) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}

std::unique_ptr<WorkStream> make_work_stream(const at::Device&) {
  return std::make_unique<WorkStream>();
}

std::unique_ptr<BatchRunner> make_cuda_runner(BatchWork work, const RunnerOptions& options) {
  if (options.cuda_graph && options.noticed) {
    options.noticed("training runs without a CUDA graph: this build has no CUDA part");
  }
  return make_eager_runner(std::move(work), options);
}

}  // namespace fmmformer::train
