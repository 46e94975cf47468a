// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tasks/data/data_task.h"

namespace fmmformer::tasks {

extern const DataSet kPathfinderData;

/// Pathfinder32: dashed paths and two dots on a black ground, pixel by pixel (token = grey value,
/// or + 1, PixelsConfig). Does a path join the dots?
///
/// Sources: a folder of LRA's release, such as curv_contour_length_14, whose metadata/*.npy (text,
/// whatever its name says) has a line `FOLDER FILE NUMBER LABEL ...` for each picture FOLDER/FILE,
/// a PNG; or packed records of a label and 32 x 32 bytes of grey. Empty pictures are left out, as
/// LRA does: the release has some.
///
/// A folder holds all splits: its examples are shuffled by a fixed seed and cut 80 / 10 / 10.
/// Packed files are one split each.
class PathfinderTask : public DataTask {
 public:
  PathfinderTask(const PixelsConfig& config, uint64_t seed);
};

}  // namespace fmmformer::tasks
