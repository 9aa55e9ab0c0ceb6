#include "caravan/formats/huggingface/hf_form.h"

#include <array>
#include <string>
#include <utility>

#include "caravan/base/error.h"

namespace caravan {
namespace {

constexpr std::array<std::string_view, 5> kModelTypes{"gpt2", "llama", "qwen2", "mixtral", "qwen2_moe"};

[[noreturn]] void refuse_form(const char* key, const std::string& fact, std::string action) {
  throw UsageError({"export", key, fact + ": Hugging Face's transformers has no such model", "", std::move(action)});
}

/// The form of a Llama with experts.
HuggingfaceForm form_of_experts(const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  if (moe.gates != Gates::softmax) {
    refuse_form("moe.gates", "gates that are not a softmax", "train with moe.gates = \"softmax\", as in mixtral");
  }
  if (moe.has_shared()) {
    if (moe.shared_gate) return HuggingfaceForm::qwen2_moe;
    refuse_form("moe.shared_gate", "a shared expert without a gate", "train with moe.shared_gate = true: qwen2_moe");
  }
  if (!moe.normalize) {
    refuse_form("moe.normalize", "gates that are not divided by their sum, and no shared expert",
                "train with moe.normalize = true (mixtral), or with a gated shared expert (qwen2_moe)");
  }
  if (config.qkv_bias) {
    refuse_form("model.qkv_bias", "biases of queries, keys and values, and no shared expert",
                "train without the biases (mixtral), or with a gated shared expert (qwen2_moe)");
  }
  return HuggingfaceForm::mixtral;
}

}  // namespace

std::string_view name(HuggingfaceForm form) noexcept { return kModelTypes[static_cast<size_t>(form)]; }

std::optional<HuggingfaceForm> huggingface_form(std::string_view model_type) noexcept {
  for (size_t i = 0; i < kModelTypes.size(); ++i) {
    if (kModelTypes[i] == model_type) return static_cast<HuggingfaceForm>(i);
  }
  return std::nullopt;
}

HuggingfaceForm huggingface_form(const ModelConfig& config) {
  const bool is_gpt2 = config.kind == ModelKind::gpt2;
  if (!config.moe.is_used()) {
    if (is_gpt2) return HuggingfaceForm::gpt2;
    return config.qkv_bias ? HuggingfaceForm::qwen2 : HuggingfaceForm::llama;
  }
  if (!is_gpt2) return form_of_experts(config);
  refuse_form("model.kind", "a GPT-2 with experts", "train with model.kind = \"llama\", as in mixtral");
}

}  // namespace caravan
