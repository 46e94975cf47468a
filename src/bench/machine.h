// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fmmformer::bench {

/// What a timing depends on besides the code: stored with every record.
struct Machine {
  std::string cpu;              // the model name that the system gives
  int cores = 0;                // logical, as the system counts
  int threads = 0;              // that torch uses
  std::string instruction_set;  // of our kernels
  std::string torch_version;
  double product_rate = 0;  // floating-point operations per second of a matrix product, fp32
};

/// Looks at the machine, without measuring anything: the product rate is 0.
Machine look_at_machine();

/// The same with the product rate measured (one to four seconds).
Machine describe_machine();

/// The best of some rounds of 20 fp32 products of 1024 x 1024 matrices with at::mm, in
/// floating-point operations per second: the yardstick for floors and shares, measured in the same
/// run as what it is compared with.
double measure_product_rate();

/// How many threads of other programs want a core at this moment, on average over a tenth of a
/// second. Half a thread is enough to spoil a timing: a parallel loop waits for its slowest part.
double busy_threads_elsewhere();

/// "AMD EPYC, 2 cores, 2 threads, AVX-512, torch 2.11.0, product rate 196 GFLOP/s".
std::string machine_text(const Machine& machine);

}  // namespace fmmformer::bench
