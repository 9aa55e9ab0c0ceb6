#include "caravan/nn/hf_names.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/hf_config.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::tiny_config;

NamedTensors parameters_of(const ModelConfig& config) {
  const auto model = testing::whole_model(config);
  NamedTensors all;
  for (const Parameter* parameter : model->parameters())
    all.emplace_back(parameter->name(), parameter->rest().detach());
  return all;
}

class HuggingfaceNames : public ::testing::TestWithParam<std::tuple<ModelKind, bool>> {
 protected:
  ModelConfig config_ = tiny_config(std::get<0>(GetParam()), std::get<1>(GetParam()));
  NamedTensors ours_ = parameters_of(config_);
};

TEST_P(HuggingfaceNames, thereAndBackIsTheSame) {
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
  refusals(to_huggingface, ours_);
  refusals(from_huggingface, theirs);
}

TEST_P(HuggingfaceNames, toleratesABareBaseModelAndMasks) {
  NamedTensors theirs = to_huggingface(config_, ours_);
  const bool is_gpt2 = config_.kind == ModelKind::gpt2;
  const std::string prefix = is_gpt2 ? "transformer." : "model.";
  for (auto& [name, tensor] : theirs) {
    if (name.starts_with(prefix)) name = name.substr(prefix.size());
  }
  theirs.emplace_back(is_gpt2 ? "h.1.attn.bias" : "layers.1.self_attn.rotary_emb.inv_freq", at::ones({2}));
  EXPECT_EQ(from_huggingface(config_, theirs).size(), ours_.size());
}

INSTANTIATE_TEST_SUITE_P(, HuggingfaceNames,
                         ::testing::Combine(::testing::Values(ModelKind::gpt2, ModelKind::llama), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + (std::get<1>(info.param) ? "Tied" : "");
                         });

TEST(HuggingfaceTiedHead, mayBeRepeatedButNotDiffer) {
  const ModelConfig config = tiny_config(ModelKind::gpt2);
  NamedTensors theirs = to_huggingface(config, parameters_of(config));
  for (const auto& [name, tensor] : theirs) EXPECT_NE(name, "lm_head.weight");
  theirs.emplace_back("lm_head.weight", theirs.front().second.clone());
  EXPECT_EQ(from_huggingface(config, theirs).front().first, "embedding.token.weight");
  theirs.back().second.view(-1)[0] += 1;
  EXPECT_THAT(error_of<DataError>([&] { from_huggingface(config, theirs); }),
              HasSubstr("lm_head.weight: differs from the embedding"));
}

TEST(HuggingfaceNamesOfManyTensors, aMessageStaysShort) {
  ModelConfig config = tiny_config(ModelKind::llama);
  config.layers = 40;
  const std::string message = error_of<DataError>([&] { from_huggingface(config, {}); });
  EXPECT_THAT(message, HasSubstr("362 missing: "));
  EXPECT_THAT(message, HasSubstr("and 354 more"));
  EXPECT_LT(message.size(), 800);
}

}  // namespace
}  // namespace caravan
