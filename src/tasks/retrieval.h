// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tasks/data/data_task.h"

namespace fmmformer::tasks {

/// What data files keep of a document: all that LRA reads.
inline constexpr int64_t kRetrievalBytes = 4000;

extern const DataSet kRetrievalData;

/// Two papers of the ACL Anthology Network, read byte by byte (token = byte + 1): does the first
/// cite the second?
///
/// Sources: LRA's table of five columns (label, two ids, two texts), or a table of pairs `label TAB
/// id1 TAB id2` with a table of documents `id TAB text` beside it. LRA's texts are bytes literals
/// of Python, b'...\n...'; as in LRA, they are read as they stand, quotes and backslashes included,
/// whatever their bytes are. A table of documents must be UTF-8.
///
/// A document that several pairs share lies in the file once.
class RetrievalTask : public DataTask {
 public:
  RetrievalTask(const BytesConfig& config, uint64_t seed);
};

}  // namespace fmmformer::tasks
