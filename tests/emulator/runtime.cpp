// SPDX-License-Identifier: Apache-2.0
#include "emulator/runtime.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "emulator/block.h"
#include "emulator/tensor_map.h"

namespace fmmformer::emulator {
namespace {

/// What nvcc puts into a program for every source file: see fatbinary_section.h of the toolkit.
struct FatWrapper {
  int magic, version;
  const unsigned long long* data;
  void* others;
};
struct FatHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // of the entries that follow
};
struct FatEntry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
};
constexpr uint32_t kFatMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;

/// The text of the first PTX in it.
std::string ptx_of(const FatWrapper& wrapper) {
  const auto* at = reinterpret_cast<const unsigned char*>(wrapper.data);
  FatHeader header;
  std::memcpy(&header, at, sizeof(header));
  if (header.magic != kFatMagic) throw std::runtime_error("not what nvcc puts into programs");
  at += header.header_bytes;
  for (const unsigned char* end = at + header.bytes; at < end;) {
    FatEntry entry;
    std::memcpy(&entry, at, sizeof(entry));
    const char* text = reinterpret_cast<const char*>(at + entry.header_bytes);
    if (entry.kind == kPtx) {
      std::string ptx(text, strnlen(text, entry.bytes));
      if (ptx.find(".version") == std::string::npos)
        throw std::runtime_error("this program's PTX is compressed: compile with --no-compress");
      return ptx;
    }
    at += entry.header_bytes + entry.bytes;
  }
  throw std::runtime_error("this program has no PTX");
}

struct Source {
  const FatWrapper* wrapper;
  std::unique_ptr<Module> module = nullptr;  // when the first of its kernels is launched
};
struct Entry {
  Source* source;
  std::string name;
};
struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
struct State {
  std::vector<std::unique_ptr<Source>> sources;
  std::unordered_map<const void*, Entry> kernels;  // by the address of their host functions
  std::vector<Configuration> configurations;
  cudaError_t last_error = cudaSuccess;
  unsigned watched_blocks = 0;
  std::vector<std::string> races, launches;
};
State& state() {
  static State the;
  return the;
}

Dim3 dim_of(const dim3& dim) { return {dim.x, dim.y, dim.z}; }

void run(const void* function, dim3 grid, dim3 block, unsigned cluster, size_t shared_bytes,
         void** arguments) {
  Entry& entry = state().kernels.at(function);
  if (!entry.source->module)
    entry.source->module = std::make_unique<Module>(ptx_of(*entry.source->wrapper));
  const Kernel& kernel = entry.source->module->kernel(entry.name);
  std::vector<uint64_t> memory(static_cast<size_t>(kernel.parameter_bytes) / 8 + 64);
  // As a launch has them: at an address that is a multiple of 128.
  auto* parameters = reinterpret_cast<unsigned char*>(memory.data());
  parameters += (128 - std::bit_cast<uintptr_t>(parameters) % 128) % 128;
  for (size_t i = 0; i < kernel.parameter_offsets.size(); ++i)
    std::memcpy(parameters + kernel.parameter_offsets[i], arguments[i],
                static_cast<size_t>(kernel.parameter_sizes[i]));
  const Launch launch{.kernel = &kernel,
                      .grid = dim_of(grid),
                      .block = dim_of(block),
                      .cluster = cluster,
                      .dynamic_shared_bytes = static_cast<uint32_t>(shared_bytes),
                      .parameters = parameters};
  if (grid.x % cluster != 0) throw std::runtime_error("clusters that are not whole");
  if (static_cast<size_t>(kernel.shared_bytes) + shared_bytes >
      emulated_gpu().sharedMemPerBlockOptin)
    throw std::runtime_error("more shared memory than this GPU has for a block");
  state().launches.push_back(kernel.name);
  Races races;
  unsigned done = 0;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; x += cluster)
        Cluster(launch, {x, y, z}, done++ < state().watched_blocks ? &races : nullptr);
  for (const std::string& found : races.found())
    state().races.push_back(kernel.name + ": " + found);
}
cudaError_t try_run(const void* function, dim3 grid, dim3 block, unsigned cluster,
                    size_t shared_bytes, void** arguments) {
  try {
    run(function, grid, block, cluster, shared_bytes, arguments);
    return cudaSuccess;
  } catch (const std::exception& error) {
    const auto entry = state().kernels.find(function);
    std::fprintf(stderr, "%s: %s\n",
                 entry == state().kernels.end() ? "a kernel" : entry->second.name.c_str(),
                 error.what());
    return state().last_error = cudaErrorLaunchFailure;
  }
}

