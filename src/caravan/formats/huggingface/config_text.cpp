#include "caravan/formats/huggingface/config_text.h"

#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/hf_reader.h"

namespace caravan {
namespace {

constexpr const char* kExperts = "moe";
constexpr const char* kAdapters = "lora";

MoeConfig read_moe(const ConfigReader& in) {
  MoeConfig moe{.experts = in.count("experts"), .top_k = in.count("top_k")};
  in.require("gates", {"softmax", "sigmoid"}, "");
  in.require("balance", {"sequence", "batch"}, "");
  moe.gates = in.text_or("gates", "") == "softmax" ? Gates::softmax : Gates::sigmoid;
  moe.balance = in.text_or("balance", "") == "sequence" ? BalanceScope::sequence : BalanceScope::batch;
  moe.normalize = in.flag_or("normalize", moe.normalize);
  moe.shared_hidden = in.count_or("shared_hidden", 0);
  moe.shared_gate = in.flag_or("shared_gate", moe.shared_gate);
  moe.capacity = in.real_or("capacity", moe.capacity);
  moe.balance_loss = in.real_or("balance_loss", moe.balance_loss);
  moe.z_loss = in.real_or("z_loss", moe.z_loss);
  return moe;
}

LoraConfig read_lora(const ConfigReader& in) {
  LoraConfig lora{.rank = in.count("rank"), .alpha = in.real_or("alpha", 0), .targets = {}};
  const auto* targets = in.find("targets");
  for (const auto& target : targets != nullptr && targets->is_array() ? *targets : ConfigReader::Json::array()) {
    if (!target.is_string()) in.refuse("targets", "is not a list of strings", "restore the checkpoint");
    lora.targets.push_back(target.get<std::string>());
  }
  return lora;
}

}  // namespace

std::string config_text(const ModelConfig& config, const SpecialTokens& tokens) {
  const MoeConfig& moe = config.moe;
  const LoraConfig& lora = config.lora;
  ModelConfig dense = config;
  dense.moe = {};
  dense.lora = {};
  const std::string text = huggingface_config(dense, tokens);
  if (!moe.is_used() && !lora.is_used()) return text;
  auto out = nlohmann::ordered_json::parse(text);
  if (lora.is_used()) out[kAdapters] = {{"rank", lora.rank}, {"alpha", lora.alpha}, {"targets", lora.targets}};
  if (!moe.is_used()) return out.dump(2) + "\n";
  out[kExperts] = {{"experts", moe.experts},
                   {"top_k", moe.top_k},
                   {"gates", moe.gates == Gates::softmax ? "softmax" : "sigmoid"},
                   {"normalize", moe.normalize},
                   {"shared_hidden", moe.has_shared() ? nlohmann::ordered_json(moe.shared_hidden) : nullptr},
                   {"shared_gate", moe.shared_gate},
                   {"capacity", moe.capacity},
                   {"balance", moe.balance == BalanceScope::sequence ? "sequence" : "batch"},
                   {"balance_loss", moe.balance_loss},
                   {"z_loss", moe.z_loss}};
  return out.dump(2) + "\n";
}

ModelConfig parse_config_text(std::string_view json, std::string_view file) {
  ModelConfig config = parse_huggingface_config(json, file);
  const nlohmann::ordered_json parsed = parse_config_object(json, file);
  const ConfigReader in(parsed, "", file);
  const auto experts = in.below(kExperts);
  const auto adapters = in.below(kAdapters);
  if (!experts && !adapters) return config;
  if (experts) config.moe = read_moe(*experts);
  if (adapters) config.lora = read_lora(*adapters);
  validate_config(config, file);
  return config;
}

}  // namespace caravan
