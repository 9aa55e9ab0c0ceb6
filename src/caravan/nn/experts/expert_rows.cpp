#include "caravan/nn/experts/expert_rows.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/accumulate_grad.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/product.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor rows_of_copies(const at::Tensor& rows, const at::Tensor& row) {
  const bool lacks_some = rows.size(0) < row.size(0);
  if (!lacks_some) return rows.index_select(0, row);
  const at::Tensor with_zero = at::cat({rows, rows.new_zeros({1, rows.size(1)})});
  return with_zero.index_select(0, row.where(row.ge(0), rows.size(0)));
}

/// An orthogonal map of rows, except for tokens with several copies: each backward is the other's forward.
struct Spread : Function<Spread> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const ExpertRows& rows) {
    ctx->save_for_backward({rows.row});
    ctx->saved_data["top_k"] = rows.top_k;
    const at::Tensor token = rows.top_k == 1 ? rows.copy : rows.copy.div(rows.top_k, "floor");
    return x.index_select(0, token);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor copies = rows_of_copies(grads[0], ctx->get_saved_variables()[0]);
    const int64_t top_k = ctx->saved_data["top_k"].toInt();
    return {top_k == 1 ? copies : copies.unflatten(0, {-1, top_k}).sum(1), {}};
  }
};

struct Collect : Function<Collect> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const ExpertRows& rows) {
    ctx->save_for_backward({rows.copy});
    return rows_of_copies(y, rows.row).unflatten(0, {-1, rows.top_k});
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {grads[0].flatten(0, 1).index_select(0, ctx->get_saved_variables()[0]), {}};
  }
};

/// Calls visit(expert, its first row, its rows).
void for_each_expert(const std::vector<int64_t>& counts, const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    visit(static_cast<int64_t>(e), first, counts[e]);
    first += counts[e];
  }
}

/// The rows of expert `e` in a table of `num_experts`.
at::Tensor part_of(const at::Tensor& table, int64_t e, size_t num_experts) {
  const int64_t rows = table.size(0) / static_cast<int64_t>(num_experts);
  return table.narrow(0, e * rows, rows);
}

struct ExpertLinear : Function<ExpertLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& b, const std::vector<int64_t>& counts, Parameter& weight,
                            Parameter* bias) {
    will_accumulate(ctx, {&weight, bias});
    ctx->save_for_backward({x, w.detach()});
    ctx->saved_data["counts"] = counts;
    at::Tensor y = at::empty({x.size(0), w.size(0) / static_cast<int64_t>(counts.size())}, x.options());
    for_each_expert(counts, [&](int64_t e, int64_t first, int64_t count) {
      if (count == 0) return;
      const auto bias = b ? std::optional(part_of(*b, e, counts.size())) : std::nullopt;
      y.narrow(0, first, count)
          .copy_(product(x.narrow(0, first, count), part_of(w, e, counts.size()), ProductKind::forward, bias));
    });
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list gradients(6);
    if (!grads[0].defined()) return gradients;
    const at::Tensor x = ctx->get_saved_variables()[0].detach();
    const at::Tensor w = ctx->get_saved_variables()[1];
    const std::vector<int64_t> counts = ctx->saved_data["counts"].toIntVector();
    const at::Tensor dy = grads[0].contiguous();
    if (ctx->needs_input_grad(0)) gradients[0] = input_gradient(x, w, dy, counts);
    accumulate_grad_later(
        ctx, [=](at::Tensor& sum, bool is_empty) { add_weights(sum, is_empty, x, dy, counts); },
        [=](at::Tensor& sum, bool is_empty) { add_biases(sum, is_empty, dy, counts); });
    return gradients;
  }

 private:
  static at::Tensor input_gradient(const at::Tensor& x, const at::Tensor& w, const at::Tensor& dy,
                                   const std::vector<int64_t>& counts) {
    at::Tensor dx = at::empty(x.sizes(), x.options());
    for_each_expert(counts, [&](int64_t e, int64_t first, int64_t count) {
      if (count == 0) return;
      const at::Tensor part = part_of(w, e, counts.size());
      dx.narrow(0, first, count).copy_(product(dy.narrow(0, first, count), part.t(), ProductKind::dx));
    });
    return dx;
  }

  static void add_weights(at::Tensor& sum, bool is_empty, const at::Tensor& x, const at::Tensor& dy,
                          const std::vector<int64_t>& counts) {
    for_each_expert(counts, [&](int64_t e, int64_t first, int64_t count) {
      at::Tensor part = part_of(sum, e, counts.size());
      if (count > 0) {
        add_product(part, is_empty, dy.narrow(0, first, count).t(), x.narrow(0, first, count).t(), ProductKind::dw);
      } else if (is_empty) {
        part.zero_();
      }
    });
  }

  static void add_biases(at::Tensor& sum, bool is_empty, const at::Tensor& dy, const std::vector<int64_t>& counts) {
    if (is_empty) sum.zero_();
    for_each_expert(counts, [&](int64_t e, int64_t first, int64_t count) {
      if (count == 0) return;
      part_of(sum, e, counts.size()).add_(dy.narrow(0, first, count).sum(at::IntArrayRef{0}, false, sum.scalar_type()));
    });
  }
};

