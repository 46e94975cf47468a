// SPDX-License-Identifier: Apache-2.0
#include "cli/run_identity.h"

#include <torch/version.h>

#include "bench/gpu.h"
#include "bench/machine.h"
#include "cli/version.h"
#include "fmmformer/core/utc_time.h"

namespace fmmformer::cli {

train::RunIdentity run_identity(const c10::Device& device, const std::string& command) {
  const bench::Machine machine = bench::look_at_machine();
  nlohmann::ordered_json described = {{"cpu", machine.cpu},
                                      {"cores", machine.cores},
                                      {"threads", machine.threads},
                                      {"isa", machine.instruction_set},
                                      {"device", device.str()}};
  if (!device.is_cpu()) described["gpu"] = bench::gpu_name(device);
  return {.machine = std::move(described),
          .versions = {{"fmmformer", project_version()}, {"torch", TORCH_VERSION}},
          .commit = std::string(git_commit()),
          .command = command,
          .created = utc_now()};
}

}  // namespace fmmformer::cli
