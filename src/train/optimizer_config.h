// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "fmmformer/core/fields.h"
#include "fmmformer/core/named_enum.h"

namespace fmmformer::train {

enum class OptimizerKind { kAdam, kAdamW, kRAdam };

/// The learning rate and beta1 belong to the schedule: they may differ from update to update.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double clip_tensor = 0;
  double clip_global = 0;

  static void fields(auto& self, auto&& visit) {
    visit("kind", self.kind,
          "adam, adamw (decay apart from the gradient) or radam (the copy task's)");
    visit("beta2", self.beta2, Range{0.0, 0.999999}, "decay of the gradient's second moment");
    visit("eps", self.eps, Range{0.0, 1.0}, "added to the root of the second moment");
    visit("weight_decay", self.weight_decay, Range{0.0, 1.0},
          "share of each weight taken away per update, times the learning rate");
    visit("clip_tensor", self.clip_tensor, Range{0.0, 1e9},
          "largest norm of the gradient of each tensor by itself; 0 = no limit");
    visit("clip_global", self.clip_global, Range{0.0, 1e9},
          "largest norm of all gradients together; 0 = no limit");
  }
};

}  // namespace fmmformer::train

template <>
struct fmmformer::EnumTable<fmmformer::train::OptimizerKind> {
  static constexpr std::string_view kKind = "optimizer";
  static std::span<const EnumName<train::OptimizerKind>> entries() {
    static constexpr std::array<EnumName<train::OptimizerKind>, 3> kEntries = {
        {{train::OptimizerKind::kAdam, "adam"},
         {train::OptimizerKind::kAdamW, "adamw"},
         {train::OptimizerKind::kRAdam, "radam"}}};
    return kEntries;
  }
};
