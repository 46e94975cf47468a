// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace fmmformer::train {

/// What torch's error says that `action` ends with; "no error" when it ends without one.
template <typename Action>
std::string torch_error_of(const Action& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace fmmformer::train
