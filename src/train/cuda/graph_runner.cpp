// SPDX-License-Identifier: Apache-2.0
// Work on a GPU, held in a CUDA graph once it has run a few times.
//
// The first runs launch one kernel at a time, which also brings torch's libraries to life; the
// graph then repeats the very same launches. Both read everything that changes from the same
// places, so that a run's bits do not depend on where the graph took over, on resuming above all.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <optional>

#include "train/batch_runner.h"
#include "train/cuda/pinned_feed.h"

namespace fmmformer::train {
namespace {

using at::Tensor;
using c10::cuda::CUDAStream;

// Libraries choose their algorithms and allocate workspace in the first; from the second on there
// are gradients and moments as in all others, and the third has the allocator's memory in place.
constexpr int kRunsBeforeCapture = 3;
// Of those with the same capacities: loads what products of these sizes need.
constexpr int kRunsOfCapacities = 1;
// A graph of a thousand launches takes megabytes. The capacities of a text that is the same sort of
// text throughout make a handful.
constexpr size_t kMostGraphs = 32;

at::Device with_index(const at::Device& device) {
  return device.has_index() ? device : at::Device(at::kCUDA, c10::cuda::current_device());
}

/// Torch's backward must run where its forward did, so everything runs here.
class OwnStream : public WorkStream {
 public:
  explicit OwnStream(const at::Device& device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {
    c10::cuda::getCurrentCUDAStream(device.index()).synchronize();  // the weights are there
    guard_.emplace(stream_);
  }
  /// What was allocated before may be freed after: nothing may still use it.
  ~OwnStream() override {
    try {
      stream_.synchronize();
    } catch (const c10::Error&) {  // reported where it was first met
    }
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  CUDAStream stream_;
  std::optional<c10::cuda::CUDAStreamGuard> guard_;
};

/// Captured work, and where it leaves its result.
struct CapturedWork {
  at::cuda::CUDAGraph graph;
  Tensor result;
};

/// The work on batches whose clusters have these capacities.
struct Variant {
  int64_t runs = 0;
  std::unique_ptr<CapturedWork> captured;
};

class GraphRunner : public BatchRunner {
 public:
  GraphRunner(BatchWork work, const RunnerOptions& options)
      : work_(std::move(work)),
        options_(options),
        device_(with_index(options.device)),
        others_(make_eager_runner(work_, options)),
        wants_graph_(options.cuda_graph) {}

  /// What is still under way reads the feed and the graph's memory.
  ~GraphRunner() override {
    try {
      c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
    } catch (const c10::Error&) {  // reported where it was first met
    }
  }

  Tensor run(const StepBatches& batches, const StepNumbers& numbers) override {
    begin(StepPart::kData);
    StepLayout layout(batches);
    if (!feed_) feed_.emplace(layout, device_);
    if (layout != feed_->layout()) return run_other(layout, batches, numbers);
    feed_->send(batches, numbers);
    seed_torch_dropout(device_, numbers);
    const StepCapacities capacities = step_capacities(batches, options_);
    Variant& variant = variants_[capacities];
    const StepInputs inputs = with_capacities(feed_->inputs(), capacities);
    if (is_due(variant) && has_room()) capture(inputs, variant);
    ++runs_, ++variant.runs;
    if (!variant.captured) return work_.run(inputs);
    begin(StepPart::kReplay);
    variant.captured->graph.replay();
    return variant.captured->result.clone();  // the next replay writes there again
  }

  std::string how() const override { return graphs_ > 0 ? "cuda graph" : "eager"; }

 private:
  void begin(StepPart part) const {
    if (options_.clock) options_.clock->begin(part);
  }

  void notice(const std::string& what) const {
    if (options_.noticed) options_.noticed(what);
  }

  void fall_back(const std::string& reason) {
    wants_graph_ = false;
    notice((graphs_ == 0 ? "training runs without a CUDA graph: "
                         : "training goes on without further CUDA graphs: ") +
           reason);
  }

  /// A batch of another shape than the first had.
  Tensor run_other(const StepLayout& layout, const StepBatches& batches,
                   const StepNumbers& numbers) {
    if (wants_graph_ && !told_of_shapes_) {
      notice("a batch is " + layout.text() + ", the first was " + feed_->layout().text() +
             ": batches of other shapes than the first run without the CUDA graph");
      told_of_shapes_ = true;
    }
    return others_->run(batches, numbers);
  }

  bool is_due(const Variant& variant) const {
    return wants_graph_ && !variant.captured && runs_ >= kRunsBeforeCapture &&
           variant.runs >= kRunsOfCapacities;
  }
  /// For one graph more; else says, once, that there will be no others.
  bool has_room() {
    if (graphs_ < kMostGraphs) return true;
    fall_back("batches whose clusters of words have other sizes than in the first " +
              std::to_string(kMostGraphs) + " graphs run without one");
    return false;
  }

  void release() const {
    if (work_.release) work_.release();
  }

  /// Records the work; nothing runs. On failure the reason is told and the graph forgotten.
  /// Graphs share their memory: one of them runs at a time, and what it leaves but for its result
  /// nobody reads after it.
  void capture(const StepInputs& inputs, Variant& variant) {
    release();
    c10::cuda::CUDACachingAllocator::emptyCache();  // the graph gets memory of its own
    auto captured = std::make_unique<CapturedWork>();
    try {
      // Thread-local: other threads may go on allocating pinned memory and the like.
      captured->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      captured->result = work_.run(inputs);
      captured->graph.capture_end();
      variant.captured = std::move(captured);
      ++graphs_;
    } catch (const std::exception& error) {
      abandon(std::move(captured));
      const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
      fall_back(of_torch ? of_torch->what_without_backtrace() : error.what());
    }
  }

  /// Ends a capture that failed, so that stream and allocator take work again.
  void abandon(std::unique_ptr<CapturedWork> captured) const {
    captured->result.reset();
    release();
    try {
      captured->graph.capture_end();
    } catch (const c10::Error&) {  // says that it failed, which is known
    }
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), pool_);
    } catch (const c10::Error&) {  // capture_end() got that far
    }
    cudaGetLastError();
    // Torch's allocators may still ask this graph whether a stream belongs to it: it stays.
    captured.release();
  }

  BatchWork work_;
  RunnerOptions options_;
  at::Device device_;
  std::unique_ptr<BatchRunner> others_;
  std::optional<cuda::PinnedFeed> feed_;
  at::cuda::MempoolId_t pool_ = at::cuda::graph_pool_handle();
  std::map<StepCapacities, Variant> variants_;
  size_t graphs_ = 0;
  bool wants_graph_;
  bool told_of_shapes_ = false;
  int64_t runs_ = 0;
};

}  // namespace

std::unique_ptr<WorkStream> make_work_stream(const at::Device& device) {
  if (!device.is_cuda()) return std::make_unique<WorkStream>();
  return std::make_unique<OwnStream>(with_index(device));
}

std::unique_ptr<BatchRunner> make_cuda_runner(BatchWork work, const RunnerOptions& options) {
  return std::make_unique<GraphRunner>(std::move(work), options);
}

}  // namespace fmmformer::train
