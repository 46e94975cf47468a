// SPDX-License-Identifier: Apache-2.0
#include "cli/device_options.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/version.h"

namespace fmmformer::cli {

void add_device_options(CLI::App& app, DeviceOptions& options) {
  app.add_option("--device", options.device, "cpu (default), cuda or cuda:N")->type_name("DEVICE");
  app.add_option("--threads", options.threads, "threads to use (default: torch's choice)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
}

c10::Device use_device(const DeviceOptions& options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  if (options.device == "cpu") return c10::Device(c10::kCPU);
  if (options.device != "cuda" && !options.device.starts_with("cuda:")) {
    throw UsageError("--device is '" + options.device + "'; allowed: cpu, cuda, cuda:N");
  }
  const auto refuse = [&](const std::string& why) {
    throw UsageError("--device " + options.device + ": " + why +
                     "; leave --device out to use the CPU");
  };
  if (!has_cuda_kernels()) {
    refuse("this program was built without CUDA kernels (they need nvcc and a torch with CUDA)");
  }
  if (!at::hasCUDA()) refuse("this machine has no usable GPU");
  const c10::Device device(options.device);
  const int count = static_cast<int>(at::getNumGPUs());
  if (device.index() >= count) {
    refuse("this machine has " + std::to_string(count) + " GPU" + (count == 1 ? "" : "s") +
           ", counted from 0");
  }
  return {device.type(), device.has_index() ? device.index() : c10::DeviceIndex{0}};
}

}  // namespace fmmformer::cli
