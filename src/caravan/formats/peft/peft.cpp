#include "caravan/formats/peft/peft.h"

#include <algorithm>
#include <map>
#include <optional>

#include <ATen/ops/all.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/models/model.h"
#include "caravan/nn/lora.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// The layers of the model by name, those without adapters too.
std::map<std::string, LinearShape> layers_by_name(const ModelConfig& config) {
  std::map<std::string, LinearShape> layers;
  for (LinearShape& layer : linear_layers(config)) layers.emplace(layer.name, std::move(layer));
  return layers;
}

std::map<std::string, at::Tensor> by_name(const NamedTensors& tensors) { return {tensors.begin(), tensors.end()}; }

void check_finite(const SafetensorsFile& file, const std::string& name, const at::Tensor& tensor) {
  if (at::isfinite(tensor).all().item<bool>()) return;
  throw DataError({"adapter", file.path().string(), name + " has a value that is not finite, or not after scaling", "",
                   "use an earlier state of the adapters"});
}

/// Each matrix of `tensor` as [rows, columns] with zeros after what it has; one below the other.
at::Tensor filled_up(const at::Tensor& tensor, int64_t rows, int64_t columns) {
  const at::Tensor whole = at::zeros({tensor.size(0), rows, columns}, tensor.options());
  whole.narrow(1, 0, tensor.size(1)).narrow(2, 0, tensor.size(2)).copy_(tensor);
  return whole.flatten(0, 1);
}

at::Tensor norms_of_rows(const at::Tensor& matrix) { return matrix.square().sum(-1).sqrt(); }

/// The magnitudes of the rows of a fused layer: those without an adapter keep the norms of the weight.
at::Tensor fused_magnitudes(const PeftLayer& layer, const std::map<std::string, at::Tensor>& found,
                            const std::map<std::string, LinearShape>& shapes, TensorKind kind) {
  std::vector<at::Tensor> parts;
  for (const std::string& name : layer.ours) {
    const LinearShape& part = shapes.at(name);
    const auto own = found.find(part.magnitudes());
    const auto weight = found.find(part.weight());
    if (own != found.end()) {
      parts.push_back(own->second);
    } else if (kind == TensorKind::gradients) {
      parts.push_back(at::zeros({part.out}));
    } else if (weight != found.end()) {
      parts.push_back(norms_of_rows(weight->second));
    } else {
      throw UsageError({"export", layer.theirs,
                        "has adapters of a part of its rows, and the magnitudes of the others are norms of the weight",
                        "", "give the weights too"});
    }
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

/// W + scale B A, with rows of these magnitudes if there are any.
at::Tensor merged(const at::Tensor& weight, const LoraConfig& lora, const at::Tensor& a, const at::Tensor& b,
                  const std::optional<at::Tensor>& magnitudes) {
  constexpr double kLeastNorm = 1e-30;             // of a row of zeros
  const int64_t matrices = a.size(0) / lora.rank;  // of a table one for each expert
  const at::Tensor added = b.view({matrices, -1, lora.rank}).matmul(a.view({matrices, lora.rank, -1}));
  const at::Tensor adapted = weight + lora.scale() * added.view(weight.sizes());
  if (!magnitudes) return adapted;
  return adapted * (*magnitudes / norms_of_rows(adapted).clamp_min(kLeastNorm)).unsqueeze(1);
}

/// What is saved whole, under our names.
void read_wholes(const SafetensorsFile& file, const PeftConfig& read, std::map<std::string, at::Tensor>& ours) {
  for (const PeftWhole& whole : read.wholes) {
    const at::Tensor tensor = read_tensor(file, whole.theirs).to(at::kFloat);
    check_finite(file, whole.theirs, tensor);
    const auto [known, is_new] = ours.emplace(whole.ours, tensor);
    if (is_new || known->second.equal(tensor)) continue;
    throw DataError({"adapter", file.path().string(),
                     whole.theirs + " differs from the embedding, which the model ties to its head", "",
                     "train on a base whose tie_word_embeddings is false"});
  }
}

}  // namespace

NamedTensors to_peft(const ModelConfig& config, const NamedTensors& ours, TensorKind kind) {
  check_peft_layers(config);
  const auto found = by_name(ours);
  const std::map<std::string, LinearShape> shapes = layers_by_name(config);
  NamedTensors theirs;
  for (const PeftLayer& layer : peft_layers(config)) {
    std::vector<at::Tensor> a;
    std::vector<std::pair<int64_t, at::Tensor>> b;  // with its first row
    int64_t rows = 0;
    for (const std::string& name : layer.ours) {
      const LinearShape& part = shapes.at(name);
      if (found.contains(part.factor('a'))) {
        a.push_back(found.at(part.factor('a')));
        b.emplace_back(rows, found.at(part.factor('b')));
      }
      rows += part.out;
    }
    if (a.empty()) continue;
    const int64_t experts = std::max<int64_t>(layer.experts, 1), rank = config.lora.rank;
    const at::Tensor whole = at::zeros({experts, rows, static_cast<int64_t>(a.size()) * rank}, a.front().options());
    for (size_t i = 0; i < b.size(); ++i) {
      const at::Tensor part = b[i].second.view({experts, -1, rank});
      whole.narrow(1, b[i].first, part.size(1)).narrow(2, static_cast<int64_t>(i) * rank, rank).copy_(part);
      a[i] = a[i].view({experts, rank, -1});
    }
    theirs.emplace_back(peft_tensor(layer.module, 'A'), at::cat(a, 1).flatten(0, 1));
    // Of experts a column for each, and so for each rank.
    theirs.emplace_back(peft_tensor(layer.module, 'B'), whole.permute({1, 2, 0}).flatten(1).contiguous());
    if (!config.lora.dora) continue;
    theirs.emplace_back(peft_magnitudes(layer.module), fused_magnitudes(layer, found, shapes, kind));
  }
  for (const PeftWhole& whole : peft_wholes(config)) {
    if (found.contains(whole.ours)) theirs.emplace_back(whole.theirs, found.at(whole.ours));
  }
  return theirs;
}

NamedTensors read_peft(const fs::path& folder, const ModelConfig& config) {
  const PeftConfig read = read_peft_config(folder, config);
  const SafetensorsFile file(folder / kPeftWeights);
  std::map<std::string, double> scales;
  for (const PeftScale& layer : read.layers) scales[layer.theirs] = layer.scale / config.lora.scale();
  std::map<std::string, at::Tensor> ours;
  const std::map<std::string, LinearShape> shapes = layers_by_name(config);
  for (const PeftLayer& layer : peft_layers(config)) {
    if (!scales.contains(layer.theirs)) continue;
    const at::Tensor a = read_tensor(file, peft_tensor(layer.module, 'A')).to(at::kFloat);
    const at::Tensor b = read_tensor(file, peft_tensor(layer.module, 'B')).to(at::kFloat) * scales[layer.theirs];
    check_finite(file, peft_tensor(layer.module, 'A'), a);
    check_finite(file, peft_tensor(layer.module, 'B'), b);
    const int64_t experts = std::max<int64_t>(layer.experts, 1);
    int64_t rows = 0;
    for (const std::string& part : layer.ours) rows += shapes.at(part).out;
    const int64_t in = shapes.at(layer.ours.front()).in;
    if (a.size(1) != in || b.size(0) != rows || a.size(0) != b.size(1) || a.size(0) > experts * config.lora.rank ||
        a.size(0) % experts != 0) {
      throw DataError({"adapter", file.path().string(),
                       fmt::format("{} is [{}] and B [{}], for a layer [{}, {}]", peft_tensor(layer.module, 'A'),
                                   join(a.sizes()), join(b.sizes()), rows, in),
                       "", "use adapters of this model"});
    }
    at::Tensor magnitudes;
    if (config.lora.dora) {
      magnitudes = read_tensor(file, peft_magnitudes(layer.module)).to(at::kFloat);
      check_finite(file, peft_magnitudes(layer.module), magnitudes);
      if (magnitudes.numel() != rows) {
        throw DataError({"adapter", file.path().string(),
                         fmt::format("{} has {} elements, for a layer of {} rows", peft_magnitudes(layer.module),
                                     magnitudes.numel(), rows),
                         "", "use adapters of this model"});
      }
    }
    int64_t row = 0;
    const int64_t rank = a.size(0) / experts;
    const at::Tensor own_b = b.view({rows, rank, experts}).permute({2, 0, 1});
    for (const std::string& name : layer.ours) {
      const LinearShape& part = shapes.at(name);
      ours[part.factor('a')] = filled_up(a.view({experts, rank, in}), config.lora.rank, in);
      ours[part.factor('b')] = filled_up(own_b.narrow(1, row, part.out), part.out, config.lora.rank);
      if (magnitudes.defined()) ours[part.magnitudes()] = magnitudes.narrow(0, row, part.out);
      row += part.out;
    }
  }
  read_wholes(file, read, ours);
  NamedTensors ordered;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) {
    const auto found = ours.find(parameter->name());
    if (found == ours.end()) continue;
    if (found->second.sizes() != at::IntArrayRef(parameter->global_shape())) {
      throw DataError({"adapter", file.path().string(),
                       fmt::format("{} is [{}], not [{}]", parameter->name(), join(found->second.sizes()),
                                   join(parameter->global_shape())),
                       "", "use adapters of a model with as many classes and as large a vocabulary"});
    }
    ordered.emplace_back(parameter->name(), found->second);
  }
  return ordered;
}

