// SPDX-License-Identifier: Apache-2.0
#include "cli/device_options.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>

#include "cli/command.h"

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
  if (!at::hasCUDA()) {
    throw UsageError("--device " + options.device +
                     ": this machine has no usable GPU; leave --device out to use the CPU");
  }
  return c10::Device(options.device);
}

void use_cpu(const DeviceOptions& options) {
  if (use_device(options).is_cpu()) return;
  throw UsageError("--device " + options.device +
                   ": this benchmark runs on the CPU; leave --device out, or time a GPU with "
                   "bench/attention_cuda.py");
}

}  // namespace fmmformer::cli
