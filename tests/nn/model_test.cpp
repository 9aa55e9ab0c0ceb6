#include "caravan/models/model.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/nn/loss/cross_entropy.h"
#include "tests/nn/tiny.h"

namespace caravan::model_test {
namespace {

using testing::distance;
using testing::Fixture;

/// The same model in transformers (fixtures/make.py): GPT-2, Llama and their relatives, tied and untied, grouped and
/// uneven, with experts.
class AgainstTransformers : public ::testing::TestWithParam<const char*> {
 protected:
  /// Compares logits, loss and every gradient, in `type`, with the fixture: within `tolerance` of its norm.
  void compare(at::ScalarType type, double tolerance) {
    const Fixture fixture = testing::read_fixture(GetParam());
    const ModelConfig config = parse_huggingface_config(fixture.config, GetParam());
    const auto model = testing::whole_model(config);
    testing::set_parameters(*model, from_huggingface(config, fixture.below("parameter.", type)));
    const at::Tensor& labels = fixture["labels"];
    const double targets = (labels != kIgnoredLabel).sum().item<double>();
    const ForwardContext context{.loss_scale = 1 / targets};

    EXPECT_LT(distance(model->run({fixture["ids"]}, context).front(), fixture["logits"]), tolerance);
    const at::Tensor loss = model->run({fixture["ids"], labels}, context).front();
    EXPECT_LT(distance(loss, fixture["loss"]), tolerance);
    loss.backward();
    const NamedTensors ours = to_huggingface(config, testing::gradients(*model));
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

TEST_P(AgainstTransformers, equalInFp64) { compare(at::kDouble, 2e-7); }  // the fixture is rounded to fp32
TEST_P(AgainstTransformers, equalInFp32) { compare(at::kFloat, 2e-6); }   // about 20 consecutive fp32 roundings
TEST_P(AgainstTransformers, nearInFp16) { compare(at::kHalf, 0.01); }
TEST_P(AgainstTransformers, nearInBf16) { compare(at::kBFloat16, 0.1); }  // the same with 8 bits; AMX: 0.077

INSTANTIATE_TEST_SUITE_P(, AgainstTransformers,
                         ::testing::Values("gpt2_tied", "gpt2_untied", "llama_tied", "llama_untied", "qwen2", "mixtral",
                                           "qwen2_moe", "qwen2_moe_normalized"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace caravan::model_test
