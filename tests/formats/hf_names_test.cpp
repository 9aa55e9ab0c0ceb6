#include "caravan/formats/huggingface/hf_names.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::hf_names_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::tiny_config;

NamedTensors parameters_of(const ModelConfig& config) {
  const auto model = testing::whole_model(config);
  NamedTensors all;
  for (const Parameter* parameter : model->parameters())
    all.emplace_back(parameter->name(), parameter->sharded().detach());
  return all;
}

ModelConfig tiny_qwen2() {
  ModelConfig config = tiny_config(Architecture::llama());
  config.arch.qkv_bias = true;
  return config;
}

struct NamedConfig {
  const char* name;
  ModelConfig config;
};

class HuggingfaceNames : public ::testing::TestWithParam<NamedConfig> {
 protected:
  ModelConfig config_ = GetParam().config;
  NamedTensors ours_ = parameters_of(config_);
};

TEST_P(HuggingfaceNames, roundTrips) {
  const NamedTensors back = from_huggingface(config_, to_huggingface(config_, ours_));
  ASSERT_EQ(back.size(), ours_.size());
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].first, ours_[i].first);
    EXPECT_TRUE(back[i].second.equal(ours_[i].second)) << back[i].first;
  }
}

TEST_P(HuggingfaceNames, takesTensorsWithoutMemory) {
  NamedTensors shapes = ours_;
  for (auto& [name, tensor] : shapes) tensor = tensor.to(at::kMeta);
  EXPECT_EQ(from_huggingface(config_, to_huggingface(config_, shapes)).size(), ours_.size());
}

TEST_P(HuggingfaceNames, isStrictBothWays) {
  const NamedTensors theirs = to_huggingface(config_, ours_);
  const auto refusals = [&](const auto& convert, const NamedTensors& good) {
    NamedTensors bad = good;
    const std::string gone = bad.back().first;
    const std::string reshaped = bad.front().first;
    bad.back().first = "score.weight";
    bad.front().second = at::ones({3, 4});
    const std::string message = error_of<DataError>([&] { convert(config_, bad); });
    EXPECT_THAT(message, HasSubstr("1 missing: " + gone));
    EXPECT_THAT(message, HasSubstr("score.weight"));
    EXPECT_THAT(message, HasSubstr(reshaped + " is [3, 4], not ["));
    bad = good;
    bad.push_back(good.front());
    EXPECT_THAT(error_of<DataError>([&] { convert(config_, bad); }), HasSubstr("1 unexpected: " + good.front().first));
  };
  refusals([](const auto& config, const auto& ours) { return to_huggingface(config, ours); }, ours_);
  refusals(from_huggingface, theirs);
}

TEST_P(HuggingfaceNames, toleratesABareBaseModelAndMasks) {
  NamedTensors theirs = to_huggingface(config_, ours_);
  const bool is_gpt2 = config_.arch == Architecture::gpt2();
  const std::string prefix = is_gpt2 ? "transformer." : "model.";
  for (auto& [name, tensor] : theirs) {
    if (name.starts_with(prefix)) name = name.substr(prefix.size());
  }
  theirs.emplace_back(is_gpt2 ? "h.1.attn.bias" : "layers.1.self_attn.rotary_emb.inv_freq", at::ones({2}));
  EXPECT_EQ(from_huggingface(config_, theirs).size(), ours_.size());
}

INSTANTIATE_TEST_SUITE_P(, HuggingfaceNames,
                         ::testing::Values(NamedConfig{"gpt2", tiny_config(Architecture::gpt2(), false)},
                                           NamedConfig{"gpt2Tied", tiny_config(Architecture::gpt2())},
                                           NamedConfig{"llama", tiny_config(Architecture::llama(), false)},
                                           NamedConfig{"llamaTied", tiny_config(Architecture::llama())},
                                           NamedConfig{"qwen2", tiny_qwen2()},
                                           NamedConfig{"mixtral", testing::tiny_mixtral()},
                                           NamedConfig{"qwen2Moe", testing::tiny_qwen2_moe()}),
                         [](const auto& info) { return std::string(info.param.name); });

at::Tensor tensor_of(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return tensor;
  }
  return {};
}

TEST(HuggingfaceNamesOfExperts, everyExpertHasItsRowsOfOurs) {
  const ModelConfig config = testing::tiny_mixtral();
  const NamedTensors ours = parameters_of(config);
  const NamedTensors theirs = to_huggingface(config, ours);
  for (const auto& [name, ending] : {std::pair{"gate", "w1"}, {"up", "w3"}, {"down", "w2"}}) {
    const at::Tensor whole = tensor_of(ours, fmt::format("blocks.1.mlp.experts.{}", name));
    for (int64_t expert = 0; expert < config.moe.experts; ++expert) {
      const at::Tensor one =
          tensor_of(theirs, fmt::format("model.layers.1.block_sparse_moe.experts.{}.{}.weight", expert, ending));
      const int64_t rows = whole.size(0) / config.moe.experts;
      ASSERT_TRUE(one.defined()) << name << expert;
      EXPECT_TRUE(one.equal(whole.narrow(0, expert * rows, rows))) << name << expert;
    }
  }
}

TEST(HuggingfaceNamesOfExperts, aModelThatTransformersLacksIsRefused) {
  ModelConfig config = testing::tiny_mixtral();
  config.moe.gates = Gates::sigmoid;
  EXPECT_THAT(error_of<UsageError>([&] { to_huggingface(config, parameters_of(config)); }), HasSubstr("moe.gates"));
  EXPECT_THAT(error_of<UsageError>([&] { from_huggingface(config, parameters_of(config)); }), HasSubstr("moe.gates"));
}

TEST(HuggingfaceTiedHead, mayBeRepeatedButNotDiffer) {
  const ModelConfig config = tiny_config(Architecture::gpt2());
  NamedTensors theirs = to_huggingface(config, parameters_of(config));
  for (const auto& [name, tensor] : theirs) EXPECT_NE(name, "lm_head.weight");
  theirs.emplace_back("lm_head.weight", theirs.front().second.clone());
  EXPECT_EQ(from_huggingface(config, theirs).front().first, "embedding.token.weight");
  theirs.back().second.view(-1)[0] += 1;
  EXPECT_THAT(error_of<DataError>([&] { from_huggingface(config, theirs); }),
              HasSubstr("lm_head.weight: differs from the embedding"));
}

TEST(HuggingfaceNamesOfManyTensors, aMessageStaysShort) {
  ModelConfig config = tiny_config(Architecture::llama());
  config.layers = 40;
  const std::string message = error_of<DataError>([&] { from_huggingface(config, {}); });
  EXPECT_THAT(message, HasSubstr("362 missing: "));
  EXPECT_THAT(message, HasSubstr("and 354 more"));
  EXPECT_LT(message.size(), 800);
}

}  // namespace
}  // namespace caravan::hf_names_test
