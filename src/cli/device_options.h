// SPDX-License-Identifier: Apache-2.0
// --device and --threads, as every command that computes has them.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace CLI {
class App;
}

namespace fmmformer::cli {

struct DeviceOptions {
  std::string device = "cpu";
  int threads = 0;
};
void add_device_options(CLI::App& app, DeviceOptions& options);

/// Sets the number of threads and returns the device. Throws UsageError for a device that is not
/// there.
c10::Device use_device(const DeviceOptions& options);

/// The same for a command that has nothing to run on a GPU: another device than the CPU is an
/// error.
void use_cpu(const DeviceOptions& options);

}  // namespace fmmformer::cli
