// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tasks/data/data_task.h"

namespace fmmformer::tasks {

extern const DataSet kImageData;

/// CIFAR-10 in grey, pixel by pixel: token = grey value, or + 1 (PixelsConfig).
///
/// Sources: CIFAR-10's binary batches, records of a label and 32 x 32 bytes of red, of green and of
/// blue; or the same in grey, records of a label and 32 x 32 bytes. Where no source for the valid
/// split is given, the last tenth of train is it: 45,000 and 5,000, in the official order. (LRA
/// cuts an order of its own, which the official files do not give away.)
class ImageTask : public DataTask {
 public:
  ImageTask(const PixelsConfig& config, uint64_t seed);
};

/// What LRA's pipeline makes of a colour: all in fp32, the result cut off rather than rounded.
uint8_t grey_of(uint8_t red, uint8_t green, uint8_t blue);

}  // namespace fmmformer::tasks
