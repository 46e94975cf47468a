// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "report/gpu_record.h"

namespace fmmformer::report {

/// What the page's section on GPUs draws from.
nlohmann::json gpu_json(const GpuRecord& record);

}  // namespace fmmformer::report
