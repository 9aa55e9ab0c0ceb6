#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/module/path.h"
#include "caravan/module/plan/layout_table.h"
#include "caravan/nn/experts/expert_rows.h"
#include "caravan/nn/experts/experts.h"
#include "caravan/techniques/expert/expert_parallel.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Number of rows that this rank sends to, and receives from, each rank of the axis.
struct Exchange {
  MeshAxis axis;
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
  Exchange back() const { return {axis, received, sent}; }
};

at::Tensor exchanged(const at::Tensor& rows, const Exchange& exchange) {
  const int64_t width = rows.size(1);
  const auto elements = [&](std::vector<int64_t> counts) {
    for (int64_t& count : counts) count *= width;
    return counts;
  };
  const int64_t count = std::accumulate(exchange.received.begin(), exchange.received.end(), int64_t{0});
  at::Tensor result = at::empty({count, width}, rows.options());
  all_to_all_async(exchange.axis.comm(), rows.contiguous(), result, elements(exchange.sent),
                   elements(exchange.received), "tokens of experts")
      .wait();
  take_path("expert exchange", result);
  return result;
}

/// A permutation of rows over ranks: its backward is its inverse.
struct ExchangeRows : Function<ExchangeRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const Exchange& exchange) {
    ctx->saved_data["exchange"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(exchange.back()));
    return exchanged(rows, exchange);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto kept = ctx->saved_data["exchange"].toCapsule();
    return {exchanged(grads[0], static_cast<const Kept&>(*kept).exchange), {}};
  }

 private:
  struct Kept : torch::CustomClassHolder {
    explicit Kept(Exchange of) : exchange(std::move(of)) {}
    Exchange exchange;
  };
};

/// The experts of all ranks to which this rank's tokens go: on each rank those at the same position as its own.
struct Destinations {
  Destinations(const Experts& experts, const MeshAxis& axis)
      : per_rank(experts.num_experts() / axis.size()),
        skipped(experts.first() - axis.coord() * per_rank),
        count(experts.count()),
        ranks(axis.size()) {
    if (experts.num_experts() % ranks == 0 && skipped >= 0 && skipped + count <= per_rank) return;
    throw ShapeError(
        {"expert parallel", experts.name(),
         fmt::format("experts {} to {} of {} are not a part of those of coordinate {} of {}", experts.first(),
                     experts.first() + count - 1, experts.num_experts(), axis.coord(), ranks),
         axis.where(), "call Experts::take_part with the coordinate and size of the axis first"});
  }

  int64_t num_groups() const { return ranks * count; }
  /// The group of each expert, by rank and then by expert; -1: another tensor-parallel rank has the expert.
  at::Tensor groups_of(const at::Tensor& experts) const {
    const at::Tensor within = experts.remainder(per_rank) - skipped;
    const at::Tensor group = experts.div(per_rank, "floor") * count + within;
    return group.masked_fill(experts.lt(0).logical_or_(within.lt(0)).logical_or_(within.ge(count)), -1);
  }

  /// For meta tokens, whose groups are even: each rank sends to this one as much as ExpertLoadScope says. Returns what
  /// it receives.
  std::vector<int64_t> load(ExpertRows& rows, int64_t coord) const {
    if (ExpertLoadScope::current() == 1) return rows.counts;
    const int64_t here = rows.copy.numel(), all = rows.row.numel();
    const double alike = static_cast<double>(all * count) / static_cast<double>(per_rank * ranks);
    const int64_t most = std::min(here, all / rows.top_k * std::min(rows.top_k, count));
    const auto own = static_cast<int64_t>(std::min(ExpertLoadScope::current() * alike, static_cast<double>(most)));
    std::vector<int64_t> received;
    for (size_t i = 0; i < rows.counts.size(); ++i) {
      const auto group = static_cast<int64_t>(i);
      const bool is_own = group / count == coord;
      const int64_t sum = is_own ? own : here - own, parts = is_own ? count : count * (ranks - 1);
      const int64_t part = is_own ? group % count : group - (group / count > coord ? count : 0);
      rows.counts[i] = sum / parts + (part < sum % parts ? 1 : 0);
      received.push_back(own / count + (group % count < own % count ? 1 : 0));
    }
    return received;
  }

  int64_t per_rank;
  int64_t skipped;
  int64_t count;
  int64_t ranks;
};

