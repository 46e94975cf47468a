// SPDX-License-Identifier: Apache-2.0
// The optimizers in double, written from their papers' formulas rather than from our code.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "train/optimizer_config.h"

namespace fmmformer::train {

/// One tensor under an optimizer.
struct PlainOptimizer {
  OptimizerConfig config;
  std::vector<double> weight;
  std::vector<double> m = std::vector<double>(weight.size(), 0.0);
  std::vector<double> v = std::vector<double>(weight.size(), 0.0);
  int t = 0;

  void step(std::vector<double> gradient, double lr, double beta1) {
    ++t;
    if (config.clip_tensor > 0) clip(gradient);
    for (size_t i = 0; i < weight.size(); ++i) {
      double g = gradient[i];
      if (config.kind == OptimizerKind::kAdam) g += config.weight_decay * weight[i];
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = config.beta2 * v[i] + (1 - config.beta2) * g * g;
      if (config.kind != OptimizerKind::kAdam) weight[i] *= 1 - lr * config.weight_decay;
      weight[i] -= lr * (config.kind == OptimizerKind::kRAdam ? rectified(m[i], v[i], beta1)
                                                              : corrected(m[i], v[i], beta1));
    }
  }

 private:
  void clip(std::vector<double>& gradient) const {
    double norm = 0;
    for (const double g : gradient) norm = std::hypot(norm, g);
    const double factor = config.clip_tensor / (norm + 1e-6);
    if (factor >= 1) return;
    for (double& g : gradient) g *= factor;
  }

  double corrected(double first, double second, double beta1) const {
    const double m_hat = first / (1 - std::pow(beta1, t));
    const double v_hat = second / (1 - std::pow(config.beta2, t));
    return m_hat / (std::sqrt(v_hat) + config.eps);
  }

  double rectified(double first, double second, double beta1) const {
    const double b2t = std::pow(config.beta2, t);
    const double rho_inf = 2 / (1 - config.beta2) - 1;
    const double rho = rho_inf - 2 * t * b2t / (1 - b2t);
    const double m_hat = first / (1 - std::pow(beta1, t));
    if (rho < 5) return m_hat;
    const double r2 = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho);
    // The authors add eps to the uncorrected root.
    return std::sqrt(r2) * std::sqrt(1 - b2t) * m_hat / (std::sqrt(second) + config.eps);
  }
};

}  // namespace fmmformer::train
