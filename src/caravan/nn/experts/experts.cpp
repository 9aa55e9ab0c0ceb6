#include "caravan/nn/experts/experts.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/split_with_sizes.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/module/path.h"
#include "caravan/nn/experts/expert_adapter.h"
#include "caravan/nn/experts/expert_rows.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

ParameterSpec table_of(const ModelConfig& config, int64_t rows, int64_t columns, double init_std) {
  return {.shape = {config.moe.experts * rows, columns},
          .init = {Init::Kind::normal, init_std},
          .decays = true,
          .matrices = config.moe.experts};
}

/// Local numbers of the experts, from 0; -1 for experts of other ranks.
at::Tensor here(const at::Tensor& experts, int64_t first, int64_t count) {
  const at::Tensor index = experts - first;
  return index.masked_fill(index.lt(0).logical_or_(index.ge(count)), -1);
}

}  // namespace

/// Some of the experts, one after another.
class Experts::TileOfExperts final : public TileSlot {
 public:
  TileOfExperts(const Tables& whole, const std::vector<TileCut>& cuts, int64_t num_experts)
      : num_experts_(num_experts), tables_(whole) {
    size_t i = 0;
    for (Parameter** table : tables_.all()) {
      const std::string& name = (*table)->name();
      *table = &slot_of(name.substr(name.rfind('.') + 1), cuts[i++]);
    }
  }
  int64_t num_experts() const noexcept { return num_experts_; }
  at::Tensor run_rows(const at::Tensor& rows, std::vector<int64_t> counts, std::vector<int64_t> here,
                      const ForwardContext& context) {
    counts_ = std::move(counts);
    here_ = std::move(here);
    return run({rows}, context).front();
  }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    const std::vector<int64_t> counts = std::exchange(counts_, {});
    return {tables_.compute(inputs.front(), counts, std::exchange(here_, {}), context, name())};
  }

 private:
  int64_t num_experts_;
  Tables tables_;
  std::vector<int64_t> counts_;  ///< of the run that begins
  std::vector<int64_t> here_;
};

std::vector<Parameter**> Experts::Tables::all() {
  std::vector<Parameter**> there;
  for (Parameter** table : {&gate, &gate_bias, &up, &up_bias, &down, &down_bias}) {
    if (*table != nullptr) there.push_back(table);
  }
  return there;
}

Experts::Experts(const ModelConfig& config)
    : num_experts_(config.moe.experts),
      count_(config.moe.experts),
      hidden_(config.hidden_width()),
      width_(config.width) {
  tables_.activation = config.arch.activation;
  const auto bias_of = [&](const char* name, int64_t rows) {
    if (!config.arch.mlp_bias) return static_cast<Parameter*>(nullptr);
    return &register_parameter(name, {.shape = {num_experts_ * rows}, .decays = false});
  };
  if (config.arch.is_gated) {
    tables_.gate = &register_parameter("gate", table_of(config, hidden_, width_, kInitStd));
    tables_.gate_bias = bias_of("gate_bias", hidden_);
  }
  tables_.up = &register_parameter("up", table_of(config, hidden_, width_, kInitStd));
  tables_.up_bias = bias_of("up_bias", hidden_);
  tables_.down = &register_parameter("down", table_of(config, width_, hidden_, residual_init_std(config)));
  tables_.down_bias = bias_of("down_bias", width_);
}

std::vector<std::string> expert_tables(const Architecture& arch) {
  std::vector<std::string> names;
  for (const char* matrix : {"gate", "up", "down"}) {
    if (!arch.is_gated && names.empty() && std::string_view(matrix) == "gate") continue;
    names.emplace_back(matrix);
    if (arch.mlp_bias) names.push_back(std::string(matrix) + "_bias");
  }
  return names;
}

void Experts::add_adapter(std::string_view table, const LoraConfig& lora) {
  if (adapters_ == nullptr) adapters_ = &register_module<ExpertAdapters>("lora");
  const std::string name(table);
  if (table == "down") {
    tables_.down_adapter = &adapters_->add(name, num_experts_, hidden_, width_, lora);
  } else {
    (table == "gate" ? tables_.gate_adapter : tables_.up_adapter) =
        &adapters_->add(name, num_experts_, width_, hidden_, lora);
  }
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
  const at::Tensor& x = inputs.at(0);
  const at::Tensor& gates = inputs.at(1);
  const int64_t meta_parts = gates.defined() ? num_experts_ / count_ : 1;  // else all rows belong to local experts
  const ExpertRows rows = sort_by_group(here(inputs.at(2), first_, count_), count_, meta_parts);
  const at::Tensor y = collect(through_mlps(spread(x.flatten(0, 1), rows), rows.counts, context), rows);
  const at::Tensor sum = gates.defined() ? mix(y, gates.flatten(0, 1)) : y.squeeze(1);
  at::Tensor result = sum.view_as(x);
  if (gates.defined()) record(context, result, x, gates);
  return {result};
}

