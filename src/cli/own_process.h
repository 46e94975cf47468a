// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace fmmformer::cli {

/// What `work` returns, when run in a child process that begins as a copy of this one. No thread
/// may have been started here: a child has none of them, and would wait for them.
///
/// For measurements. What a process has allocated and freed before decides what memory costs it
/// afterwards: glibc maps and unmaps blocks up to the size of the largest one freed so far, and
/// page faults are up to half the time of operations on small tensors.
///
/// Throws std::runtime_error with the child's message when `work` throws, or when the child ends by
/// a signal.
std::string in_own_process(const std::function<std::string()>& work);

}  // namespace fmmformer::cli
