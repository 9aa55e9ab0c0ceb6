/// Models with adapters of PEFT (tests/manual/peft_fixtures.py): logits, loss and gradients, and both files again.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/formats/peft/peft.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/nn/lora.h"
#include "caravan/nn/loss/cross_entropy.h"
#include "tests/data/support.h"
#include "tests/nn/tiny.h"

namespace caravan::peft_model_test {
namespace {

using nlohmann::json;
using testing::distance;
using testing::Fixture;

/// The model with the adapters, from PEFT's two files.
struct Adapted {
  explicit Adapted(const Fixture& fixture) : config(parse_huggingface_config(fixture.config, "fixture")) {
    base = from_huggingface(config, fixture.below("base.", at::kFloat));
    write_file(folder / kPeftConfig, fixture.adapter);
    write_tensors(folder / kPeftWeights, fixture.below("adapter.", at::kFloat));
    config.lora = read_peft_config(folder.path(), config).lora;
    adapters = read_peft(folder.path(), config);
  }

  /// By name: what the model computes with.
  std::map<std::string, at::Tensor> values() const {
    std::map<std::string, at::Tensor> all(base.begin(), base.end());
    for (const auto& [name, tensor] : adapters) all.insert_or_assign(name, tensor);
    return all;
  }
  std::unique_ptr<Model> model(at::ScalarType type) const {
    auto model = testing::whole_model(config);
    const auto all = values();
    for (Parameter* parameter : model->parameters()) {
      const at::Tensor value = all.at(parameter->name()).to(type).clone();
      parameter->set_unsharded(value.requires_grad_(parameter->requires_grad()), parameter->sharded_layout());
    }
    return model;
  }

  TemporaryFolder folder;
  ModelConfig config;
  NamedTensors base;
  NamedTensors adapters;
};

class AgainstPeft : public ::testing::TestWithParam<const char*> {
 protected:
  const Fixture fixture_ = testing::read_fixture(std::string("peft_") + GetParam());
  const Adapted adapted_{fixture_};

  /// PEFT has one adapter of a fused layer, whose A ours repeat, one for each part, beside the blocks of B.
  at::Tensor as_one_adapter(const std::string& name, const at::Tensor& gradient, const at::Tensor& expected) const {
    if (name.find(".experts.") != std::string::npos) return as_one_of_experts(name, gradient, expected);
    const int64_t rank = adapter_rank(name, expected);
    if (name.ends_with("lora_A.weight")) return gradient.view({-1, rank, gradient.size(1)}).sum(0);
    if (name.ends_with("lora_B.weight")) return gradient.view({gradient.size(0), -1, rank}).sum(1);
    return gradient;
  }
  /// A has the ranks of each expert one after the other, B those of an expert in every column of as many.
  at::Tensor as_one_of_experts(const std::string& name, const at::Tensor& gradient, const at::Tensor& expected) const {
    const int64_t experts = adapted_.config.moe.experts, rank = adapter_rank(name, expected) / experts;
    if (name.ends_with("lora_A.weight")) {
      return gradient.view({experts, -1, rank, gradient.size(1)}).sum(1).flatten(0, 1);
    }
    return gradient.view({gradient.size(0), -1, rank, experts}).sum(1).flatten(1);
  }
  static int64_t adapter_rank(const std::string& name, const at::Tensor& expected) {
    return name.ends_with("lora_A.weight") ? expected.size(0) : expected.size(-1);
  }

  void compare(at::ScalarType type, double tolerance) {
    const auto model = adapted_.model(type);
    const at::Tensor& labels = fixture_["labels"];
    ForwardContext context;
    context.loss_scale = 1 / (labels != kIgnoredLabel).sum().item<double>();
    EXPECT_LT(distance(model->run({fixture_["ids"]}, context).front(), fixture_["logits"]), tolerance);
    const at::Tensor loss = model->run({fixture_["ids"], labels}, context).front();
    EXPECT_LT(distance(loss, fixture_["loss"]), tolerance);
    loss.backward();
    NamedTensors gradients;
    for (const Parameter* parameter : model->parameters()) {
      const at::Tensor gradient = parameter->unsharded().grad();
      EXPECT_EQ(gradient.defined(), parameter->requires_grad()) << parameter->name();
      if (gradient.defined()) gradients.emplace_back(parameter->name(), gradient);
    }
    size_t count = 0;
    for (const auto& [name, gradient] : to_peft(adapted_.config, gradients, TensorKind::gradients)) {
      const at::Tensor& expected = fixture_["gradient." + name];
      const at::Tensor ours = as_one_adapter(name, gradient, expected);
      ASSERT_EQ(ours.sizes(), expected.sizes()) << name;
      EXPECT_LT(distance(ours, expected), tolerance) << name;
      ++count;
    }
    EXPECT_EQ(count, fixture_.below("gradient.", at::kFloat).size());
  }
};

TEST_P(AgainstPeft, EqualInFp64) { compare(at::kDouble, 1e-6); }  // the fixture is rounded to fp32
TEST_P(AgainstPeft, EqualInFp32) { compare(at::kFloat, 1e-5); }

TEST_P(AgainstPeft, TheMergedModelComputesTheSame) {
  const auto values = adapted_.values();
  NamedTensors all;
  const Model names(adapted_.config);
  for (const Parameter* parameter : names.parameters())
    all.emplace_back(parameter->name(), values.at(parameter->name()));
  const auto merged = testing::whole_model(without_adapters(adapted_.config));
  testing::set_parameters(*merged, with_adapters_merged(adapted_.config, all));
  EXPECT_LT(distance(merged->run({fixture_["ids"]}, {}).front(), fixture_["logits"]), 1e-5);
}

TEST_P(AgainstPeft, TheFilesAreWrittenAsPeftReadsThem) {
  const TemporaryFolder folder;
  write_peft(folder.path(), adapted_.config, adapted_.adapters, "a/base");
  const json theirs = json::parse(fixture_.adapter);
  const json ours = json::parse(read_file(folder / kPeftConfig));
  for (const char* key : {"use_rslora", "use_dora", "lora_dropout", "fan_in_fan_out"}) {
    EXPECT_EQ(ours.at(key), theirs.at(key)) << key;
  }
  const auto names = [](const json& list) {
    return list.is_null() ? std::set<std::string>() : list.get<std::set<std::string>>();
  };
  EXPECT_EQ(names(ours.at("modules_to_save")), names(theirs.at("modules_to_save")));
  const SafetensorsFile file(folder / kPeftWeights);
  EXPECT_EQ(file.tensors().size(), fixture_.below("adapter.", at::kFloat).size());
  for (const auto& [name, entry] : file.tensors()) EXPECT_TRUE(fixture_.has("adapter." + name)) << name;
  ModelConfig base = adapted_.config;
  base.lora = {};
  EXPECT_EQ(read_peft_config(folder.path(), base).lora.scale(), adapted_.config.lora.scale());
}

INSTANTIATE_TEST_SUITE_P(, AgainstPeft,
                         ::testing::Values("rslora", "dora", "dora_gpt2", "saved", "saved_tied", "all", "experts",
                                           "experts_down", "experts_doubled"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace caravan::peft_model_test