thread_local double expert_load = 1;

}  // namespace

ExpertLoadScope::ExpertLoadScope(double most) noexcept : outer_(std::exchange(expert_load, most)) {}
ExpertLoadScope::~ExpertLoadScope() { expert_load = outer_; }
double ExpertLoadScope::current() noexcept { return expert_load; }

ExpertRows sort_by_group(const at::Tensor& groups, int64_t num_groups, int64_t meta_parts) {
  const int64_t copies = groups.numel();
  ExpertRows rows{.counts = std::vector<int64_t>(static_cast<size_t>(num_groups), 0), .top_k = groups.size(-1)};
  count_kernel("route", groups, groups);
  if (groups.is_meta()) {
    const int64_t most = copies / rows.top_k * std::min(rows.top_k, num_groups);  // for a token, one for each expert
    const double loaded = expert_load * static_cast<double>(copies / meta_parts);
    const auto there = static_cast<int64_t>(std::min(loaded, static_cast<double>(meta_parts == 1 ? copies : most)));
    for (int64_t g = 0; g < num_groups; ++g) {
      rows.counts[static_cast<size_t>(g)] = there / num_groups + (g < there % num_groups ? 1 : 0);
    }
    rows.copy = at::empty({there}, groups.options());
    rows.row = at::empty({copies}, groups.options());
    return rows;
  }
  const at::Tensor in_order = groups.contiguous();
  const int64_t* group = in_order.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < copies; ++i) {
    if (group[i] >= num_groups) {
      throw ShapeError({"experts", "", fmt::format("copy {} goes to group {} of {}", i, group[i], num_groups), "",
                        "choose among the experts that there are"});
    }
    if (group[i] >= 0) ++rows.counts[static_cast<size_t>(group[i])];
  }
  std::vector<int64_t> next(rows.counts.size(), 0);
  std::partial_sum(rows.counts.begin(), rows.counts.end() - 1, next.begin() + 1);
  rows.copy = at::empty({std::accumulate(rows.counts.begin(), rows.counts.end(), int64_t{0})}, groups.options());
  rows.row = at::empty({copies}, groups.options());
  for (int64_t i = 0; i < copies; ++i) {
    const int64_t row = group[i] < 0 ? -1 : next[static_cast<size_t>(group[i])]++;
    data_of<int64_t>(rows.row)[i] = row;
    if (row >= 0) data_of<int64_t>(rows.copy)[row] = i;
  }
  return rows;
}

at::Tensor spread(const at::Tensor& x, const ExpertRows& rows) { return Spread::apply(x, rows); }

at::Tensor collect(const at::Tensor& y, const ExpertRows& rows) { return Collect::apply(y, rows); }

at::Tensor mix(const at::Tensor& copies, const at::Tensor& gates) {
  return copies.mul(gates.unsqueeze(-1)).sum(1).to(copies.scalar_type());
}

at::Tensor expert_linear(const at::Tensor& x, const std::vector<int64_t>& counts, Parameter& weight, Parameter* bias) {
  const auto b = bias != nullptr ? std::optional(bias->compute()) : std::nullopt;
  return ExpertLinear::apply(x, weight.compute(), b, counts, weight, bias);
}

}  // namespace caravan
