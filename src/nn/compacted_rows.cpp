// SPDX-License-Identifier: Apache-2.0
#include "nn/compacted_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace fmmformer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

/// Rows `index` of x; zeros where `there` [rows] says no.
Tensor rows_or_zeros(const Tensor& x, const Tensor& index, const Tensor& there) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[0] = there.size(0);
  return x.index_select(0, index).masked_fill_(there.logical_not().view(sizes), 0);
}

/// forward reads rows `index`; the gradient of row t is that of row `inverse`[t], if `taken`[t].
struct ReadRows : torch::autograd::Function<ReadRows> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& index,
                        const Tensor& inverse, const Tensor& taken) {
    context->save_for_backward({inverse, taken});
    return x.index_select(0, index);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    return {rows_or_zeros(grads[0], saved[0], saved[1]), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

CompactedRows::CompactedRows(const Tensor& member, int64_t capacity) : member_(member) {
  TORCH_CHECK_VALUE(capacity >= 1 && member.dim() == 1 && member.size(0) >= 1,
                    "CompactedRows: member is ", member.sizes(), " and capacity ", capacity,
                    "; wanted [T] and a capacity of at least 1");
  const auto integers = member.options().dtype(at::kLong);
  const Tensor order = member.cumsum(0), places = order - 1;
  misfit_ = member.logical_and(places.ge(capacity));
  slots_ = places.clamp(0, capacity - 1);
  // Whoever has no place writes to one more row, which is left out: it does not matter who is last.
  const Tensor to = places.masked_fill(member.logical_not().logical_or_(misfit_), capacity);
  rows_ = at::zeros({capacity + 1}, integers)
              .scatter_(0, to, at::arange(member.size(0), integers))
              .narrow(0, 0, capacity);
  used_ = at::arange(capacity, integers).lt(order.narrow(0, -1, 1));
}

Tensor CompactedRows::select(const Tensor& x) const {
  return ReadRows::apply(x, rows_, slots_, member_);
}

Tensor CompactedRows::place(const Tensor& values) const {
  return ReadRows::apply(values, slots_, rows_, used_)
      .masked_fill(member_.logical_not(), 0)
      .masked_fill(misfit_, std::nan(""));
}

}  // namespace fmmformer
