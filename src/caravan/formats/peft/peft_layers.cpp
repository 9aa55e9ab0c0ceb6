#include "caravan/formats/peft/peft_layers.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/hf_rows.h"
#include "caravan/nn/lora.h"

namespace caravan {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kVectorEnding = ".lora_magnitude_vector";

/// The parameters of experts that have adapters, in the order in which PEFT wraps them: the last one of a layer is the
/// outermost, whose tensors are named after the module itself.
std::vector<PeftLayer> peft_expert_layers(const ModelConfig& config) {
  const std::vector<LinearShape> adapted = adapted_layers(config);
  const auto has_adapter = [&](const std::string& name) {
    return std::ranges::find(adapted, name, &LinearShape::name) != adapted.end();
  };
  const WeightTable& table = architecture_of(config).weights;
  std::vector<PeftLayer> layers;
  for (int64_t block = 0; block < config.layers; ++block) {
    if (!config.has_experts(block)) continue;
    const std::string ours = fmt::format("blocks.{}.mlp.experts.", block);
    const std::string module = fmt::format("{}{}.{}.mlp.experts", table.prefix, table.layers, block);
    const size_t first = layers.size();
    const int64_t experts = config.moe.experts;
    for (PeftLayer layer : {PeftLayer{module + ".gate_up_proj", {ours + "gate", ours + "up"}, module, experts},
                            PeftLayer{module + ".down_proj", {ours + "down"}, module, experts}}) {
      if (std::ranges::none_of(layer.ours, has_adapter)) continue;
      for (size_t i = first; i < layers.size(); ++i) layers[i].module += ".base_layer";
      layers.push_back(std::move(layer));
    }
  }
  return layers;
}

}  // namespace

std::vector<PeftLayer> peft_layers(const ModelConfig& config) {
  TensorShapes shapes;
  for (const LinearShape& layer : linear_layers(config)) {
    if (layer.experts == 0) shapes[layer.name + std::string(kWeight)] = {layer.out, layer.in};
  }
  const auto without_weight = [](const std::string& name) { return name.substr(0, name.size() - kWeight.size()); };
  std::vector<PeftLayer> layers;
  for (const HuggingfaceRow& row : huggingface_table(config, shapes).rows) {
    PeftLayer layer{.theirs = without_weight(row.theirs.front()), .ours = {}, .module = {}};
    layer.module = layer.theirs;
    if (row.form == WeightColumn::Form::by_head) continue;  // of which adapters are no rows and columns
    for (const std::string& ours : row.ours) layer.ours.push_back(without_weight(ours));
    layers.push_back(std::move(layer));
  }
  for (PeftLayer& layer : peft_expert_layers(config)) layers.push_back(std::move(layer));
  return layers;
}

bool peft_names_by_weight(const ModelConfig& config, const PeftLayer& layer) {
  if (layer.experts > 0 || architecture_of(config).name != "qwen3_moe") return false;
  return std::ranges::any_of(std::array{".gate_proj", ".up_proj", ".down_proj"},
                             [&](const char* ending) { return layer.theirs.ends_with(ending); });
}

void check_peft_layers(const ModelConfig& config) {
  std::set<std::string> adapted;
  for (const LinearShape& layer : adapted_layers(config)) adapted.insert(layer.name);
  for (const PeftLayer& layer : peft_layers(config)) {
    for (const std::string& ours : layer.ours) {
      if (adapted.erase(ours) == 0 || !config.lora.dora || !peft_names_by_weight(config, layer)) continue;
      throw UsageError({"export", ours, "has an adapter with magnitudes, and PEFT has no DoRA of it in this model", "",
                        "export the merged weights, without --adapter, or train with lora.dora = false"});
    }
  }
  if (adapted.empty()) return;
  throw UsageError({"export", *adapted.begin(), "has an adapter, and transformers has it head by head in one layer", "",
                    "export the merged weights, without --adapter, or train with lora.targets = [\"mlp.*\"]"});
}

namespace {

void add_saved(std::vector<PeftWhole>& wholes, const ModelConfig& config) {
  const TensorShapes shapes{{"embedding.token.weight", {1, 1}}, {"head.weight", {1, 1}}};
  for (const HuggingfaceRow& row : huggingface_table(config, shapes).rows) {
    const bool is_head = row.ours.front() == "head.weight";
    const std::string saved = is_head ? "head" : "embedding";
    if (!config.lora.saves(saved)) continue;
    const std::string& theirs = row.theirs.front();
    const std::string ours = is_head && config.ties_head() ? "embedding.token.weight" : row.ours.front();
    const std::string layer = theirs.substr(0, theirs.size() - kWeight.size());
    wholes.push_back({std::string(kPrefix) + theirs, ours, last_name(layer), saved});
  }
}

}  // namespace

std::vector<PeftWhole> peft_wholes(const ModelConfig& config) {
  std::vector<PeftWhole> wholes;
  if (!config.lora.saved.empty()) add_saved(wholes, config);
  if (config.classes == 0) return wholes;
  // Of such rows only the names count.
  const TensorShapes shapes{
      {"head.weight", {1, 1}}, {"head.bias", {1}}, {"head.transform.weight", {1, 1}}, {"head.transform.bias", {1}}};
  const HuggingfaceTable table = huggingface_table(config, shapes);
  for (const HuggingfaceRow& row : table.rows) {
    if (!is_saved_with_adapters(config, row.ours.front())) continue;
    if (!config.has_transform() && row.ours.front() != "head.weight") continue;
    const std::string& theirs = row.theirs.front();
    const std::string own = theirs.starts_with(table.prefix) ? theirs.substr(table.prefix.size()) : theirs;
    wholes.push_back({std::string(kPrefix) + theirs, row.ours.front(), own.substr(0, own.find('.'))});
  }
  return wholes;
}

std::string peft_tensor(const std::string& module, char factor) {
  return fmt::format("{}{}.lora_{}{}", kPrefix, module, factor, kWeight);
}

std::string peft_magnitudes(const std::string& module) { return fmt::format("{}{}{}", kPrefix, module, kVectorEnding); }

std::optional<std::pair<std::string, char>> parse_peft_tensor(std::string_view name) {
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  if (name.ends_with(kVectorEnding)) {
    return std::pair(std::string(name.substr(0, name.size() - kVectorEnding.size())), kPeftVector);
  }
  for (const char factor : {'A', 'B'}) {
    const std::string ending = fmt::format(".lora_{}{}", factor, kWeight);
    if (name.ends_with(ending)) return std::pair(std::string(name.substr(0, name.size() - ending.size())), factor);
  }
  return std::nullopt;
}

bool is_of_single_expert(std::string_view name) {
  constexpr std::string_view kParent = ".experts.";
  const size_t begin = name.find(kParent);
  if (begin == std::string_view::npos) return false;
  const std::string_view number = name.substr(begin + kParent.size());
  const size_t end = number.find_first_not_of("0123456789");
  return end != 0 && end != std::string_view::npos && number[end] == '.';
}

}  // namespace caravan