/// A matrix of tables has the rows of all experts (e), whole experts on each rank, as has a bias.
void Experts::record(const ForwardContext& context, const at::Tensor& result, const at::Tensor& x,
                     const at::Tensor& gates) const {
  static const OpType kGated{"bsh,bsk,eh,eh,ef->bsh", "hkf"};
  static const OpType kGatedBiased{"bsh,bsk,eh,e,eh,e,ef,e->bsh", "hkf"};
  static const OpType kPlain{"bsh,bsk,eh,ef->bsh", "hkf"};
  static const OpType kPlainBiased{"bsh,bsk,eh,e,ef,e->bsh", "hkf"};
  if (context.layouts == nullptr) return;
  std::vector<at::Tensor> sums;  // of tables and their adapters
  sums.reserve(3);
  const auto adapted = [&](const Parameter* table, const ExpertAdapter* adapter) -> LayoutTable::Operand {
    if (adapter == nullptr || context.leaves_out_adapters) return *table;
    return sums.emplace_back(adapter->recorded(*table, context));
  };
  const LayoutTable::Operand up = adapted(tables_.up, tables_.up_adapter);
  const LayoutTable::Operand down = adapted(tables_.down, tables_.down_adapter);
  const Parameter* gate_bias = tables_.gate_bias;
  const Parameter* up_bias = tables_.up_bias;
  const Parameter* down_bias = tables_.down_bias;
  if (tables_.gate == nullptr) {
    if (up_bias == nullptr) return record_layout(context, kPlain, result, {x, gates, up, down}, name());
    return record_layout(context, kPlainBiased, result, {x, gates, up, *up_bias, down, *down_bias}, name());
  }
  const LayoutTable::Operand gate = adapted(tables_.gate, tables_.gate_adapter);
  if (up_bias == nullptr) return record_layout(context, kGated, result, {x, gates, gate, up, down}, name());
  record_layout(context, kGatedBiased, result, {x, gates, gate, *gate_bias, up, *up_bias, down, *down_bias}, name());
}

at::Tensor Experts::through_mlps(const at::Tensor& rows, const std::vector<int64_t>& counts,
                                 const ForwardContext& context) {
  ForwardContext inside = context;
  inside.layouts = nullptr;  // rows of experts have no layout
  return tiles_.empty() ? tables_.compute(rows, counts, counts, inside, name()) : through_tiles(rows, counts, inside);
}

at::Tensor Experts::Tables::compute(const at::Tensor& rows, const std::vector<int64_t>& counts,
                                    const std::vector<int64_t>& here, const ForwardContext& context,
                                    const std::string& name) const {
  const auto linear = [&](const at::Tensor& x, Parameter& weight, Parameter* bias, ExpertAdapter* adapter) {
    at::Tensor y = expert_linear(x, counts, weight, bias);
    if (adapter == nullptr || context.leaves_out_adapters) return y;
    return adapter->added_to(y, x, here);
  };
  const at::Tensor h = linear(rows, *up, up_bias, up_adapter);
  const at::Tensor hidden = gate == nullptr
                                ? activated(activation, h, context, name)
                                : gated(activation, linear(rows, *gate, gate_bias, gate_adapter), h, context, name);
  return linear(hidden, *down, down_bias, down_adapter);
}

/// Rows are sorted by expert, so those of a tile are consecutive. Autograd runs what was called last first: the tiles
/// in reverse order.
at::Tensor Experts::through_tiles(const at::Tensor& rows, const std::vector<int64_t>& counts,
                                  const ForwardContext& context) {
  at::Tensor x = rows;
  // Schedules expect a backward of every unit after the first that is trained.
  if (follows_trained_ && at::GradMode::is_enabled() && !x.requires_grad()) x = x.detach().requires_grad_();
  std::vector<std::vector<int64_t>> counts_of, here_of;
  std::vector<int64_t> sizes;
  auto next = counts.begin();
  for (const TileOfExperts* tile : tiles_) {
    counts_of.emplace_back(next, next + tile->num_experts());
    std::vector<int64_t>& here = here_of.emplace_back(counts.size(), 0);
    std::copy(next, next + tile->num_experts(), here.begin() + (next - counts.begin()));
    next += tile->num_experts();
    sizes.push_back(std::accumulate(counts_of.back().begin(), counts_of.back().end(), int64_t{0}));
  }
  const std::vector<at::Tensor> parts = at::split_with_sizes(x, sizes);
  std::vector<at::Tensor> results;
  for (size_t t = 0; t < tiles_.size(); ++t) {
    results.push_back(tiles_[t]->run_rows(parts[t], std::move(counts_of[t]), std::move(here_of[t]), context));
  }
  return taken("experts in tiles", at::cat(results));
}

std::vector<Tileable::Weight> Experts::weights_to_cut() {
  std::vector<Weight> weights;
  for (Parameter** table : tables_.all()) {
    weights.push_back({*table, (*table)->global_shape().front() / num_experts_});
  }
  return weights;
}

std::vector<Module*> Experts::cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) {
  const std::vector<Weight> weights = weights_to_cut();
  std::vector<Module*> tiles;
  for (const std::vector<TileCut>& cut : cuts) {
    const int64_t experts = cut.front().count / weights.front().row_unit;
    tiles_.push_back(&register_module<TileOfExperts>(tile_name(tiles_.size()), tables_, cut, experts));
    tiles.push_back(tiles_.back());
  }
  for (const Weight& weight : weights) whole_.push_back(release_parameter(*weight.parameter));
  follows_trained_ = follows_trained;
  return tiles;
}

}  // namespace caravan
