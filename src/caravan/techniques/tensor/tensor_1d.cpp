#include "caravan/techniques/tensor/tensor_1d.h"

#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/mesh/fit.h"
#include "caravan/nn/experts/router.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/lora.h"
#include "caravan/techniques/data/axis_reduction.h"
#include "caravan/techniques/equal_parts.h"
#include "caravan/techniques/tensor/kv_heads.h"
#include "caravan/techniques/tensor/model_rows.h"

namespace caravan {
namespace {

/// The axes that replace one axis, and how layouts on all of them are written.
struct Axes {
  MeshAxis whole;
  std::vector<std::string> names;
  int num_minor = 1;  ///< size of the second

  Layout on(const Placement& placement) const {
    std::vector<Layout::Entry> entries;
    for (const std::string& name : names) entries.emplace_back(name, placement);
    return Layout(std::move(entries));
  }
  /// Splits `rows` of dim `dim` in parts that differ by at most one.
  Layout shard(int dim, int64_t rows) const {
    if (rows % whole.size() == 0) return on(Shard{dim});
    const std::vector<int64_t> parts = parts_of(rows, whole.size());
    if (names.size() == 1) return on(Shard{dim, parts});
    std::vector<int64_t> of_major, of_minor;  // the minor axis splits what this rank's coordinate on the major axis has
    for (auto part = parts.begin(); part != parts.end(); part += num_minor) {
      of_major.push_back(std::accumulate(part, part + num_minor, int64_t{0}));
    }
    const auto own = parts.begin() + whole.coord() / num_minor * num_minor;
    of_minor.assign(own, own + num_minor);
    return Layout{{names[0], Shard{dim, of_major}}, {names[1], Shard{dim, of_minor}}};
  }
};

/// A table of rows for one model.
class Table {
 public:
  Table(const ModelConfig& config, const Mesh& mesh, Axes axes, bool splits_sequence)
      : config_(config),
        mesh_(mesh),
        axes_(std::move(axes)),
        stream_(axes_.on(splits_sequence ? Placement(Shard{1}) : Placement(Invariant{}))),
        splits_sequence_(splits_sequence) {
    if (config.heads % axes_.whole.size() != 0) groups_ = parts_of(config.num_kv_heads(), axes_.whole.size());
  }

  Plan plan() {
    plan_.name = splits_sequence_ ? "tensor_1d with sequence" : "tensor_1d";
    plan_.axes = axes_.names;
    add_words();
    for (const std::string& pattern : attentions(config_)) add_attention(pattern);
    add_buckets();
    add_feed();
    if (splits_sequence_) add_shared();
    return std::move(plan_);
  }

 private:
  void add(Plan::Row row) { plan_.rows.push_back(std::move(row)); }

  /// Splits `rows` of dim `dim`, equally many of each group of heads, by groups.
  Layout of_heads(int dim, int64_t rows) const {
    if (groups_.empty()) return axes_.on(Shard{dim});
    std::vector<int64_t> sizes = groups_;
    for (int64_t& size : sizes) size *= rows / config_.num_kv_heads();
    return axes_.on(Shard{dim, std::move(sizes)});
  }

  /// [out, in] split by its rows: the layer's output.
  void add_columns(const std::string& pattern, const Layout& rows, bool has_bias) {
    Plan::Row row{.pattern = pattern, .parameters = {{"weight", rows}}};
    if (has_bias) row.parameters.push_back({"bias", rows});
    add(std::move(row));
    add_adapter(pattern, {"weight", whole_, replicate_}, {"weight", rows});
    add_magnitudes(pattern, {"magnitude", rows});
  }
  /// [out, in] split by its columns; each rank has a summand of the output.
  void add_rows(const std::string& pattern, const Layout& columns, bool has_bias, bool sums_up = true) {
    Plan::Row row{.pattern = pattern, .parameters = {{"weight", columns}}};
    if (has_bias) row.parameters.push_back({"bias", whole_, whole_, summand_});
    if (sums_up) row.outputs = {stream_};
    add(std::move(row));
    add_adapter(pattern, {"weight", columns}, {"weight", whole_, replicate_});
    add_magnitudes(
        pattern, {"magnitude", whole_, replicate_},
        [reduction = axis_reduction(axes_.whole, Replicate{}, axes_.names)](Module& module) -> std::function<void()> {
          auto& adapter = dynamic_cast<LoraAdapter&>(module);
          adapter.set_row_reduction(reduction);
          return [&adapter] { adapter.set_row_reduction(nullptr); };
        });
  }
  /// For the layer with that pattern: the split factor is laid out as the weight, the other one is whole, and every
  /// rank has a summand of its gradient.
  void add_adapter(const std::string& pattern, const Plan::ParameterRow& a, const Plan::ParameterRow& b) {
    if (!has_adapter(config_, pattern.substr(2))) return;
    add({.pattern = pattern + ".lora.a", .parameters = {a}});
    add({.pattern = pattern + ".lora.b", .parameters = {b}});
  }
  /// Where every rank has a summand of the output, each multiplies its own.
  void add_magnitudes(const std::string& pattern, const Plan::ParameterRow& magnitude,
                      const Plan::Prepare& prepare = {}) {
    if (!config_.lora.dora || !has_adapter(config_, pattern.substr(2))) return;
    add({.pattern = pattern + ".lora", .parameters = {magnitude}, .prepare = prepare});
  }

