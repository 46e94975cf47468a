// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "tasks/pathfinder/scene.h"

namespace fmmformer::tasks::pathfinder {

using Pixels = std::array<uint8_t, kPixels>;  // by row, 0 = background

/// The picture of a scene. Where things meet the brighter one shows: targets have brightness 1.5,
/// distractors 2, markers 1; then all is scaled so that the brightest pixel is 255.
Pixels paint(const Scene& scene);

}  // namespace fmmformer::tasks::pathfinder
