// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace fmmformer::tasks {

/// A data file is not what it should be. The text says which file, where in it, what was wanted,
/// what came and what to do.
class DataError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace fmmformer::tasks
