#include "caravan/nn/hf_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string_view>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/nn/model.h"

namespace caravan {
namespace {

/// One Hugging Face tensor: ours concatenated on dim 0, then transposed.
struct NamePair {
  std::string_view theirs;
  std::array<std::string_view, 3> ours;  ///< one, or three that theirs fuses
  bool is_transposed = false;
};

/// The tensors before, in and after the layers. Names in a layer are relative to `blocks.N.` (ours) and e.g. `h.N.`
/// (theirs). A slash marks a name outside their base model, which has no prefix: the head.
struct Table {
  std::string_view prefix;
  std::string_view layers;
  std::span<const NamePair> first;
  std::span<const NamePair> layer;
  std::span<const NamePair> last;
};

constexpr std::string_view kTheirHead = "/lm_head.weight";
constexpr std::string_view kOurHead = "head.weight";

constexpr std::array<NamePair, 2> kGpt2First{{{"wte.weight", {"embedding.token.weight"}},  //
                                              {"wpe.weight", {"embedding.position.weight"}}}};
constexpr std::array<NamePair, 12> kGpt2Layer{{
    {"ln_1.weight", {"attention_norm.weight"}},
    {"ln_1.bias", {"attention_norm.bias"}},
    {"attn.c_attn.weight", {"attention.query.weight", "attention.key.weight", "attention.value.weight"}, true},
    {"attn.c_attn.bias", {"attention.query.bias", "attention.key.bias", "attention.value.bias"}},
    {"attn.c_proj.weight", {"attention.output.weight"}, true},
    {"attn.c_proj.bias", {"attention.output.bias"}},
    {"ln_2.weight", {"mlp_norm.weight"}},
    {"ln_2.bias", {"mlp_norm.bias"}},
    {"mlp.c_fc.weight", {"mlp.up.weight"}, true},
    {"mlp.c_fc.bias", {"mlp.up.bias"}},
    {"mlp.c_proj.weight", {"mlp.down.weight"}, true},
    {"mlp.c_proj.bias", {"mlp.down.bias"}},
}};
constexpr std::array<NamePair, 3> kGpt2Last{
    {{"ln_f.weight", {"head.norm.weight"}}, {"ln_f.bias", {"head.norm.bias"}}, {kTheirHead, {kOurHead}}}};

constexpr std::array<NamePair, 1> kLlamaFirst{{{"embed_tokens.weight", {"embedding.token.weight"}}}};
constexpr std::array<NamePair, 9> kLlamaLayer{{
    {"input_layernorm.weight", {"attention_norm.weight"}},
    {"self_attn.q_proj.weight", {"attention.query.weight"}},
    {"self_attn.k_proj.weight", {"attention.key.weight"}},
    {"self_attn.v_proj.weight", {"attention.value.weight"}},
    {"self_attn.o_proj.weight", {"attention.output.weight"}},
    {"post_attention_layernorm.weight", {"mlp_norm.weight"}},
    {"mlp.gate_proj.weight", {"mlp.gate.weight"}},
    {"mlp.up_proj.weight", {"mlp.up.weight"}},
    {"mlp.down_proj.weight", {"mlp.down.weight"}},
}};
constexpr std::array<NamePair, 2> kLlamaLast{{{"norm.weight", {"head.norm.weight"}}, {kTheirHead, {kOurHead}}}};

constexpr Table kGpt2{"transformer.", "h", kGpt2First, kGpt2Layer, kGpt2Last};
constexpr Table kLlama{"model.", "layers", kLlamaFirst, kLlamaLayer, kLlamaLast};

/// Endings of tensors in older files that are not parameters.
constexpr std::array<std::string_view, 3> kNotParameters{".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};

const Table& table_of(ModelKind kind) { return kind == ModelKind::gpt2 ? kGpt2 : kLlama; }

/// A NamePair with full names.
struct Row {
  std::string theirs;
  std::vector<std::string> ours;
  bool is_transposed;
};

std::vector<Row> rows_of(const ModelConfig& config) {
  const Table& table = table_of(config.kind);
  std::vector<Row> rows;
  const auto add = [&](const NamePair& entry, const std::string& their_layer, const std::string& our_layer) {
    if (config.tie_embeddings && entry.theirs == kTheirHead) return;
    const bool is_outside = entry.theirs.front() == '/';
    Row row{is_outside ? std::string(entry.theirs.substr(1))
                       : fmt::format("{}{}{}", table.prefix, their_layer, entry.theirs),
            {},
            entry.is_transposed};
    for (const std::string_view name : entry.ours) {
      if (!name.empty()) row.ours.push_back(fmt::format("{}{}", our_layer, name));
    }
    rows.push_back(std::move(row));
  };
  for (const NamePair& entry : table.first) add(entry, "", "");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const NamePair& entry : table.layer) {
      add(entry, fmt::format("{}.{}.", table.layers, layer), fmt::format("blocks.{}.", layer));
    }
  }
  for (const NamePair& entry : table.last) add(entry, "", "");
  return rows;
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes our_shapes(const ModelConfig& config) {
  Shapes shapes;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) shapes[parameter->name()] = parameter->global_shape();
  return shapes;
}

std::vector<int64_t> their_shape(const Row& row, const Shapes& ours) {
  std::vector<int64_t> shape = ours.at(row.ours.front());
  for (size_t i = 1; i < row.ours.size(); ++i) shape[0] += ours.at(row.ours[i])[0];
  if (row.is_transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  const std::string shown = join(std::span(names).first(std::min(names.size(), kShown)));
  return names.size() <= kShown ? shown : fmt::format("{} and {} more", shown, names.size() - kShown);
}

/// The tensors by name. Throws DataError if they differ from `wanted`.
std::map<std::string, at::Tensor> checked(std::string_view op, const NamedTensors& tensors, const Shapes& wanted) {
  std::map<std::string, at::Tensor> found;
  std::vector<std::string> unexpected;
  std::vector<std::string> missing;
  std::vector<std::string> other_shape;
  for (const auto& [name, tensor] : tensors) {
    const auto want = wanted.find(name);
    if (want == wanted.end() || !found.emplace(name, tensor).second) {
      unexpected.push_back(name);
    } else if (tensor.sizes() != at::IntArrayRef(want->second)) {
      other_shape.push_back(fmt::format("{} is [{}], not [{}]", name, join(tensor.sizes()), join(want->second)));
    }
  }
  for (const auto& [name, shape] : wanted) {
    if (!found.contains(name)) missing.push_back(name);
  }
  std::string fact;
  const auto say = [&](std::string_view what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    fact += fmt::format("{}{} {}: {}", fact.empty() ? "" : "; ", names.size(), what, some_of(names));
  };
  say("missing", missing);
  say("unexpected", unexpected);
  say("of a different shape", other_shape);
  if (fact.empty()) return found;
  throw DataError({std::string(op), "tensors", fact, "", "use the weights of the model that config.json describes"});
}

/// Their name with the prefix, as in the table; "" for a tensor that is not a parameter.
std::string spelled(const Table& table, const std::string& name) {
  if (std::any_of(kNotParameters.begin(), kNotParameters.end(), [&](auto end) { return name.ends_with(end); }))
    return "";
  if (name.starts_with(table.prefix) || name == kTheirHead.substr(1)) return name;
  return fmt::format("{}{}", table.prefix, name);
}

void check_tied_head(const at::Tensor& head, const at::Tensor& embedding) {
  if (head.is_meta() || (head.sizes() == embedding.sizes() && head.scalar_type() == embedding.scalar_type() &&
                         at::equal(head, embedding))) {
    return;
  }
  throw DataError({"import", std::string(kTheirHead.substr(1)), "differs from the embedding that it is tied to", "",
                   "set tie_word_embeddings to false in config.json"});
}

}  // namespace

NamedTensors to_huggingface(const ModelConfig& config, const NamedTensors& ours) {
  const auto found = checked("export", ours, our_shapes(config));
  NamedTensors theirs;
  for (const Row& row : rows_of(config)) {
    std::vector<at::Tensor> parts;
    for (const std::string& name : row.ours) parts.push_back(found.at(name));
    const at::Tensor whole = parts.size() == 1 ? parts.front() : at::cat(parts);
    theirs.emplace_back(row.theirs, row.is_transposed ? whole.t().contiguous() : whole);
  }
  return theirs;
}

NamedTensors from_huggingface(const ModelConfig& config, const NamedTensors& theirs) {
  const Table& table = table_of(config.kind);
  const std::vector<Row> rows = rows_of(config);
  const Shapes shapes = our_shapes(config);
  Shapes wanted;
  for (const Row& row : rows) wanted[row.theirs] = their_shape(row, shapes);
  NamedTensors parameters;
  at::Tensor tied_head;
  for (const auto& [name, tensor] : theirs) {
    const std::string spelling = spelled(table, name);
    if (config.tie_embeddings && spelling == kTheirHead.substr(1)) {
      tied_head = tensor;
    } else if (!spelling.empty()) {
      parameters.emplace_back(spelling, tensor);
    }
  }
  const auto found = checked("import", parameters, wanted);
  std::map<std::string, at::Tensor> ours;
  for (const Row& row : rows) {
    const at::Tensor& given = found.at(row.theirs);
    const at::Tensor whole = row.is_transposed ? given.t() : given;
    int64_t first = 0;
    for (const std::string& name : row.ours) {
      const int64_t size = shapes.at(name).front();
      ours[name] = whole.narrow(0, first, size).contiguous();
      first += size;
    }
  }
  if (tied_head.defined()) check_tied_head(tied_head, ours.at("embedding.token.weight"));
  NamedTensors ordered;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) {
    ordered.emplace_back(parameter->name(), ours.at(parameter->name()));
  }
  return ordered;
}

}  // namespace caravan