/// Rows of each group, received by its rank from each rank, for each local expert. For meta tensors nothing is
/// received.
std::vector<int64_t> received_counts(const std::vector<int64_t>& sent, const MeshAxis& axis, bool is_meta) {
  const at::Tensor counts = at::tensor(sent, at::kLong);
  const at::Tensor in = is_meta ? counts.to(at::kMeta) : counts;
  const at::Tensor out = at::empty_like(in);
  all_to_all_async(axis.comm(), in, out, {}, {}, "tokens of each expert").wait();
  if (is_meta) return {};
  const int64_t* values = out.const_data_ptr<int64_t>();
  return {values, values + out.numel()};
}

/// Sums of `count` neighbours.
std::vector<int64_t> by_rank(const std::vector<int64_t>& groups, int64_t count) {
  std::vector<int64_t> sums;
  for (auto group = groups.begin(); group != groups.end(); group += count) {
    sums.push_back(std::accumulate(group, group + count, int64_t{0}));
  }
  return sums;
}

/// The expert of each received row, [1, rows, 1].
at::Tensor experts_of_rows(const std::vector<int64_t>& groups, const Experts& experts, const at::Tensor& like) {
  std::vector<int64_t> of_rows;
  for (size_t group = 0; group < groups.size(); ++group) {
    const int64_t expert = experts.first() + static_cast<int64_t>(group) % experts.count();
    of_rows.insert(of_rows.end(), static_cast<size_t>(groups[group]), expert);
  }
  return at::tensor(of_rows, at::TensorOptions().dtype(at::kLong)).to(like.device()).view({1, -1, 1});
}

/// The layout of the experts' sum, if this rank's tokens were all tokens on `axis`.
Layout layout_of_sum(const Experts& experts, const Tensors& inputs, const LayoutTable& table, const std::string& axis,
                     const std::string& what) {
  static const OpType kType{"bsh,bsk,eh->bsh", "hk"};
  const auto without = [&](const Layout& layout) {
    std::vector<Layout::Entry> entries = layout.entries();
    std::erase_if(entries, [&](const Layout::Entry& entry) { return entry.first == axis; });
    return Layout(std::move(entries));
  };
  const Layout& of_x = table.of(inputs.at(0), what);
  const std::vector<Layout> operands{without(of_x), without(table.of(inputs.at(1), what)),
                                     without(experts.own_parameters().front()->compute_layout())};
  const Layout sum = infer(kType, operands, std::vector<bool>(operands.size(), !table.has_gradients()));
  std::vector<Layout::Entry> entries = of_x.entries();
  for (auto& [name, placement] : entries) {
    if (name != axis) placement = sum[name];
  }
  return Layout(std::move(entries));
}

Tensors exchange_around(const MeshAxis& axis, const Experts& experts, Tensors inputs, const ForwardContext& context,
                        const Next& next) {
  const at::Tensor& x = inputs.at(0);
  const at::Tensor& gates = inputs.at(1);
  const Destinations to(experts, axis);
  ExpertRows rows = sort_by_group(to.groups_of(inputs.at(2)), to.num_groups(), to.per_rank / to.count);
  std::vector<int64_t> groups = received_counts(rows.counts, axis, x.is_meta());
  if (x.is_meta()) groups = to.load(rows, axis.coord());
  const Exchange there{axis, by_rank(rows.counts, to.count), by_rank(groups, to.count)};
  const at::Tensor sent = spread(x.flatten(0, 1), rows);
  const at::Tensor received = ExchangeRows::apply(sent, there);
  const at::Tensor y =
      next({received.unsqueeze(0), at::Tensor(), experts_of_rows(groups, experts, x)}, context).front();
  const at::Tensor returned = ExchangeRows::apply(y.squeeze(0), there.back());
  return {mix(collect(returned, rows), gates.flatten(0, 1)).view_as(x)};
}

}  // namespace

Around exchange_tokens(const MeshAxis& axis) {
  return [axis](Module& module, Tensors inputs, const ForwardContext& context, const Next& next) {
    const auto& experts = dynamic_cast<const Experts&>(module);
    if (context.layouts == nullptr) return exchange_around(axis, experts, std::move(inputs), context, next);
    ForwardContext inside = context;
    inside.layouts = nullptr;
    const Layout layout = layout_of_sum(experts, inputs, *context.layouts, axis.name(), module.name());
    Tensors outputs = next(inputs, inside);
    context.layouts->set(outputs.front(), layout, "the output of " + module.name());
    return outputs;
  };
}

}  // namespace caravan
