// SPDX-License-Identifier: Apache-2.0
// A build without CUDA.
#include <stdexcept>

#include "bench/gpu.h"

namespace fmmformer::bench {
namespace {

[[noreturn]] void refuse() {
  throw std::invalid_argument(
      "this program was built without CUDA; build it where nvcc is found to time a GPU");
}

}  // namespace

std::string gpu_name(const c10::Device&) { refuse(); }
int64_t peak_gpu_bytes(const c10::Device&, const Work&) { refuse(); }
void free_cached_gpu_memory() { refuse(); }

struct OwnStream::Guard {};
OwnStream::OwnStream(const c10::Device&) { refuse(); }
OwnStream::~OwnStream() = default;

struct ReplayedGraph::Recording {};
ReplayedGraph::ReplayedGraph(const Work&) { refuse(); }
ReplayedGraph::~ReplayedGraph() = default;
void ReplayedGraph::replay() { refuse(); }

}  // namespace fmmformer::bench
