// SPDX-License-Identifier: Apache-2.0
#include "cli/run_identity.h"

#include <torch/version.h>

#include "bench/machine.h"
#include "cli/version.h"
#include "fmmformer/core/utc_time.h"

namespace fmmformer::cli {

train::RunIdentity run_identity(const c10::Device& device, const std::string& command) {
  const bench::Machine machine = bench::look_at_machine();
  return {.machine = {{"cpu", machine.cpu},
                      {"cores", machine.cores},
                      {"threads", machine.threads},
                      {"isa", machine.instruction_set},
                      {"device", device.str()}},
          .versions = {{"fmmformer", project_version()}, {"torch", TORCH_VERSION}},
          .commit = std::string(git_commit()),
          .command = command,
          .created = utc_now()};
}

}  // namespace fmmformer::cli