  /// `pattern`: of the attention of some layers.
  void add_attention(const std::string& pattern) {
    const bool is_cross = pattern.ends_with("cross_attention");
    add({.pattern = pattern,
         .inputs = is_cross ? std::vector<std::optional<Layout>>{replicate_, replicate_}
                            : std::vector<std::optional<Layout>>{replicate_}});
    add_columns(pattern + ".query", of_heads(0, config_.query_width()), config_.arch.qkv_bias);
    const bool is_shared = groups_.empty() && config_.num_kv_heads() % axes_.whole.size() != 0;
    for (const char* name : {".key", ".value"}) {
      if (is_shared) {
        add_shared_heads(pattern + name);
      } else {
        add_columns(pattern + name, of_heads(0, config_.kv_width()), config_.arch.qkv_bias);
      }
    }
    if (is_shared) add({.pattern = pattern + ".core", .around = kv_heads(mesh_)});
    add_rows(pattern + ".output", of_heads(1, config_.query_width()), config_.arch.output_bias);
    if (config_.arch.qk_norm == QkNorm::none) return;
    // Every rank has some of the heads, or of their features.
    for (const char* name : {".query_norm", ".key_norm"}) {
      add(config_.arch.qk_norm == QkNorm::head ? shared_norm(pattern + name)
                                               : split_norm_row(config_, axes_.whole, axes_.names, pattern + name));
    }
  }

  /// The biases of distances, of the heads that are here. Other layers share those of the first ones.
  void add_buckets() {
    if (config_.arch.positions != Positions::buckets) return;
    for (const int64_t layer : std::set<int64_t>{0, config_.encoder_layers}) {
      add({.pattern = fmt::format("blocks.{}.attention.core", layer),
           .parameters = {{"bias", of_heads(1, config_.heads)}}});
    }
  }

  /// Keys and values that a group of ranks shares.
  void add_shared_heads(const std::string& pattern) {
    Layout rest = axes_.names.size() == 2 ? Layout{{axes_.names[0], Shard{0}}} : Layout{};
    Layout leaf = rest;
    const auto with = [&](const Layout& layout, const Placement& placement) {
      std::vector<Layout::Entry> entries = layout.entries();
      entries.emplace_back(axes_.names.back(), placement);
      return Layout(std::move(entries));
    };
    rest = with(rest, Invariant{});
    leaf = with(leaf, Replicate{});
    Plan::Row row{.pattern = pattern, .parameters = {{"weight", rest, leaf}}};
    if (config_.arch.qkv_bias) row.parameters.push_back({"bias", rest, leaf});
    add(std::move(row));
    add_adapter(pattern, {"weight", whole_, replicate_}, {"weight", rest, leaf});
    add_magnitudes(pattern, {"magnitude", rest, leaf});
  }

  void add_feed() {
    add({.pattern = "*.mlp", .inputs = {replicate_}});
    if (!config_.moe.is_used()) return add_mlp("*.mlp", config_.hidden_width(), /*sums_up=*/true);
    if (!config_.moe.dense_layers.empty()) add_mlp("*.mlp", config_.dense_width(), /*sums_up=*/false);
    add_experts();
    if (config_.moe.has_shared()) add_mlp("*.mlp.shared", config_.moe.shared_hidden, /*sums_up=*/false);
    if (config_.moe.shared_gate) add({.pattern = "*.mlp.shared_gate", .parameters = {{"weight", whole_, replicate_}}});
    add({.pattern = "*.mlp.dropout", .inputs = {stream_}});  // one reduction for experts and the shared one
  }

