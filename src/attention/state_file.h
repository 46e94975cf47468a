// SPDX-License-Identifier: Apache-2.0
// A decoding state as a file: one safetensors file with a checksum, and what its sums are sums of.
// Errors speak in the name of the state ("FmmState.load: ..").
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fmmformer/core/safetensors.h"

namespace fmmformer {

struct StateKind {
  const char* name;     // of the C++ and the Python class
  const char* version;  // of the file
  const char* prefill;  // the function that makes one
};

/// Written whole or not at all.
void write_state_file(const StateKind& kind, const std::string& path,
                      const std::vector<std::pair<const char*, at::Tensor>>& tensors,
                      std::map<std::string, std::string> metadata);

/// Reads and checks the file; what its tensors mean is for the caller to check.
class StateFile {
 public:
  /// Throws c10::ValueError for a file that is missing, damaged, of another kind or version.
  StateFile(const StateKind& kind, const std::string& path);

  /// "" where there is none.
  std::string entry(const std::string& name) const;
  /// Throws c10::ValueError where it says neither true nor false.
  bool flag(const std::string& name) const;
  at::Tensor tensor(const char* name) const;
  /// Throws c10::ValueError, unless the tensors fit each other.
  void check_fit(bool fits) const;
  /// "FmmState.load: PATH": what errors begin with.
  const std::string& where() const { return where_; }

 private:
  StateKind kind_;
  std::string where_;
  SafeTensorsFile file_;
};

}  // namespace fmmformer