void write_peft(const fs::path& folder, const ModelConfig& config, const NamedTensors& parameters,
                const std::string& base_model) {
  const std::string json = peft_config(config, base_model);
  create_folders("export", folder);
  write_tensors(folder / kPeftWeights, to_peft(config, parameters), {{"format", "pt"}});
  write_file_durably(folder / kPeftConfig, json, "export");
}

ModelConfig without_adapters(const ModelConfig& config) {
  ModelConfig base = config;
  base.lora = {};
  return base;
}

NamedTensors without_adapters(const NamedTensors& parameters) {
  NamedTensors base;
  for (const auto& [name, tensor] : parameters) {
    if (!is_of_adapter(name)) base.emplace_back(name, tensor);
  }
  return base;
}

NamedTensors with_adapters_merged(const ModelConfig& config, const NamedTensors& parameters) {
  NamedTensors base = without_adapters(parameters);
  const auto found = by_name(parameters);
  std::map<std::string, LinearShape> adapted;  // by weight
  for (LinearShape& layer : adapted_layers(config)) adapted.emplace(layer.weight(), std::move(layer));
  for (auto& [name, tensor] : base) {
    const auto layer = adapted.find(name);
    if (layer == adapted.end()) continue;
    const LinearShape& of = layer->second;
    const auto magnitudes = found.find(of.magnitudes());
    tensor = merged(tensor, config.lora, found.at(of.factor('a')), found.at(of.factor('b')),
                    magnitudes == found.end() ? std::nullopt : std::optional(magnitudes->second));
  }
  return base;
}

}  // namespace caravan
