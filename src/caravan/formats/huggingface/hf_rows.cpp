#include "caravan/formats/huggingface/hf_rows.h"

#include <array>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "caravan/formats/huggingface/hf_form.h"

namespace caravan {
namespace {

/// A HuggingfaceRow. It does not apply to a model without ours.
struct NamePair {
  std::string_view theirs;               ///< one; with a star, one of the same shape for each expert
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
  std::span<const NamePair> mlp;  ///< after `layer`
  std::span<const NamePair> last;
};

constexpr std::array<NamePair, 2> kGpt2First{{{"wte.weight", {"embedding.token.weight"}},  //
                                              {"wpe.weight", {"embedding.position.weight"}}}};
constexpr std::array<NamePair, 8> kGpt2Layer{{
    {"ln_1.weight", {"attention_norm.weight"}},
    {"ln_1.bias", {"attention_norm.bias"}},
    {"attn.c_attn.weight", {"attention.query.weight", "attention.key.weight", "attention.value.weight"}, true},
    {"attn.c_attn.bias", {"attention.query.bias", "attention.key.bias", "attention.value.bias"}},
    {"attn.c_proj.weight", {"attention.output.weight"}, true},
    {"attn.c_proj.bias", {"attention.output.bias"}},
    {"ln_2.weight", {"mlp_norm.weight"}},
    {"ln_2.bias", {"mlp_norm.bias"}},
}};
constexpr std::array<NamePair, 4> kGpt2Mlp{{
    {"mlp.c_fc.weight", {"mlp.up.weight"}, true},
    {"mlp.c_fc.bias", {"mlp.up.bias"}},
    {"mlp.c_proj.weight", {"mlp.down.weight"}, true},
    {"mlp.c_proj.bias", {"mlp.down.bias"}},
}};
constexpr std::array<NamePair, 3> kGpt2Last{
    {{"ln_f.weight", {"head.norm.weight"}}, {"ln_f.bias", {"head.norm.bias"}}, {"/lm_head.weight", {"head.weight"}}}};

constexpr std::array<NamePair, 1> kLlamaFirst{{{"embed_tokens.weight", {"embedding.token.weight"}}}};
constexpr std::array<NamePair, 9> kLlamaLayer{{
    {"input_layernorm.weight", {"attention_norm.weight"}},
    {"self_attn.q_proj.weight", {"attention.query.weight"}},
    {"self_attn.q_proj.bias", {"attention.query.bias"}},
    {"self_attn.k_proj.weight", {"attention.key.weight"}},
    {"self_attn.k_proj.bias", {"attention.key.bias"}},
    {"self_attn.v_proj.weight", {"attention.value.weight"}},
    {"self_attn.v_proj.bias", {"attention.value.bias"}},
    {"self_attn.o_proj.weight", {"attention.output.weight"}},
    {"post_attention_layernorm.weight", {"mlp_norm.weight"}},
}};
constexpr std::array<NamePair, 3> kLlamaMlp{{
    {"mlp.gate_proj.weight", {"mlp.gate.weight"}},
    {"mlp.up_proj.weight", {"mlp.up.weight"}},
    {"mlp.down_proj.weight", {"mlp.down.weight"}},
}};
constexpr std::array<NamePair, 4> kMixtralMlp{{
    {"block_sparse_moe.gate.weight", {"mlp.router.weight"}},
    {"block_sparse_moe.experts.*.w1.weight", {"mlp.experts.gate"}},
    {"block_sparse_moe.experts.*.w3.weight", {"mlp.experts.up"}},
    {"block_sparse_moe.experts.*.w2.weight", {"mlp.experts.down"}},
}};
constexpr std::array<NamePair, 8> kQwen2MoeMlp{{
    {"mlp.gate.weight", {"mlp.router.weight"}},
    {"mlp.experts.*.gate_proj.weight", {"mlp.experts.gate"}},
    {"mlp.experts.*.up_proj.weight", {"mlp.experts.up"}},
    {"mlp.experts.*.down_proj.weight", {"mlp.experts.down"}},
    {"mlp.shared_expert.gate_proj.weight", {"mlp.shared.gate.weight"}},
    {"mlp.shared_expert.up_proj.weight", {"mlp.shared.up.weight"}},
    {"mlp.shared_expert.down_proj.weight", {"mlp.shared.down.weight"}},
    {"mlp.shared_expert_gate.weight", {"mlp.shared_gate.weight"}},
}};
constexpr std::array<NamePair, 2> kLlamaLast{
    {{"norm.weight", {"head.norm.weight"}}, {"/lm_head.weight", {"head.weight"}}}};

constexpr Table kGpt2{"transformer.", "h", kGpt2First, kGpt2Layer, kGpt2Mlp, kGpt2Last};
constexpr Table kLlama{"model.", "layers", kLlamaFirst, kLlamaLayer, kLlamaMlp, kLlamaLast};
constexpr Table kMixtral{"model.", "layers", kLlamaFirst, kLlamaLayer, kMixtralMlp, kLlamaLast};
constexpr Table kQwen2Moe{"model.", "layers", kLlamaFirst, kLlamaLayer, kQwen2MoeMlp, kLlamaLast};

const Table& table_of(const ModelConfig& config) {
  switch (huggingface_form(config)) {
    case HuggingfaceForm::gpt2: return kGpt2;
    case HuggingfaceForm::llama:
    case HuggingfaceForm::qwen2: return kLlama;
    case HuggingfaceForm::mixtral: return kMixtral;
    case HuggingfaceForm::qwen2_moe: break;
  }
  return kQwen2Moe;
}

/// The row of a NamePair whose names follow `prefix` (theirs) and `our_prefix`.
HuggingfaceRow full_row(const NamePair& pair, const std::string& prefix, const std::string& our_prefix,
                        int64_t experts) {
  const bool is_outside = pair.theirs.front() == '/';
  const std::string theirs = is_outside ? std::string(pair.theirs.substr(1)) : fmt::format("{}{}", prefix, pair.theirs);
  HuggingfaceRow row{{}, {}, pair.is_transposed};
  const size_t star = theirs.find('*');
  if (star == std::string::npos) {
    row.theirs.push_back(theirs);
  } else {
    for (int64_t expert = 0; expert < experts; ++expert) {
      row.theirs.push_back(fmt::format("{}{}{}", theirs.substr(0, star), expert, theirs.substr(star + 1)));
    }
  }
  for (const std::string_view name : pair.ours) {
    if (!name.empty()) row.ours.push_back(fmt::format("{}{}", our_prefix, name));
  }
  return row;
}

}  // namespace

HuggingfaceTable huggingface_table(const ModelConfig& config, const TensorShapes& ours) {
  const Table& table = table_of(config);
  HuggingfaceTable all{std::string(table.prefix), {}};
  const auto add = [&](std::span<const NamePair> pairs, const std::string& prefix, const std::string& our_prefix) {
    for (const NamePair& pair : pairs) {
      HuggingfaceRow row = full_row(pair, prefix, our_prefix, config.moe.experts);
      if (ours.contains(row.ours.front())) all.rows.push_back(std::move(row));
    }
  };
  add(table.first, all.prefix, "");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = fmt::format("{}{}.{}.", table.prefix, table.layers, layer);
    const std::string our_prefix = fmt::format("blocks.{}.", layer);
    add(table.layer, prefix, our_prefix);
    add(table.mlp, prefix, our_prefix);
  }
  add(table.last, all.prefix, "");
  return all;
}

}  // namespace caravan
