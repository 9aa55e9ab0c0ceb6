#include "caravan/nn/experts/experts.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/experts/expert_rows.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

ParameterSpec table_of(const ModelConfig& config, int64_t rows, int64_t columns, double init_std) {
  return {.shape = {config.moe.experts * rows, columns}, .init = {Init::Kind::normal, init_std}, .decays = true};
}

/// Local numbers of the experts, from 0; -1 for experts of other ranks.
at::Tensor here(const at::Tensor& experts, int64_t first, int64_t count) {
  const at::Tensor index = experts - first;
  return index.masked_fill(index.lt(0).logical_or_(index.ge(count)), -1);
}

}  // namespace

Experts::Experts(const ModelConfig& config)
    : num_experts_(config.moe.experts),
      count_(config.moe.experts),
      gate_(config.kind == ModelKind::llama
                ? &register_parameter("gate", table_of(config, config.hidden_width(), config.width, kInitStd))
                : nullptr),
      up_(register_parameter("up", table_of(config, config.hidden_width(), config.width, kInitStd))),
      up_bias_(config.kind == ModelKind::gpt2
                   ? &register_parameter("up_bias", {.shape = {num_experts_ * config.hidden_width()}, .decays = false})
                   : nullptr),
      down_(
          register_parameter("down", table_of(config, config.width, config.hidden_width(), residual_init_std(config)))),
      down_bias_(config.kind == ModelKind::gpt2
                     ? &register_parameter("down_bias", {.shape = {num_experts_ * config.width}, .decays = false})
                     : nullptr) {}

const std::vector<std::string>& expert_tables(ModelKind kind) {
  static const std::vector<std::string> of_gpt2{"up", "up_bias", "down", "down_bias"};
  static const std::vector<std::string> of_llama{"gate", "up", "down"};
  return kind == ModelKind::gpt2 ? of_gpt2 : of_llama;
}

std::function<void()> Experts::take_part(int64_t index, int64_t parts) {
  if (count_ % parts != 0) {
    throw ShapeError({"experts", name(), fmt::format("{} experts do not divide among {} ranks", count_, parts), "",
                      "use a number of experts that is a multiple of the ranks"});
  }
  const auto undo = [this, first = first_, count = count_] {
    first_ = first;
    count_ = count;
  };
  count_ /= parts;
  first_ += index * count_;
  return undo;
}

Tensors Experts::forward(Tensors inputs, const ForwardContext& context) {
  // e: rows of the tables, whole experts of each.
  static const OpType kLlama{"bsh,bsk,eh,eh,ef->bsh", "hkf"};
  static const OpType kGpt2{"bsh,bsk,eh,e,ef,e->bsh", "hkf"};
  const at::Tensor& x = inputs.at(0);
  const at::Tensor& gates = inputs.at(1);
  const int64_t meta_parts = gates.defined() ? num_experts_ / count_ : 1;  // else all rows belong to local experts
  const ExpertRows rows = sort_by_group(here(inputs.at(2), first_, count_), count_, meta_parts);
  const at::Tensor y = collect(through_mlps(spread(x.flatten(0, 1), rows), rows.counts, context), rows);
  const at::Tensor sum = gates.defined() ? mix(y, gates.flatten(0, 1)) : y.squeeze(1);
  at::Tensor result = sum.view_as(x);
  if (gates.defined() && gate_ != nullptr) {
    record_layout(context, kLlama, result, {x, gates, *gate_, up_, down_}, name());
  } else if (gates.defined()) {
    record_layout(context, kGpt2, result, {x, gates, up_, *up_bias_, down_, *down_bias_}, name());
  }
  return {result};
}

at::Tensor Experts::through_mlps(const at::Tensor& rows, const std::vector<int64_t>& counts,
                                 const ForwardContext& context) {
  ForwardContext inside = context;
  inside.layouts = nullptr;  // rows of experts have no layout
  const at::Tensor up = expert_linear(rows, counts, up_, up_bias_);
  const at::Tensor hidden = gate_ == nullptr ? tanh_gelu(up, inside, name())
                                             : swiglu(expert_linear(rows, counts, *gate_, nullptr), up, inside, name());
  return expert_linear(hidden, counts, down_, down_bias_);
}

}  // namespace caravan
