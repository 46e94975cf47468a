// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_rows.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/bench_table.h"
#include "cli/own_process.h"

namespace fmmformer::cli {

using nlohmann::json;

bench::Machine measured_machine() {
  bench::Machine machine = bench::look_at_machine();
  machine.product_rate = json::parse(in_own_process([] {
                           return json(bench::measure_product_rate()).dump();
                         })).get<double>();
  return machine;
}

json measured_row(const std::vector<std::string>& peers,
                  const std::function<bench::BenchmarkRow()>& measure) {
  return json::parse(in_own_process([&] {
    const bench::BenchmarkRow row = measure();
    std::printf("%s\n", table_row(row, peers).c_str());
    return row_json(row).dump();
  }));
}

}  // namespace fmmformer::cli
