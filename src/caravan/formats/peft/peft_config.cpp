#include "caravan/formats/peft/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/formats/huggingface/hf_rows.h"
#include "caravan/formats/safetensors/safetensors.h"
#include "caravan/nn/lora.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using PeftJson = nlohmann::ordered_json;  // PEFT takes the first of several patterns that match a layer

constexpr std::string_view kAnyParent = ".*\\.";

[[noreturn]] void refuse_adapter(const fs::path& file, const std::string& fact, const std::string& action) {
  throw DataError({"adapter", file.string(), fact, "", action});
}

PeftJson read_adapter_json(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) {
    refuse_adapter(file, "no such file", "name a folder that PEFT's save_pretrained wrote");
  }
  const MappedFile mapped(file, "adapter");
  check_json_depth(mapped.text(), file.string(), "adapter");
  PeftJson root = PeftJson::parse(mapped.text(), nullptr, false);
  if (!root.is_object()) {
    refuse_adapter(file,
                   "is not a JSON object that can be read: it is damaged, or has a number that JSON does not have",
                   "restore the file");
  }
  return root;
}

/// The value of a key for a message.
std::string shown(const PeftJson& root, const char* key) {
  const auto found = root.find(key);
  return found == root.end() ? "missing" : found->dump(-1, ' ', false, PeftJson::error_handler_t::replace);
}

/// Keys with arbitrary values: they say how the adapters were trained or which layers have one, which the tensors show.
constexpr std::array kNoMatter{"auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode",
                               "target_modules", "exclude_modules", "layers_pattern", "layers_to_transform",
                               "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
                               "qalora_group_size", "runtime_config", "peft_version",
                               // Only says how the base stores its weights.
                               "fan_in_fan_out"};
/// Keys that are read below.
constexpr std::array kRead{"peft_type",         "r",
                           "lora_alpha",        "use_rslora",
                           "rank_pattern",      "alpha_pattern",
                           "init_lora_weights", "modules_to_save",
                           "use_dora",          "ensure_weight_tying",
                           "lora_dropout",      "target_parameters"};

bool is_set(const PeftJson& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  return !value.empty() && value != "none" && value != "";
}

/// Refuses what would make the adapters compute anything other than LoRA and DoRA do. Unknown keys are refused too:
/// later versions of PEFT have other methods.
void refuse_other_methods(const PeftJson& root, const fs::path& file) {
  if (shown(root, "peft_type") != "\"LORA\"") {
    refuse_adapter(file, "peft_type is " + shown(root, "peft_type"), "only \"LORA\" is supported");
  }
  for (const auto& [key, value] : root.items()) {
    if (std::ranges::find(kNoMatter, key) != kNoMatter.end() || std::ranges::find(kRead, key) != kRead.end()) continue;
    if (is_set(value)) {
      refuse_adapter(file, fmt::format("sets {} to {}", key, shown(root, key.c_str())),
                     "train without it, or remove the key if it does not change what the adapters compute");
    }
  }
}

/// Some initialisations move a part of the base's weights into the adapters, which then fit only the rest of the base.
void refuse_other_base(const PeftJson& root, const fs::path& file) {
  const auto found = root.find("init_lora_weights");
  if (found == root.end() || found->is_boolean() || found->is_null()) return;
  constexpr std::array kKeepTheBase{"gaussian", "eva", "orthogonal"};
  if (std::ranges::any_of(kKeepTheBase, [&](const char* name) { return *found == name; })) return;
  refuse_adapter(
      file,
      fmt::format("init_lora_weights is {}: such adapters change the weights of their base, or are of a kind "
                  "that is not known",
                  shown(root, "init_lora_weights")),
      "save them with PEFT's save_pretrained(.., path_initial_model_for_weight_conversion=..), which makes "
      "them adapters of the base as it was, or merge them into their own base");
}

double positive(const PeftJson& value, const std::string& what, const fs::path& file) {
  const double number = value.is_number() ? value.get<double>() : 0;
  // In fp32, in which adapters are added.
  if (number > 0 && number <= std::numeric_limits<float>::max()) return number;
  refuse_adapter(file,
                 fmt::format("{} is not a number above 0 that fp32 has: {}", what,
                             value.dump(-1, ' ', false, PeftJson::error_handler_t::replace)),
                 "restore the file");
}

double number(const PeftJson& root, const char* key, const fs::path& file) {
  const auto found = root.find(key);
  return positive(found == root.end() ? PeftJson() : *found, key, file);
}

