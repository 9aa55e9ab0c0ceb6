#include "caravan/checkpoint/peft_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/base/json_reader.h"
#include "caravan/checkpoint/safetensors.h"
#include "caravan/nn/hf_rows.h"
#include "caravan/nn/lora.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kWeight = ".weight";

[[noreturn]] void refuse_adapter(const fs::path& file, const std::string& fact, const std::string& action) {
  throw DataError({"adapter", file.string(), fact, "", action});
}

std::string last_name(const std::string& name) { return name.substr(name.rfind('.') + 1); }

json read_adapter_json(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) {
    refuse_adapter(file, "no such file", "name a folder that PEFT's save_pretrained wrote");
  }
  const MappedFile mapped(file, "adapter");
  check_json_depth(mapped.text(), file.string(), "adapter");
  json root = json::parse(mapped.text(), nullptr, false);
  if (!root.is_object()) refuse_adapter(file, "is no JSON object", "restore the file");
  return root;
}

/// What would make the adapters compute something else than W x + scale B A x.
void refuse_other_methods(const json& root, const fs::path& file) {
  if (root.value("peft_type", "") != "LORA") {
    refuse_adapter(file, fmt::format("peft_type is {}", root.value("peft_type", "missing")),
                   "only \"LORA\" is supported");
  }
  const auto is_set = [&](const char* key) {
    const auto found = root.find(key);
    if (found == root.end() || found->is_null()) return false;
    if (found->is_boolean()) return found->get<bool>();
    return !found->empty() && *found != "none" && *found != false;
  };
  for (const char* key : {"use_dora", "bias", "lora_bias", "modules_to_save", "layer_replication", "use_qalora",
                          "trainable_token_indices", "target_parameters", "alora_invocation_tokens"}) {
    if (is_set(key)) refuse_adapter(file, fmt::format("sets {} to {}", key, root[key].dump()), "train without it");
  }
}

/// Their layer that a tensor is the factor A or B of; nothing for another name.
std::optional<std::pair<std::string, char>> parse_tensor(std::string_view name) {
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (const char factor : {'A', 'B'}) {
    const std::string ending = fmt::format(".lora_{}{}", factor, kWeight);
    if (name.ends_with(ending)) return std::pair(std::string(name.substr(0, name.size() - ending.size())), factor);
  }
  return std::nullopt;
}

/// The value of a pattern that names the layer or its end, else `absent`.
double by_pattern(const json& root, const char* key, const std::string& layer, double absent, const fs::path& file) {
  const auto patterns = root.find(key);
  if (patterns == root.end() || !patterns->is_object()) return absent;
  for (const auto& [pattern, value] : patterns->items()) {
    if (pattern.find_first_of("*+?[]()|^$\\") != std::string::npos) {
      refuse_adapter(file, fmt::format("{} has the regular expression '{}'", key, pattern), "name the layers");
    }
    if (!value.is_number())
      refuse_adapter(file, fmt::format("{} of '{}' is no number", key, pattern), "restore the file");
    if (layer == pattern || layer.ends_with("." + pattern)) return value.get<double>();
  }
  return absent;
}

double number(const json& root, const char* key, const fs::path& file) {
  const auto found = root.find(key);
  if (found == root.end() || !found->is_number() || found->get<double>() <= 0) {
    refuse_adapter(file, fmt::format("{} is no number above 0", key), "restore the file");
  }
  return found->get<double>();
}

