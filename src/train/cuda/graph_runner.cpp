// SPDX-License-Identifier: Apache-2.0
// Training steps on a GPU, held in a CUDA graph once they have run a few times.
//
// The first steps run one launch at a time, which also brings torch's libraries to life; the graph
// then repeats the very same launches. Both read everything that changes from the same places, so
// that a run's bits do not depend on where the graph took over, on resuming above all.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <optional>

#include "train/cuda/pinned_feed.h"
#include "train/training_step.h"

namespace fmmformer::train {
namespace {

using at::Tensor;
using c10::cuda::CUDAStream;

// Libraries choose their algorithms and allocate workspace in the first; the second has gradients
// and moments as all others do.
constexpr int kStepsBeforeCapture = 3;

/// Makes a stream the current one of this thread. The default stream cannot be captured, and
/// torch's backward must run where its forward did, so everything runs here.
class OwnStream {
 public:
  explicit OwnStream(const at::Device& device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {
    c10::cuda::getCurrentCUDAStream(device.index()).synchronize();  // the weights are there
    guard_.emplace(stream_);
  }
  /// What was allocated before may be freed after: nothing may still use it.
  ~OwnStream() { wait(); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  void wait() const noexcept {
    try {
      stream_.synchronize();
    } catch (const c10::Error&) {  // reported where it was first met
    }
  }

 private:
  CUDAStream stream_;
  std::optional<c10::cuda::CUDAStreamGuard> guard_;
};

/// A captured step, and where it leaves its result.
struct CapturedStep {
  at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  at::cuda::CUDAGraph graph;
  Tensor score;
};

class GraphRunner : public StepRunner {
 public:
  GraphRunner(const StepTarget& target, const RunnerOptions& options)
      : target_(target),
        options_(options),
        device_(options.device.has_index() ? options.device
                                           : at::Device(at::kCUDA, c10::cuda::current_device())),
        stream_(device_),
        others_(make_eager_runner(target, device_)),
        wants_graph_(options.cuda_graph && options.no_graph_because.empty()) {
    if (options.cuda_graph && !wants_graph_) fall_back(options.no_graph_because);
  }

  ~GraphRunner() override { stream_.wait(); }

  Tensor run(const StepBatches& batches, const StepNumbers& numbers) override {
    target_.clock.begin(StepPart::kData);
    StepLayout layout(batches);
    if (!feed_) feed_.emplace(layout, device_);
    if (layout != feed_->layout()) return run_other(layout, batches, numbers);
    feed_->send(batches, numbers);
    if (wants_graph_ && !captured_ && steps_ >= kStepsBeforeCapture) capture();
    ++steps_;
    if (!captured_) return training_step(target_, feed_->inputs());
    target_.clock.begin(StepPart::kReplay);
    captured_->graph.replay();
    return captured_->score.clone();  // the next replay writes there again
  }

  std::string how() const override { return captured_ ? "cuda graph" : "eager"; }

 private:
  void fall_back(const std::string& reason) {
    wants_graph_ = false;
    options_.noticed("training runs without a CUDA graph: " + reason);
  }

  /// A step of another shape than the first had.
  Tensor run_other(const StepLayout& layout, const StepBatches& batches,
                   const StepNumbers& numbers) {
    if (wants_graph_ && !told_of_shapes_) {
      options_.noticed("a batch is " + layout.text() + ", the first was " + feed_->layout().text() +
                       ": steps of other shapes than the first run without the CUDA graph");
      told_of_shapes_ = true;
    }
    return others_->run(batches, numbers);
  }

  /// Records a step; nothing runs. On failure the reason is told and the graph forgotten.
  void capture() {
    target_.optimizer.zero_grad();
    c10::cuda::CUDACachingAllocator::emptyCache();  // the graph gets memory of its own
    auto captured = std::make_unique<CapturedStep>();
    try {
      // Thread-local: other threads may go on allocating pinned memory and the like.
      captured->graph.capture_begin(captured->pool, cudaStreamCaptureModeThreadLocal);
      captured->score = training_step(target_, feed_->inputs());
      captured->graph.capture_end();
      captured_ = std::move(captured);
    } catch (const std::exception& error) {
      abandon(std::move(captured));
      const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
      fall_back(of_torch ? of_torch->what_without_backtrace() : error.what());
    }
  }

  /// Ends a capture that failed, so that stream and allocator take work again.
  void abandon(std::unique_ptr<CapturedStep> captured) const {
    captured->score.reset();
    target_.optimizer.zero_grad();
    try {
      captured->graph.capture_end();
    } catch (const c10::Error&) {  // says that it failed, which is known
    }
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), captured->pool);
    } catch (const c10::Error&) {  // capture_end() got that far
    }
    cudaGetLastError();
    // Torch's allocators may still ask this graph whether a stream belongs to it: it stays.
    captured.release();
  }

  StepTarget target_;
  RunnerOptions options_;
  at::Device device_;
  OwnStream stream_;
  std::unique_ptr<StepRunner> others_;
  std::optional<cuda::PinnedFeed> feed_;
  std::unique_ptr<CapturedStep> captured_;
  bool wants_graph_;
  bool told_of_shapes_ = false;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<StepRunner> make_cuda_runner(const StepTarget& target,
                                             const RunnerOptions& options) {
  return std::make_unique<GraphRunner>(target, options);
}

}  // namespace fmmformer::train
