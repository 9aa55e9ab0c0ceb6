#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/formats/huggingface/hf_names.h"
#include "caravan/mesh/mesh.h"
#include "caravan/models/model.h"

namespace caravan::testing {

/// A world of one rank.
Mesh one_rank();

/// The whole model on one rank, with initial values.
std::unique_ptr<Model> whole_model(const ModelConfig& config, uint64_t seed = 1);

/// Sets the unsharded parameters of the model by name. The model computes in the dtype of the values from then on.
void set_parameters(Model& model, const NamedTensors& values);
/// The unsharded gradients by name. Fails the test for a parameter without a gradient.
NamedTensors gradients(Model& model);

/// Sizes that are not multiples of any vector width.
ModelConfig tiny_config(Architecture kind, bool tied = true);
/// Untied Llamas with experts: as Mixtral has them, and with the biases and the shared expert of Qwen2-MoE.
ModelConfig tiny_mixtral();
ModelConfig tiny_qwen2_moe();
/// Ids or labels [batch, length] below `vocabulary`, determined by the seed.
at::Tensor tokens(int64_t batch, int64_t length, int64_t vocabulary, uint64_t seed = 0);

/// Standard normal numbers in fp32, determined by the seed.
at::Tensor normal(const std::vector<int64_t>& shape, uint64_t seed = 0);

/// |a - b| / |b|, norms in fp64.
double distance(const at::Tensor& a, const at::Tensor& b);

/// A file written by fixtures/make.py, or tests/manual/peft_fixtures.py.
struct Fixture {
  std::string config;   ///< the text of config.json
  std::string adapter;  ///< the text of adapter_config.json; "": the model has no adapters
  std::map<std::string, at::Tensor> tensors;

  const at::Tensor& operator[](const std::string& name) const { return tensors.at(name); }
  bool has(const std::string& name) const { return tensors.contains(name); }
  /// The tensors whose name begins with `prefix`, without it, as fp64 or another dtype.
  NamedTensors below(const std::string& prefix, at::ScalarType type) const;
};
Fixture read_fixture(const std::string& name);

}  // namespace caravan::testing
