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

  bool asks_for_gpu() const { return device.starts_with("cuda"); }
};
void add_device_options(CLI::App& app, DeviceOptions& options);

/// Sets the number of threads and returns the device: cuda is cuda:0. Throws UsageError for a
/// device that is not there.
c10::Device use_device(const DeviceOptions& options);

}  // namespace fmmformer::cli