/// The value of the first pattern that names the layer or its end, else `absent`.
double by_pattern(const PeftJson& root, const char* key, const std::string& layer, double absent,
                  const fs::path& file) {
  const auto patterns = root.find(key);
  if (patterns == root.end() || patterns->is_null()) return absent;
  if (!patterns->is_object()) refuse_adapter(file, fmt::format("{} is not an object", key), "restore the file");
  for (const auto& [written, value] : patterns->items()) {
    // PEFT writes so what it says of all experts.
    const std::string pattern = written.starts_with(kAnyParent) ? written.substr(kAnyParent.size()) : written;
    if (pattern.find_first_of("*+?[]()|^$\\{}") != std::string::npos) {
      refuse_adapter(file, fmt::format("{} has the regular expression '{}'", key, pattern), "name the layers");
    }
    const double own = positive(value, fmt::format("{} of '{}'", key, pattern), file);
    if (layer == pattern || layer.ends_with("." + pattern)) return own;
  }
  return absent;
}

bool flag(const PeftJson& root, const char* key, const fs::path& file) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return false;
  if (!found->is_boolean()) {
    refuse_adapter(file, fmt::format("{} is {}", key, shown(root, key)), "give true or false");
  }
  return found->get<bool>();
}

/// The shortest names of our layers: "query" if all blocks have it.
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

/// What PEFT makes of the base model; null: nothing of its own.
PeftJson task_type(const ModelConfig& config) {
  if (config.classes > 0) return "SEQ_CLS";
  if (config.has_encoder()) return "SEQ_2_SEQ_LM";
  return config.continues_texts() ? PeftJson("CAUSAL_LM") : PeftJson();
}

/// `model` with adapters of the experts' parameters that target_parameters names, by the ends of their names.
ModelConfig with_targets(ModelConfig model, const PeftJson& root, const fs::path& file) {
  const PeftJson named = root.value("target_parameters", PeftJson());
  model.lora = {};
  if (!is_set(named)) return model;
  if (flag(root, "use_dora", file)) {
    refuse_adapter(file,
                   fmt::format("sets use_dora, and target_parameters to {}: adapters of experts have no magnitudes",
                               shown(root, "target_parameters")),
                   "train without one of the two");
  }
  model.lora = {.rank = 1, .targets = {"experts.*"}};
  const std::vector<PeftLayer> layers = peft_layers(model);
  std::set<std::string> targets;
  for (const PeftJson& target : named) {
    const std::string name = target.is_string() ? target.get<std::string>() : "";
    bool is_found = false;
    for (const PeftLayer& layer : layers) {
      const std::string theirs = layer.experts > 0 ? layer.theirs : layer.theirs + ".weight";
      if (theirs != name && !theirs.ends_with("." + name)) continue;
      if (layer.experts > 0) targets.insert(layer.ours.begin(), layer.ours.end());
      is_found = true;
    }
    if (is_found) continue;
    refuse_adapter(file,
                   fmt::format("sets target_parameters to {}, of which {} are no experts of the model", named.dump(),
                               target.dump(-1, ' ', false, PeftJson::error_handler_t::replace)),
                   "name gate_up_proj or down_proj of a model with experts; a router has no adapters here");
  }
  model.lora.targets.assign(targets.begin(), targets.end());
  return model;
}

/// All that a folder of adapters may have.
std::vector<PeftWhole> possible_wholes(ModelConfig model) {
  model.lora.saved.clear();
  if (!model.has_encoder()) model.lora.saved.emplace_back("embedding");
  if (model.classes == 0 && !model.has_transform()) model.lora.saved.emplace_back("head");
  return peft_wholes(model);
}

/// The modules of LoraConfig::saved that a folder has. Embedding and head that the model ties come together.
std::vector<std::string> saved_of(const std::vector<PeftWhole>& found, const ModelConfig& model, bool ensures_tying,
                                  const fs::path& file) {
  std::vector<std::string> saved;
  for (const char* module : {"embedding", "head"}) {
    if (std::ranges::find(found, module, &PeftWhole::saved) != found.end()) saved.emplace_back(module);
  }
  if (!model.ties_head() || saved.size() != 1) return saved;
  if (ensures_tying) return {"embedding", "head"};
  refuse_adapter(file,
                 fmt::format("has the {} alone, which the model ties to the other of embedding and head", saved[0]),
                 "train it with both in modules_to_save, or with a base whose tie_word_embeddings is false");
}

}  // namespace

int64_t peft_classes(const fs::path& folder, ModelConfig base) {
  base.classes = 1;  // for the names
  const SafetensorsFile weights(folder / kPeftWeights);
  for (const PeftWhole& whole : peft_wholes(base)) {
    if (whole.ours != "head.weight" || !weights.has(whole.theirs)) continue;
    const std::vector<int64_t>& shape = weights.at(whole.theirs).shape;
    return shape.empty() ? 0 : shape.front();
  }
  return 0;
}

