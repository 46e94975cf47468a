// SPDX-License-Identifier: Apache-2.0
#include "cli/run_identity.h"

#include <torch/version.h>

#include <ctime>

#include "bench/machine.h"
#include "cli/version.h"

namespace fmmformer::cli {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

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
