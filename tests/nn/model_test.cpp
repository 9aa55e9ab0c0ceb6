#include "caravan/models/model.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/nn/loss/cross_entropy.h"
#include "caravan/nn/model_fields.h"
#include "tests/nn/tiny.h"

namespace caravan::model_test {
namespace {

using testing::distance;
using testing::Fixture;

/// The same model in transformers (fixtures/make.py): GPT-2, Llama and their relatives, tied and untied, grouped and
/// uneven, with experts.
class AgainstTransformers : public ::testing::TestWithParam<const char*> {
 protected:
  static ForwardContext context_of(const Fixture& fixture) {
    ForwardContext context;
    if (fixture.has("documents")) context.documents = fixture["documents"];
    if (fixture.has("token_types")) context.token_types = fixture["token_types"];
    if (fixture.has("sources")) context.sources = fixture["sources"].item<int64_t>();
    return context;
  }
  /// In the form of the fixture.
  static at::Tensor logits_of(Model& model, const Fixture& fixture, const ForwardContext& context) {
    const at::Tensor logits = model.run({fixture["ids"]}, context).front();
    if (model.config().classes > 0) {
      const at::Tensor at = (fixture["labels"] != kIgnoredLabel).flatten().nonzero().squeeze(1);
      return logits.flatten(0, 1).index_select(0, at);
    }
    return fixture.has("token_types") ? logits * context.documents.unsqueeze(-1) : logits;
  }

  /// Compares logits, loss and every gradient, in `type`, with the fixture: within `tolerance` of its norm.
  void compare(at::ScalarType type, double tolerance) {
    const Fixture fixture = testing::read_fixture(GetParam());
    const ModelConfig config = parse_huggingface_config(fixture.config, GetParam());
    const auto model = testing::whole_model(config);
    testing::set_parameters(*model, from_huggingface(config, fixture.below("parameter.", type)));
    const at::Tensor& labels = fixture["labels"];
    const double targets = (labels != kIgnoredLabel).sum().item<double>();
    ForwardContext context = context_of(fixture);
    context.loss_scale = 1 / targets;

    EXPECT_LT(distance(logits_of(*model, fixture, context), fixture["logits"]), tolerance);
    const at::Tensor loss = model->run({fixture["ids"], labels}, context).front();
    EXPECT_LT(distance(loss, fixture["loss"]), tolerance);
    loss.backward();
    const NamedTensors ours = to_huggingface(config, testing::gradients(*model), TensorKind::gradients);
    const NamedTensors theirs = fixture.below("gradient.", type);
    ASSERT_EQ(ours.size(), theirs.size());
    for (const auto& [name, gradient] : ours) {
      const at::Tensor& expected = fixture["gradient." + name];
      ASSERT_EQ(gradient.sizes(), expected.sizes()) << name;
      // The bias of the keys adds the same to all scores of a query: its gradient is 0 apart from rounding.
      const double scale = std::max(expected.norm().item<double>(), 1e-2);
      EXPECT_LT((gradient - expected).norm().item<double>() / scale, tolerance) << name;
    }
  }
};

TEST_P(AgainstTransformers, equalInFp64) {
  compare(at::kDouble, 7e-7);
}  // the fixture is rounded to fp32, as are its cosines
TEST_P(AgainstTransformers, equalInFp32) { compare(at::kFloat, 1e-5); }  // small sums under norms and caps

class NearTransformers : public AgainstTransformers {};
TEST_P(NearTransformers, inFp16) { compare(at::kHalf, 0.015); }
/// With 8 bits less; AMX: 0.077. T5 has five layers here, and scores that are not scaled: 0.18.
TEST_P(NearTransformers, inBf16) { compare(at::kBFloat16, std::string_view(GetParam()) == "t5" ? 0.25 : 0.1); }

/// A setting that does something: with its usual value the model is another.
TEST_P(AgainstTransformers, everySettingCounts) {
  const Fixture fixture = testing::read_fixture(GetParam());
  const ModelConfig config = parse_huggingface_config(fixture.config, GetParam());
  const NamedTensors values = from_huggingface(config, fixture.below("parameter.", at::kDouble));
  const auto logits_with = [&](const ModelConfig& of) {
    const auto model = testing::whole_model(of);
    testing::set_parameters(*model, values);
    return logits_of(*model, fixture, context_of(fixture));
  };
  for (const ModelField& field : model_fields()) {
    const bool is_unlike = field.role == FieldRole::function && !field.is_same(config, ModelConfig{});
    if (!is_unlike || field.key == "model.norm_epsilon") continue;  // its effect is below 1e-5
    ModelConfig other = config;
    field.copy(ModelConfig{}, other);
    try {
      other.validate();
    } catch (const UsageError&) {
      continue;
    }
    EXPECT_GT(distance(logits_with(other), fixture["logits"]), 1e-4) << field.key << " " << field.text_of(config);
  }
}

INSTANTIATE_TEST_SUITE_P(, AgainstTransformers,
                         ::testing::Values("gpt2_tied", "gpt2_untied", "llama_tied", "llama_untied", "qwen2", "mixtral",
                                           "qwen2_moe", "qwen2_moe_normalized", "llama3", "llama_linear",
                                           "llama_dynamic", "llama_yarn", "mistral", "qwen2_window", "qwen3",
                                           "qwen3_moe", "gemma", "gemma2", "gemma3", "phi3", "smollm3", "olmo2",
                                           "gpt_neox", "gpt_neox_sequential", "opt", "bloom", "falcon", "bert",
                                           "bert_gelu_new", "bert_classes", "llama_classes", "t5", "t5_gated"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(, NearTransformers,
                         ::testing::Values("gpt2_tied", "gpt2_untied", "llama_tied", "llama_untied", "qwen2", "mixtral",
                                           "qwen2_moe", "qwen2_moe_normalized", "gemma", "mistral", "qwen3", "gpt_neox",
                                           "bert", "t5"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace caravan::model_test