CUresult encode_tensor_map(CUtensorMap* made, CUtensorMapDataType type, cuuint32_t dims, void* data,
                           const cuuint64_t* sizes, const cuuint64_t* strides,
                           const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
                           CUtensorMapSwizzle permuted, CUtensorMapL2promotion,
                           CUtensorMapFloatOOBfill) {
  const bool known = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && dims == TensorMap::kDims &&
                     std::all_of(steps, steps + dims, [](cuuint32_t step) { return step == 1; });
  if (!known || std::bit_cast<uintptr_t>(data) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  TensorMap map;
  map.data = static_cast<unsigned char*>(data);
  if (permuted != CU_TENSOR_MAP_SWIZZLE_128B && permuted != CU_TENSOR_MAP_SWIZZLE_64B)
    return CUDA_ERROR_INVALID_VALUE;
  map.row_bytes = permuted == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : 64;
  for (cuuint32_t d = 0; d < dims; ++d) {
    map.sizes[d] = sizes[d], map.box[d] = box[d];
    map.strides[d] = d == 0 ? TensorMap::kElementBytes : strides[d - 1];
    if (d > 0 && map.strides[d] % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(static_cast<void*>(made), &map, sizeof(map));
  return CUDA_SUCCESS;
}

}  // namespace

cudaDeviceProp& emulated_gpu() {
  static cudaDeviceProp gpu = [] {
    cudaDeviceProp made{};
    made.major = 9, made.minor = 0;
    made.sharedMemPerBlockOptin = 227 * 1024, made.reservedSharedMemPerBlock = kSharedBegin;
    return made;
  }();
  return gpu;
}

void watch_races(unsigned blocks) { state().watched_blocks = blocks; }
std::vector<std::string> take_races() { return std::exchange(state().races, {}); }
std::vector<std::string> take_launches() { return std::exchange(state().launches, {}); }

}  // namespace fmmformer::emulator

// CUDA's own names. Hidden, so that torch keeps the real ones.
#define FMMFORMER_IN_ITS_PLACE extern "C" __attribute__((visibility("hidden")))

using namespace fmmformer::emulator;  // NOLINT: what follows has C's names

FMMFORMER_IN_ITS_PLACE void** __cudaRegisterFatBinary(void* wrapper) {
  auto source = std::make_unique<Source>(Source{static_cast<const FatWrapper*>(wrapper)});
  state().sources.push_back(std::move(source));
  return reinterpret_cast<void**>(state().sources.back().get());
}
FMMFORMER_IN_ITS_PLACE void __cudaRegisterFatBinaryEnd(void**) {}
FMMFORMER_IN_ITS_PLACE void __cudaUnregisterFatBinary(void**) {}
FMMFORMER_IN_ITS_PLACE void __cudaRegisterFunction(void** source, const char* host_function, char*,
                                                   const char* name, int, uint3*, uint3*, dim3*,
                                                   dim3*, int*) {
  state().kernels[host_function] = {reinterpret_cast<Source*>(source), name};
}
FMMFORMER_IN_ITS_PLACE unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block,
                                                            size_t shared_bytes,
                                                            struct CUstream_st* stream) {
  state().configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
FMMFORMER_IN_ITS_PLACE cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                              size_t* shared_bytes, void* stream) {
  const Configuration& last = state().configurations.back();
  *grid = last.grid, *block = last.block, *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  state().configurations.pop_back();
  return cudaSuccess;
}
FMMFORMER_IN_ITS_PLACE cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
FMMFORMER_IN_ITS_PLACE cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                      void** arguments, size_t shared_bytes,
                                                      cudaStream_t) {
  return try_run(kernel, grid, block, 1, shared_bytes, arguments);
}
FMMFORMER_IN_ITS_PLACE cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block,
                                                    void** arguments, size_t shared_bytes,
                                                    cudaStream_t) {
  return try_run(function, grid, block, 1, shared_bytes, arguments);
}
FMMFORMER_IN_ITS_PLACE cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                                       const void* function, void** arguments) {
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      cluster = config->attrs[i].val.clusterDim.x;
  }
  return try_run(function, config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes,
                 arguments);
}
FMMFORMER_IN_ITS_PLACE cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
FMMFORMER_IN_ITS_PLACE cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                                         const void*) {
  *attributes = {};
  attributes->numRegs = 255;  // there are as many as anybody wants
  return cudaSuccess;
}
FMMFORMER_IN_ITS_PLACE cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
FMMFORMER_IN_ITS_PLACE cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                                          int) {
  if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) return cudaErrorNotSupported;
  *value = static_cast<int>(fmmformer::emulator::emulated_gpu().sharedMemPerBlockOptin);
  return cudaSuccess;
}
FMMFORMER_IN_ITS_PLACE cudaError_t cudaMemsetAsync(void* to, int byte, size_t count, cudaStream_t) {
  std::memset(to, byte, count);
  return cudaSuccess;
}
FMMFORMER_IN_ITS_PLACE cudaError_t cudaGetLastError() {
  return std::exchange(state().last_error, cudaSuccess);
}
FMMFORMER_IN_ITS_PLACE cudaError_t
cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                 cudaDriverEntryPointQueryResult* found) {
  const bool known = std::string_view(name) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&encode_tensor_map) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
