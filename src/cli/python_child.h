// SPDX-License-Identifier: Apache-2.0
// Peers that exist in Python only run in a child process: a script of bench/, told what to do in
// one JSON argument, that answers in JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fmmformer::cli {

struct PythonScript {
  std::string path;    // "bench/compiled_composite.py": beside or above the program, or from here
  std::string option;  // "--compiled": what asked for it, for errors
  std::string python;  // the interpreter; empty: .venv/bin/python, found like the script
};

/// Throws UsageError when Python or the script is not there.
void check_python(const PythonScript& script);

/// Throws as check_python() does, and std::runtime_error when the child fails.
nlohmann::json run_python(const PythonScript& script, const nlohmann::json& request);

}  // namespace fmmformer::cli
