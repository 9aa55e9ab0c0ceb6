#include "caravan/nn/config_text.h"

#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/nn/hf_reader.h"

namespace caravan {
namespace {

constexpr const char* kExperts = "moe";

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

}  // namespace

std::string config_text(const ModelConfig& config, const SpecialTokens& tokens) {
  const MoeConfig& moe = config.moe;
  ModelConfig dense = config;
  dense.moe = {};
  const std::string text = huggingface_config(dense, tokens);
  if (!moe.is_used()) return text;
  auto out = nlohmann::ordered_json::parse(text);
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
  const auto experts = ConfigReader(parsed, "", file).below(kExperts);
  if (!experts) return config;
  config.moe = read_moe(*experts);
  validate_config(config, file);
  return config;
}

}  // namespace caravan