/// Names of our layers, as short as they can be: "query" where all blocks have it.
std::vector<std::string> short_names(const std::set<std::string>& layers, const ModelConfig& model) {
  std::vector<std::string> names;
  std::set<std::string> done;
  for (const LinearShape& layer : linear_layers(model)) {
    if (!layers.contains(layer.name)) continue;
    const std::string ending = layer.name.substr(layer.name.find('.', layer.name.find('.') + 1) + 1);
    const auto count = std::ranges::count_if(layers, [&](const auto& name) { return name.ends_with("." + ending); });
    const std::string name = count == model.layers ? ending : layer.name;
    if (done.insert(name).second) names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<PeftLayer> peft_layers(const ModelConfig& config) {
  TensorShapes shapes;
  for (const LinearShape& layer : linear_layers(config)) {
    shapes[layer.name + std::string(kWeight)] = {layer.out, layer.in};
  }
  const auto without_weight = [](const std::string& name) { return name.substr(0, name.size() - kWeight.size()); };
  std::vector<PeftLayer> layers;
  for (const HuggingfaceRow& row : huggingface_table(config, shapes).rows) {
    PeftLayer layer{without_weight(row.theirs.front()), {}};
    for (const std::string& ours : row.ours) layer.ours.push_back(without_weight(ours));
    layers.push_back(std::move(layer));
  }
  return layers;
}

std::string peft_tensor(const std::string& theirs, char factor) {
  return fmt::format("{}{}.lora_{}{}", kPrefix, theirs, factor, kWeight);
}

PeftConfig read_peft_config(const fs::path& folder, const ModelConfig& model) {
  const fs::path file = folder / kPeftConfig;
  const json root = read_adapter_json(file);
  refuse_other_methods(root, file);
  const bool has_root = root.contains("use_rslora") && root["use_rslora"] == true;
  const auto scale = [&](double alpha, double rank) { return alpha / (has_root ? std::sqrt(rank) : rank); };
  const double r = number(root, "r", file);
  const double alpha = number(root, "lora_alpha", file);

  std::map<std::string, std::vector<std::string>> known;
  for (const PeftLayer& layer : peft_layers(model)) known[layer.theirs] = layer.ours;
  const SafetensorsFile weights(folder / kPeftWeights);
  PeftConfig config{.lora = {.rank = 0, .targets = {}}, .layers = {}};
  std::set<std::string> ours;
  for (const auto& [name, entry] : weights.tensors()) {
    const auto parsed = parse_tensor(name);
    if (!parsed || !known.contains(parsed->first)) {
      refuse_adapter(weights.path(), fmt::format("{} belongs to no linear layer of the model", name),
                     "use adapters of this model's linear layers alone");
    }
    const auto& [theirs, factor] = *parsed;
    if (entry.shape.size() != 2 || !weights.has(peft_tensor(theirs, factor == 'A' ? 'B' : 'A'))) {
      refuse_adapter(weights.path(), fmt::format("{} is no matrix, or lacks its other factor", name),
                     "restore the file");
    }
    if (factor != 'A') continue;
    const int64_t rank = entry.shape.front();
    config.lora.rank = std::max(config.lora.rank, rank);
    config.layers.push_back(
        {theirs, scale(by_pattern(root, "alpha_pattern", theirs, alpha, file), static_cast<double>(rank))});
    ours.insert(known[theirs].begin(), known[theirs].end());
  }
  if (ours.empty()) refuse_adapter(weights.path(), "has no adapter", "name a folder that PEFT's save_pretrained wrote");
  config.lora.alpha = scale(alpha, r) * static_cast<double>(config.lora.rank);
  config.lora.targets = short_names(ours, model);
  return config;
}

std::string peft_config(const ModelConfig& config, const std::string& base_model) {
  const LoraConfig& lora = config.lora;
  std::set<std::string> adapted;
  for (const LinearShape& layer : adapted_layers(config)) adapted.insert(layer.name);
  const std::vector<PeftLayer> layers = peft_layers(config);
  std::vector<std::string> targets;
  nlohmann::ordered_json ranks = nlohmann::ordered_json::object(), alphas = ranks;
  for (const PeftLayer& layer : layers) {
    const auto parts = std::ranges::count_if(layer.ours, [&](const auto& name) { return adapted.contains(name); });
    if (parts == 0) continue;
    targets.push_back(layer.theirs);
    if (parts == 1) continue;  // else one adapter with the ranks of all
    ranks[layer.theirs] = parts * lora.rank;
    alphas[layer.theirs] = static_cast<double>(parts) * lora.alpha;
  }
  std::set<std::string> endings;
  for (const std::string& target : targets) endings.insert(last_name(target));
  const auto num_such =
      std::ranges::count_if(layers, [&](const PeftLayer& layer) { return endings.contains(last_name(layer.theirs)); });
  // By their last names, as people write them, if these mean the same layers.
  if (num_such == static_cast<int64_t>(targets.size())) targets.assign(endings.begin(), endings.end());
  const nlohmann::ordered_json root{{"peft_type", "LORA"},
                                    {"task_type", "CAUSAL_LM"},
                                    {"base_model_name_or_path", base_model},
                                    {"r", lora.rank},
                                    {"lora_alpha", lora.alpha},
                                    {"lora_dropout", 0.0},
                                    {"target_modules", targets},
                                    {"rank_pattern", ranks},
                                    {"alpha_pattern", alphas},
                                    {"fan_in_fan_out", config.kind == ModelKind::gpt2},
                                    {"bias", "none"},
                                    {"inference_mode", true}};
  return root.dump(2) + "\n";
}

}  // namespace caravan