namespace {

/// Throws unless a tensor has the shape of its kind, and the others of its layer are there.
void check_tensor(const SafetensorsFile& weights, const std::string& name, const std::string& theirs, char factor,
                  bool has_magnitudes) {
  const size_t dims = weights.at(name).shape.size();
  if (factor == kPeftVector) {
    if (has_magnitudes && dims == 1 && weights.has(peft_tensor(theirs, 'A'))) return;
    refuse_adapter(weights.path(),
                   has_magnitudes ? name + " is not a vector, or its layer has no factors A and B"
                                  : fmt::format("has {}, but use_dora is not set in {}", name, kPeftConfig),
                   "restore the two files: they are not of one adapter");
  }
  if (dims != 2 || !weights.has(peft_tensor(theirs, factor == 'A' ? 'B' : 'A'))) {
    refuse_adapter(weights.path(), fmt::format("{} is not a matrix, or lacks its other factor", name),
                   "restore the file");
  }
  if (!has_magnitudes || weights.has(peft_magnitudes(theirs))) return;
  refuse_adapter(weights.path(),
                 fmt::format("lacks {}, and use_dora is set in {}", peft_magnitudes(theirs), kPeftConfig),
                 "restore the two files: they are not of one adapter");
}

constexpr double kMostDropout = 0.99;  // as of lora.dropout

/// How the adapters were trained.
double dropout_of(const PeftJson& root, const fs::path& file) {
  const auto found = root.find("lora_dropout");
  if (found == root.end() || found->is_null()) return 0;
  const double dropout = found->is_number() ? found->get<double>() : -1;
  if (dropout >= 0 && dropout <= kMostDropout) return dropout;
  refuse_adapter(file, fmt::format("lora_dropout is {}", shown(root, "lora_dropout")),
                 fmt::format("set it to a number from 0 to {}", kMostDropout));
}

/// A tensor that belongs to nothing that has adapters here.
[[noreturn]] void refuse_tensor(const fs::path& file, const std::string& name, const ModelConfig& model) {
  if (model.moe.is_used() && is_of_single_expert(name)) {
    refuse_adapter(file, fmt::format("{} is of a single expert, as transformers 4 has them", name),
                   "load the adapters with transformers 5, which has one parameter for all experts, and save them "
                   "again");
  }
  refuse_adapter(file, fmt::format("{} belongs to no linear layer of the model", name),
                 "use adapters of this model's linear layers and experts, or with its embedding or head; routers and "
                 "gates of shared experts have none here");
}

}  // namespace

PeftConfig read_peft_config(const fs::path& folder, const ModelConfig& model) {
  const fs::path file = folder / kPeftConfig;
  const PeftJson root = read_adapter_json(file);
  refuse_other_methods(root, file);
  refuse_other_base(root, file);
  const bool has_root = flag(root, "use_rslora", file);
  const bool has_magnitudes = flag(root, "use_dora", file);
  const auto scale = [&](double alpha, double rank) { return alpha / (has_root ? std::sqrt(rank) : rank); };
  const double r = number(root, "r", file), alpha = number(root, "lora_alpha", file);

  std::map<std::string, PeftLayer> known;  // by module
  for (PeftLayer& layer : peft_layers(with_targets(model, root, file))) known.emplace(layer.module, std::move(layer));
  const SafetensorsFile weights(folder / kPeftWeights);
  PeftConfig config{
      .lora = {.rank = 0, .targets = {}, .dropout = dropout_of(root, file), .rslora = has_root, .dora = has_magnitudes},
      .layers = {}};
  std::set<std::string> ours;
  const std::vector<PeftWhole> wholes = possible_wholes(model);
  for (const auto& [name, entry] : weights.tensors()) {
    const auto whole = std::ranges::find(wholes, name, &PeftWhole::theirs);
    if (whole != wholes.end()) {
      config.wholes.push_back(*whole);
      continue;
    }
    const auto parsed = parse_peft_tensor(name);
    if (!parsed || !known.contains(parsed->first)) refuse_tensor(weights.path(), name, model);
    const auto& [module, factor] = *parsed;
    const auto& [theirs, parts, same, experts] = known.at(module);
    check_tensor(weights, name, module, factor, has_magnitudes);
    if (factor != 'A') continue;
    const int64_t rank = entry.shape.front() / std::max<int64_t>(experts, 1);
    const double wanted = by_pattern(root, "rank_pattern", theirs, r, file);
    if (static_cast<double>(rank) != wanted) {
      refuse_adapter(weights.path(), fmt::format("{} has rank {}, but {} says {}", name, rank, kPeftConfig, wanted),
                     "restore the two files: they are not of one adapter");
    }
    config.lora.rank = std::max(config.lora.rank, rank);
    config.layers.push_back(
        {theirs, scale(by_pattern(root, "alpha_pattern", theirs, alpha, file), static_cast<double>(rank))});
    ours.insert(parts.begin(), parts.end());
  }
  for (const PeftWhole& whole : wholes) {  // a module that is saved is saved whole
    if (!whole.saved.empty()) continue;
    const auto is_of_module = [&](const PeftWhole& found) { return found.module == whole.module; };
    if (std::ranges::none_of(config.wholes, is_of_module) || weights.has(whole.theirs)) continue;
    refuse_adapter(weights.path(), "lacks " + whole.theirs, "save the whole module");
  }
  if (is_set(root.value("modules_to_save", PeftJson())) && config.wholes.empty()) {
    refuse_adapter(file, "sets modules_to_save to " + shown(root, "modules_to_save"),
                   "train without it: only the embedding and the head are read");
  }
  config.lora.saved = saved_of(config.wholes, model, flag(root, "ensure_weight_tying", file), weights.path());
  if (ours.empty()) refuse_adapter(weights.path(), "has no adapter", "name a folder that PEFT's save_pretrained wrote");
  const auto rank = static_cast<double>(config.lora.rank);
  config.lora.alpha = scale(alpha, r) * (has_root ? std::sqrt(rank) : rank);
  config.lora.targets = short_names(ours, model);
  return config;
}

