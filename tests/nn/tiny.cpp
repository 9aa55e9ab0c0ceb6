#include "tests/nn/tiny.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/numeric/random.h"
#include "caravan/comm/record.h"

namespace caravan::testing {

Mesh one_rank() { return Mesh::create(make_record_world(0, 1), {{"dp", 1}}); }

std::unique_ptr<Model> whole_model(const ModelConfig& config, uint64_t seed) {
  auto model = make_model(config);
  model->materialise(one_rank(), {}, {.seed = seed});
  return model;
}

void set_parameters(Model& model, const NamedTensors& values) {
  std::map<std::string, at::Tensor> by_name(values.begin(), values.end());
  for (Parameter* parameter : model.parameters()) {
    parameter->set_unsharded(by_name.at(parameter->name()).detach().clone().requires_grad_(true),
                             parameter->sharded_layout());
  }
}

NamedTensors gradients(Model& model) {
  NamedTensors all;
  for (Parameter* parameter : model.parameters()) {
    EXPECT_TRUE(parameter->unsharded().grad().defined()) << parameter->name();
    all.emplace_back(parameter->name(), parameter->unsharded().grad());
  }
  return all;
}

ModelConfig tiny_config(Architecture kind, bool tied) {
  ModelConfig config{.arch = kind, .layers = 2, .width = 18, .heads = 3, .context = 13, .vocabulary = 23, .hidden = 29};
  if (kind == Architecture::llama()) config.kv_heads = 1;
  config.tie_embeddings = tied;
  return config;
}

ModelConfig tiny_mixtral() {
  ModelConfig config = tiny_config(Architecture::llama(), false);
  config.moe = {.experts = 5, .top_k = 2};
  return config;
}

ModelConfig tiny_qwen2_moe() {
  ModelConfig config = tiny_mixtral();
  config.arch.qkv_bias = true;
  config.moe.normalize = false;
  config.moe.shared_hidden = 7;
  config.moe.shared_gate = true;
  return config;
}

at::Tensor tokens(int64_t batch, int64_t length, int64_t vocabulary, uint64_t seed) {
  at::Tensor ids = at::empty({batch, length}, at::kLong);
  const RandomStream stream(seed, "tokens");
  for (int64_t i = 0; i < ids.numel(); ++i) {
    ids.data_ptr<int64_t>()[i] = stream.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocabulary);
  }
  return ids;
}

at::Tensor normal(const std::vector<int64_t>& shape, uint64_t seed) {
  at::Tensor x = at::empty(shape);
  RandomStream(seed, "normal").normal(0, {x.data_ptr<float>(), static_cast<size_t>(x.numel())});
  return x;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.detach().to(at::kDouble);
  return (a.detach().to(at::kDouble) - wide).norm().item<double>() / wide.norm().item<double>();
}

NamedTensors Fixture::below(const std::string& prefix, at::ScalarType type) const {
  NamedTensors all;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) all.emplace_back(name.substr(prefix.size()), tensor.to(type));
  }
  return all;
}

Fixture read_fixture(const std::string& name) {
  std::ifstream in(std::string(CARAVAN_SOURCE_DIR) + "/tests/nn/fixtures/" + name + ".safetensors", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size)) throw std::runtime_error("no fixture " + name);
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const auto header = nlohmann::json::parse(bytes.substr(sizeof(header_size), header_size));
  Fixture fixture;
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      fixture.config = entry.at("config").get<std::string>();
      fixture.adapter = entry.value("adapter", "");
      continue;
    }
    const auto shape = entry.at("shape").get<std::vector<int64_t>>();
    at::Tensor tensor = at::empty(shape, entry.at("dtype") == "I64" ? at::kLong : at::kFloat);
    const size_t begin = sizeof(header_size) + header_size + entry.at("data_offsets").at(0).get<size_t>();
    std::memcpy(tensor.data_ptr(), bytes.data() + begin, tensor.nbytes());
    fixture.tensors.emplace(key, tensor);
  }
  return fixture;
}

}  // namespace caravan::testing
