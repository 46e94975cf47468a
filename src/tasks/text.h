// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tasks/data/data_task.h"

namespace fmmformer::tasks {

extern const DataSet kTextData;

/// Film reviews of IMDb, read byte by byte: token = byte + 1, white space around the text left out.
///
/// Sources: a folder with neg/*.txt and pos/*.txt, or a table `label TAB id TAB text`. Both must be
/// UTF-8: the model would take any byte, but a file in another encoding gives other tokens than
/// everybody has, and nobody would notice.
///
/// Reviews lie in a file in a fixed shuffled order, since the sources have one class after the
/// other: the first batches of a split are a fair sample of it. Where no source for the valid split
/// is given, the last tenth of train in that order (2,500 of 25,000) is it.
class TextTask : public DataTask {
 public:
  TextTask(const BytesConfig& config, uint64_t seed);
};

}  // namespace fmmformer::tasks
