#include "caravan/techniques/tensor/model_rows.h"

#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/operations.h"
#include "caravan/mesh/fit.h"
#include "caravan/nn/embedding.h"
#include "caravan/nn/experts/experts.h"
#include "caravan/nn/lora.h"
#include "caravan/nn/loss/cross_entropy.h"
#include "caravan/nn/norm.h"
#include "caravan/techniques/data/axis_reduction.h"
#include "caravan/techniques/equal_parts.h"

namespace caravan {
namespace {

std::vector<Plan::ParameterRow> parameters_of(const GridLinear& linear, bool has_bias) {
  std::vector<Plan::ParameterRow> rows{{"weight", linear.weight}};
  if (has_bias) rows.push_back({"bias", linear.bias, linear.bias_leaf});
  return rows;
}

Plan::Prepare reduces_norm(const std::shared_ptr<RowReduction>& reduction) {
  return [reduction](Module& module) -> std::function<void()> {
    auto& norm = dynamic_cast<Norm&>(module);
    norm.set_row_reduction(reduction);
    return [&norm] { norm.set_row_reduction(nullptr); };
  };
}

}  // namespace

Layout shard_of(const MeshAxis& axis, int dim, int64_t rows) {
  Shard shard{dim};
  if (rows % axis.size() != 0) shard.sizes = parts_of(rows, axis.size());
  return {{axis.name(), shard}};
}

WordParts word_parts(const ModelConfig& config, const MeshAxis& axis, const std::vector<std::string>& names) {
  const std::vector<int64_t> parts = parts_of(config.vocabulary, axis.size());
  const int64_t first = part_begin(parts, axis.coord());
  const auto set_first_row = [first](Module& module) -> std::function<void()> {
    auto& embedding = dynamic_cast<Embedding&>(module);
    embedding.set_first_row(first);
    return [&embedding] { embedding.set_first_row(0); };
  };
  const auto set_reduction =
      [first, reduction = axis_reduction(axis, Invariant{}, names)](Module& module) -> std::function<void()> {
    auto& loss = dynamic_cast<CrossEntropy&>(module);
    loss.set_row_reduction(reduction, first);
    return [&loss] { loss.set_row_reduction(nullptr, 0); };
  };
  return {set_first_row, set_reduction};
}

Plan::Row expert_row(const ModelConfig& config, const MeshAxis& axis, const Layout& layout) {
  Plan::Row row{.pattern = "*.mlp.experts", .prepare = [index = axis.coord(), parts = axis.size()](Module& module) {
                  return dynamic_cast<Experts&>(module).take_part(index, parts);
                }};
  for (const std::string& name : expert_tables(config.arch)) row.parameters.push_back({name, layout});
  return row;
}

std::vector<Plan::Row> expert_adapter_rows(const ModelConfig& config, const Layout& layout) {
  std::vector<Plan::Row> rows;
  for (const char* table : {"gate", "up", "down"}) {
    if (!has_adapter(config, fmt::format("mlp.experts.{}", table))) continue;
    rows.push_back(
        {.pattern = fmt::format("*.mlp.experts.lora.{}", table), .parameters = {{"a", layout}, {"b", layout}}});
  }
  return rows;
}

std::vector<std::string> attentions(const ModelConfig& config) {
  std::vector<std::string> patterns{"*.attention"};
  if (config.has_encoder()) patterns.emplace_back("*.cross_attention");
  return patterns;
}

std::vector<std::string> stream_norms(const ModelConfig& config) {
  std::vector<std::string> patterns;
  if (config.has_head_norm()) patterns.emplace_back("head.norm");
  if (config.arch.embedding_norm) patterns.emplace_back("embedding.norm");
  if (config.has_encoder() && config.arch.has_last_norm()) patterns.emplace_back("blocks.*.output_norm");
  std::vector<std::string> branches{"attention", "mlp"};
  if (config.has_encoder()) branches.emplace_back("cross");
  for (const std::string& branch : branches) {
    const bool shares = branch == "mlp" && config.arch.has_one_norm;
    if (config.arch.has_norms_before() && !shares) patterns.push_back("blocks.*." + branch + "_norm");
    if (config.arch.has_norms_after()) patterns.push_back("blocks.*." + branch + "_post_norm");
  }
  return patterns;
}

Plan::Row split_norm_row(const ModelConfig& config, const MeshAxis& axis, const std::vector<std::string>& names,
                         const std::string& pattern) {
  std::vector<Layout::Entry> entries;
  for (const std::string& name : names) entries.emplace_back(name, Shard{0});
  const Layout split(entries);
  Plan::Row norm{.pattern = pattern,
                 .parameters = {{"weight", split}},
                 .prepare = reduces_norm(axis_reduction(axis, Replicate{}, names))};
  if (config.arch.has_norm_bias()) norm.parameters.push_back({"bias", split});
  return norm;
}

std::vector<Plan::Row> batch_rows(const Layout& batch) {
  return {{.pattern = "embedding", .inputs = {batch}}, {.pattern = "head.loss", .inputs = {std::nullopt, batch}}};
}

void add_linears(Plan& plan, const ModelConfig& config, const GridLinear& columns, const GridLinear& rows) {
  const auto up = config.arch.is_gated ? std::vector<std::string>{"gate", "up"} : std::vector<std::string>{"up"};
  const bool has_bias = config.arch.mlp_bias;
  // The factors of an adapter are linear layers of the same kind, one after the other.
  const auto add_adapters = [&](const std::string& parent, const std::vector<std::string>& names,
                                const GridLinear& linear) {
    for (const std::string& name : names) {
      if (!has_adapter(config, parent.substr(2) + "." + name)) continue;
      for (const char* factor : {"a", "b"}) {
        add_split_linears(plan, parent + "." + name + ".lora", {factor}, {{"weight", linear.weight}}, linear.product);
      }
      if (linear.again.entries().empty()) continue;
      plan.rows.push_back({.pattern = parent + "." + name + ".lora.a", .outputs = {linear.given_back}});
      plan.rows.push_back({.pattern = parent + "." + name + ".lora.b", .inputs = {linear.again}});
    }
  };
  add_adapters("*.attention", {"query", "key", "value"}, columns);
  add_adapters("*.attention", {"output"}, rows);
  add_adapters("*.mlp", up, columns);
  add_adapters("*.mlp", {"down"}, rows);
  add_split_linears(plan, "*.attention", {"query", "key", "value"}, parameters_of(columns, config.arch.qkv_bias),
                    columns.product);
  add_split_linears(plan, "*.attention", {"output"}, parameters_of(rows, config.arch.output_bias), rows.product);
  add_split_linears(plan, "*.mlp", up, parameters_of(columns, has_bias), columns.product);
  add_split_linears(plan, "*.mlp", {"down"}, parameters_of(rows, has_bias), rows.product);
}

void add_norms(Plan& plan, const ModelConfig& config, const MeshAxis& feature, const std::vector<std::string>& others) {
  std::vector<Layout::Entry> leaf{{feature.name(), Shard{0}}};
  std::vector<Layout::Entry> of_positions{{feature.name(), Shard{1}}};
  for (const std::string& axis : others) {
    leaf.emplace_back(axis, Replicate{});
    of_positions.emplace_back(axis, Replicate{});
  }
  const Layout rest{leaf.front()};
  for (const std::string& pattern : stream_norms(config)) {
    Plan::Row norm{.pattern = pattern,
                   .parameters = {{"weight", rest, Layout(leaf)}},
                   .prepare = reduces_norm(axis_reduction(feature, Replicate{}))};
    if (config.arch.has_norm_bias()) norm.parameters.push_back({"bias", rest, Layout(leaf)});
    plan.rows.push_back(std::move(norm));
  }
  if (config.arch.qk_norm == QkNorm::head) {  // of the heads that are here
    std::vector<Layout::Entry> shared;
    for (const std::string& axis : plan.axes) shared.emplace_back(axis, Replicate{});
    for (const char* pattern : {"*.attention.query_norm", "*.attention.key_norm"}) {
      plan.rows.push_back({.pattern = pattern, .parameters = {{"weight", Layout{}, Layout(shared)}}});
      if (config.arch.has_norm_bias()) plan.rows.back().parameters.push_back({"bias", Layout{}, Layout(shared)});
    }
  }
  if (config.arch.positions != Positions::learned) return;
  plan.rows.push_back({.pattern = "embedding.position",
                       .parameters = {{"weight", Layout{of_positions.front()}, Layout(of_positions)}}});
}

void add_words(Plan& plan, const ModelConfig& config, const MeshAxis& vocabulary, const GridWords& words) {
  const WordParts parts = word_parts(config, vocabulary);
  const bool is_tied = config.ties_head();
  plan.rows.push_back({.pattern = "embedding", .inputs = {words.ids}});
  plan.rows.push_back(
      {.pattern = "embedding.token",
       .parameters = {{"weight", words.table, std::nullopt, is_tied ? words.head_compute : words.token_compute}},
       .outputs = {words.stream},
       .prepare = parts.embedding});
  if (!is_tied) {
    plan.rows.push_back({.pattern = "head", .parameters = {{"weight", words.table, std::nullopt, words.head_compute}}});
  }
  plan.rows.push_back({.pattern = "head.loss", .inputs = {words.hidden, words.labels}, .prepare = parts.loss});
  plan.rows.push_back({.pattern = "head.logits", .inputs = {words.hidden}, .outputs = {words.logits}});
}

void check_grid(const std::string& plan, const Grid& grid, const ModelConfig& config,
                const std::vector<MeshAxis>& axes) {
  const std::string names = fmt::format("{} x {}", axes[axes.size() - 2].name(), axes.back().name());
  int64_t ranks = 1;
  bool is_even = true;
  for (const MeshAxis& axis : axes) {
    ranks *= axis.size();
    is_even &= axis.size() == axes.front().size();
  }
  std::optional<Misfit> misfit = is_even ? std::nullopt : misfit_of_ranks(grid, ranks);
  if (!is_even && !misfit) {
    misfit = Misfit{"mesh.tp", "axes of different sizes", fmt::format("use {} each", grid_side(grid, ranks))};
  }
  if (!misfit) misfit = misfit_of_grid(grid, config, axes.front().size());
  if (misfit) throw UsageError({plan, names, misfit->fact, axes.front().where(), misfit->action});
}

}  // namespace caravan
