#include "caravan/formats/peft/peft.h"

#include <map>

#include <ATen/ops/all.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
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

std::string a_of(const std::string& layer) { return layer + ".lora.a.weight"; }
std::string b_of(const std::string& layer) { return layer + ".lora.b.weight"; }

std::map<std::string, at::Tensor> by_name(const NamedTensors& tensors) { return {tensors.begin(), tensors.end()}; }

void check_finite(const SafetensorsFile& file, const std::string& name, const at::Tensor& tensor) {
  if (at::isfinite(tensor).all().item<bool>()) return;
  throw DataError({"adapter", file.path().string(), name + " has a value that is not finite, or not after scaling", "",
                   "use an earlier state of the adapters"});
}

/// [rows, columns] with zeros after what `tensor` has.
at::Tensor filled_up(const at::Tensor& tensor, int64_t rows, int64_t columns) {
  at::Tensor whole = at::zeros({rows, columns}, tensor.options());
  whole.narrow(0, 0, tensor.size(0)).narrow(1, 0, tensor.size(1)).copy_(tensor);
  return whole;
}

}  // namespace

NamedTensors to_peft(const ModelConfig& config, const NamedTensors& ours) {
  check_peft_layers(config);
  const auto found = by_name(ours);
  std::map<std::string, int64_t> out;
  for (const LinearShape& layer : linear_layers(config)) out[layer.name] = layer.out;
  NamedTensors theirs;
  for (const PeftLayer& layer : peft_layers(config)) {
    std::vector<at::Tensor> a;
    std::vector<std::pair<int64_t, at::Tensor>> b;  // with its first row
    int64_t rows = 0;
    for (const std::string& part : layer.ours) {
      if (found.contains(a_of(part))) {
        a.push_back(found.at(a_of(part)));
        b.emplace_back(rows, found.at(b_of(part)));
      }
      rows += out.at(part);
    }
    if (a.empty()) continue;
    const at::Tensor whole = at::zeros({rows, static_cast<int64_t>(a.size()) * config.lora.rank}, a.front().options());
    for (size_t i = 0; i < b.size(); ++i) {
      const int64_t column = static_cast<int64_t>(i) * config.lora.rank;
      whole.narrow(0, b[i].first, b[i].second.size(0)).narrow(1, column, config.lora.rank).copy_(b[i].second);
    }
    theirs.emplace_back(peft_tensor(layer.theirs, 'A'), at::cat(a));
    theirs.emplace_back(peft_tensor(layer.theirs, 'B'), whole);
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
  std::map<std::string, LinearShape> shapes;
  for (const LinearShape& layer : linear_layers(config)) shapes[layer.name] = layer;
  for (const PeftLayer& layer : peft_layers(config)) {
    if (!scales.contains(layer.theirs)) continue;
    const at::Tensor a = read_tensor(file, peft_tensor(layer.theirs, 'A')).to(at::kFloat);
    const at::Tensor b = read_tensor(file, peft_tensor(layer.theirs, 'B')).to(at::kFloat) * scales[layer.theirs];
    check_finite(file, peft_tensor(layer.theirs, 'A'), a);
    check_finite(file, peft_tensor(layer.theirs, 'B'), b);
    int64_t rows = 0;
    for (const std::string& part : layer.ours) rows += shapes[part].out;
    const int64_t in = shapes[layer.ours.front()].in;
    if (a.size(1) != in || b.size(0) != rows || a.size(0) != b.size(1) || a.size(0) > config.lora.rank) {
      throw DataError({"adapter", file.path().string(),
                       fmt::format("{} is [{}] and B [{}], for a layer [{}, {}]", peft_tensor(layer.theirs, 'A'),
                                   join(a.sizes()), join(b.sizes()), rows, in),
                       "", "use adapters of this model"});
    }
    int64_t row = 0;
    for (const std::string& part : layer.ours) {
      ours[a_of(part)] = filled_up(a, config.lora.rank, in);
      ours[b_of(part)] = filled_up(b.narrow(0, row, shapes[part].out), shapes[part].out, config.lora.rank);
      row += shapes[part].out;
    }
  }
  for (const PeftWhole& whole : read.wholes) {
    ours[whole.ours] = read_tensor(file, whole.theirs).to(at::kFloat);
    check_finite(file, whole.theirs, ours[whole.ours]);
  }
  NamedTensors ordered;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) {
    const auto found = ours.find(parameter->name());
    if (found == ours.end()) continue;
    if (found->second.sizes() != at::IntArrayRef(parameter->global_shape())) {
      throw DataError({"adapter", file.path().string(),
                       fmt::format("{} is [{}], not [{}]", parameter->name(), join(found->second.sizes()),
                                   join(parameter->global_shape())),
                       "", "use adapters of a model with as many classes"});
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
  for (auto& [name, tensor] : base) {
    const std::string layer = name.substr(0, name.rfind('.'));
    if (!name.ends_with(".weight") || !found.contains(a_of(layer))) continue;
    tensor = tensor + config.lora.scale() * found.at(b_of(layer)).matmul(found.at(a_of(layer)));
  }
  return base;
}

}  // namespace caravan