std::string peft_config(const ModelConfig& config, const std::string& base_model) {
  check_peft_layers(config);
  const LoraConfig& lora = config.lora;
  std::set<std::string> adapted;
  for (const LinearShape& layer : adapted_layers(config)) adapted.insert(layer.name);
  const std::vector<PeftLayer> layers = peft_layers(config);
  std::vector<std::string> targets, parameters;
  nlohmann::ordered_json ranks = nlohmann::ordered_json::object(), alphas = ranks;
  for (const PeftLayer& layer : layers) {
    const auto parts = std::ranges::count_if(layer.ours, [&](const auto& name) { return adapted.contains(name); });
    if (parts == 0) continue;
    const bool is_by_weight = peft_names_by_weight(config, layer);
    (layer.experts > 0 || is_by_weight ? parameters : targets)
        .push_back(is_by_weight ? layer.theirs + ".weight" : layer.theirs);
    if (parts == 1) continue;  // otherwise one adapter with the ranks of all
    ranks[layer.theirs] = parts * lora.rank;
    const auto times = static_cast<double>(parts);
    alphas[layer.theirs] = (lora.rslora ? std::sqrt(times) : times) * lora.alpha;  // the same scale
  }
  std::set<std::string> endings;
  for (const std::string& target : targets) endings.insert(last_name(target));
  const auto num_such = std::ranges::count_if(
      layers, [&](const PeftLayer& layer) { return layer.experts == 0 && endings.contains(last_name(layer.theirs)); });
  // By their last names, as people write them, if these mean the same layers.
  const auto is_ambiguous = [&](const PeftWhole& whole) {  // a pooler is no target
    return endings.contains(last_name(whole.theirs.substr(0, whole.theirs.rfind('.'))));
  };
  const std::vector<PeftWhole> wholes = peft_wholes(config);
  const bool is_clear = std::ranges::none_of(wholes, is_ambiguous);
  if (is_clear && num_such == static_cast<int64_t>(targets.size())) targets.assign(endings.begin(), endings.end());
  const auto& columns = architecture_of(config).weights.layer;
  const bool is_transposed =
      std::ranges::find(columns, WeightColumn::Form::transposed, &WeightColumn::form) != columns.end();
  std::set<std::string> modules;
  for (const PeftWhole& whole : wholes) modules.insert(whole.module);
  const nlohmann::ordered_json root{{"peft_type", "LORA"},
                                    {"task_type", task_type(config)},
                                    {"base_model_name_or_path", base_model},
                                    {"r", lora.rank},
                                    {"lora_alpha", lora.alpha},
                                    {"use_rslora", lora.rslora},
                                    {"use_dora", lora.dora},
                                    // PEFT has none of parameters.
                                    {"lora_dropout", parameters.empty() ? lora.dropout : 0.0},
                                    {"target_modules", targets},
                                    {"target_parameters", parameters.empty() ? PeftJson() : PeftJson(parameters)},
                                    {"rank_pattern", ranks},
                                    {"alpha_pattern", alphas},
                                    {"fan_in_fan_out", is_transposed},
                                    {"bias", "none"},
                                    {"modules_to_save", modules.empty() ? PeftJson() : PeftJson(modules)},
                                    {"inference_mode", true}};
  return root.dump(2) + "\n";
}

}  // namespace caravan