  void add_mlp(const std::string& pattern, int64_t hidden, bool sums_up) {
    const bool has_bias = config_.arch.mlp_bias;
    add_columns(pattern + ".up", axes_.shard(0, hidden), has_bias);
    if (config_.arch.is_gated) add_columns(pattern + ".gate", axes_.shard(0, hidden), has_bias);
    add_rows(pattern + ".down", axes_.shard(1, hidden), has_bias, sums_up);
  }

  /// Every rank routes all tokens, and computes its own experts for them. One of them adds the router's losses.
  void add_experts() {
    add({.pattern = "*.mlp.router",
         .parameters = {{"weight", whole_, replicate_}},
         .prepare = [is_first = axes_.whole.coord() == 0](Module& module) -> std::function<void()> {
           auto& router = dynamic_cast<Router&>(module);
           router.set_adds_losses(is_first);
           return [&router] { router.set_adds_losses(true); };
         }});
    add(expert_row(config_, axes_.whole, axes_.on(Shard{0})));
    for (Plan::Row& row : expert_adapter_rows(config_, axes_.on(Shard{0}))) add(std::move(row));
  }

  /// Embedding, head and loss.
  void add_words() {
    const Layout rows = axes_.shard(0, config_.vocabulary);
    const WordParts parts = word_parts(config_, axes_.whole, axes_.names);
    add({.pattern = "embedding.token",
         .parameters = {{"weight", rows}},
         .outputs = {stream_},
         .prepare = parts.embedding});
    if (config_.classes > 0) {  // few, on every rank
      add({.pattern = "head", .inputs = {whole_}});
      return;
    }
    Plan::Row head{.pattern = "head"};
    if (!config_.ties_head()) head.parameters.push_back({"weight", rows});
    if (config_.has_transform()) head.parameters.push_back({"bias", rows});
    if (!head.parameters.empty()) add(std::move(head));
    add({.pattern = "head.loss", .inputs = {replicate_}, .prepare = parts.loss});
    add({.pattern = "head.logits", .inputs = {replicate_}, .outputs = {whole_}});
  }

  /// Weights that every rank uses on its own tokens.
  void add_shared() {
    for (const std::string& name : stream_norms(config_)) {
      if (config_.classes == 0 || !name.starts_with("head")) add(shared_norm(name));
    }
    if (config_.has_transform() && config_.classes == 0) {
      add({.pattern = "head.transform", .parameters = {{"weight", whole_, replicate_}, {"bias", whole_, replicate_}}});
    }
    if (config_.token_types > 0) {
      add({.pattern = "embedding.type", .parameters = {{"weight", whole_, replicate_}}});
    }
    if (config_.arch.positions == Positions::learned) {
      add({.pattern = "embedding.position", .parameters = {{"weight", whole_, replicate_}}});
    }
  }

  /// A norm that every rank applies to something else.
  Plan::Row shared_norm(const std::string& pattern) const {
    Plan::Row norm{.pattern = pattern, .parameters = {{"weight", whole_, replicate_}}};
    if (config_.arch.has_norm_bias()) norm.parameters.push_back({"bias", whole_, replicate_});
    return norm;
  }

  const ModelConfig& config_;
  const Mesh& mesh_;
  Axes axes_;
  Layout stream_;
  bool splits_sequence_;
  std::vector<int64_t> groups_{};  ///< of heads that share keys, by rank; empty: equally many
  Layout whole_ = axes_.on(Invariant{});
  Layout replicate_ = axes_.on(Replicate{});
  Layout summand_ = axes_.on(Partial{});
  Plan plan_;
};

}  // namespace

Plan tensor_1d(const ModelConfig& config, Mesh& mesh, const Tensor1dOptions& options) {
  const MeshAxis axis = mesh[options.axis];
  const int degree = axis.size();
  if (const auto misfit = misfit_of_degree(config, degree)) {
    throw UsageError({"tensor_1d", options.axis, misfit->fact, mesh.where(), misfit->action});
  }
  Axes axes{axis, {options.axis}};
  const auto parts = static_cast<int>(std::gcd<int64_t, int64_t>(config.num_kv_heads(), degree));
  if (parts > 1 && parts < degree && config.heads % degree == 0) {
    axes.names = {options.axis + "_kv", options.axis + "_group"};
    axes.num_minor = degree / parts;
    mesh = mesh.factor(options.axis, {{axes.names[0], parts}, {axes.names[1], degree / parts}});
  }
  return Table(config, mesh, std::move(axes), options.sequence).plan();
}

}  // namespace caravan
