/// Losses of pairs against TRL (tests/manual/preference_fixture.py).

#include "caravan/nn/loss/preference_loss.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::preference_loss_test {
namespace {

struct LossCase {
  const char* name;
  PreferenceSettings settings;
};

void PrintTo(const LossCase& what, std::ostream* out) { *out << what.name; }

constexpr LossCase kCases[] = {{"dpo", {PreferenceKind::dpo, 0.3, 0}},
                               {"smoothed", {PreferenceKind::dpo, 0.3, 0.2}},
                               {"ipo", {PreferenceKind::ipo, 0.3, 0}}};

class AgainstTrl : public ::testing::TestWithParam<LossCase> {
 protected:
  std::unique_ptr<Model> model_of(const char* prefix, at::ScalarType type) const {
    auto model = whole_model(config);
    set_parameters(*model, from_huggingface(config, fixture.below(prefix, type)));
    return model;
  }
  at::Tensor run(Model& model, PreferencePass pass) const {
    ForwardContext context;
    context.loss_scale = 1.0 / 3;  // of three pairs
    context.preference = std::make_shared<const PreferencePass>(std::move(pass));
    return model.run({fixture["ids"], fixture["labels"]}, context).front();
  }
  at::Tensor reference(at::ScalarType type) const {
    const at::NoGradGuard no_grad;
    return run(*model_of("reference.", type), {.settings = GetParam().settings});
  }

  /// Log probabilities, loss, rewards and gradients within `tolerance` of the fixture, which is rounded to fp32.
  void compare(at::ScalarType type, double tolerance) {
    const std::string name = GetParam().name;
    PreferencePass pass{
        .settings = GetParam().settings, .reference = reference(type), .sums = std::make_shared<PreferenceSums>()};
    EXPECT_LT(distance(pass.reference, fixture["log_probs"][1]), tolerance);
    const auto model = model_of("parameter.", type);
    const at::Tensor loss = run(*model, pass);
    EXPECT_LT(distance(loss, fixture[name + ".loss"]), tolerance);
    const at::Tensor rewards = fixture["rewards"].view({3, 2}).to(at::kDouble);
    const PreferenceSums& sums = *pass.sums;
    EXPECT_EQ(sums.pairs, 3);
    // Differences of log probabilities of about 10.
    EXPECT_NEAR(sums.chosen, rewards.select(1, 0).sum().item<double>(), 10 * tolerance);
    EXPECT_NEAR(sums.rejected, rewards.select(1, 1).sum().item<double>(), 10 * tolerance);
    EXPECT_EQ(sums.right, rewards.select(1, 0).gt(rewards.select(1, 1)).sum().item<double>());
    loss.backward();
    for (const auto& [key, gradient] : to_huggingface(config, gradients(*model), TensorKind::gradients)) {
      EXPECT_LT(distance(gradient, fixture[name + ".gradient." + key]), tolerance) << key;
    }
  }

  const Fixture fixture = read_fixture("preference");
  const ModelConfig config = parse_huggingface_config(fixture.config, "preference");
};

INSTANTIATE_TEST_SUITE_P(, AgainstTrl, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST_P(AgainstTrl, EqualInFp64) { compare(at::kDouble, 1e-6); }
TEST_P(AgainstTrl, EqualInFp32) { compare(at::kFloat, 1e-5); }

/// Of a pair that is the reference itself.
TEST_P(AgainstTrl, StartsAtTheReference) {
  const auto model = model_of("reference.", at::kDouble);
  PreferencePass pass{
      .settings = GetParam().settings, .reference = reference(at::kDouble), .sums = std::make_shared<PreferenceSums>()};
  const auto loss = run(*model, pass).item<double>();
  const bool is_ipo = pass.settings.kind == PreferenceKind::ipo;
  EXPECT_NEAR(loss, is_ipo ? std::pow(1 / 0.6, 2) : std::log(2), 1e-12);
  EXPECT_EQ(pass.sums->chosen, 0) << "the same bits";
  EXPECT_EQ(pass.sums->rejected, 0);
  EXPECT_EQ(pass.sums->right, 0);
}

/// A row of padding has no loss and no gradient.
TEST_P(AgainstTrl, LeavesOutPadding) {
  const at::Tensor losses = at::tensor({0.5, 0.25, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0}, at::kDouble);
  const at::Tensor labels = at::tensor({3, 4, 5, 6, -100, -100, -100, -100}, at::kLong);
  PreferencePass pass{.settings = GetParam().settings,
                      .reference = at::tensor({-1.0, -2.0, 0.0, 0.0}, at::kDouble),
                      .sums = std::make_shared<PreferenceSums>()};
  at::Tensor factors = at::empty_like(losses);
  const double loss = preference_loss(losses, labels, pass, factors);
  EXPECT_EQ(pass.sums->pairs, 1);
  EXPECT_TRUE(factors.narrow(0, 4, 4).eq(0).all().item<bool>());
  // The factors are the derivatives.
  for (int64_t t = 0; t < 4; ++t) {
    at::Tensor more = losses.clone();
    more[t] += 1e-6;
    EXPECT_NEAR((preference_loss(more, labels, pass, at::empty_like(losses)) - loss) / 1e-6, factors[t].item<double>(),
                1e-5)
        << t;
  }
  pass.reference = at::zeros({3}, at::kDouble);
  EXPECT_THROW(preference_loss(losses, labels, pass, factors), InternalError);
}

TEST(PreferenceLoss, HasNoOverflowForLargeMargins) {
  const at::Tensor losses = at::tensor({1000.0, 0.0, 0.0, 1000.0}, at::kDouble);
  const at::Tensor labels = at::tensor({1, 1, 1, 1}, at::kLong);
  for (const double sign : {1.0, -1.0}) {
    PreferencePass pass{.settings = {.beta = 10}, .reference = at::tensor({0.0, sign * 1e5}, at::kDouble)};
    at::Tensor factors = at::empty_like(losses);
    EXPECT_NEAR(preference_loss(losses, labels, pass, factors), sign > 0 ? 0 : 1e6, 1e-3);
    EXPECT_TRUE(at::isfinite(factors).all().item<bool>());
  }
}

}  // namespace
}  // namespace caravan::testing::preference_loss_test
