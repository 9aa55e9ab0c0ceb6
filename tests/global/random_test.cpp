#include <functional>
#include <gmock/gmock.h>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>

#include "caravan/base/error.h"
#include "caravan/global/global.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::random_test {
namespace {

using Draw = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor drawn(const Draw& draw, const at::Tensor& x, const Axes& axes, const Layout& layout) {
  at::Tensor result;
  on_mesh(axes, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor first = full(draw(distribute(x, layout, context)));
    const at::Tensor again = full(draw(distribute(x, layout, context)));
    EXPECT_FALSE(at::equal(first, again)) << "two calls draw the same";
    EXPECT_EQ(context.report(), "");
    if (mesh.rank() == 0) result = first;
  });
  return result;
}

/// The same bits on 1, 2 and 3 ranks, cut evenly, unevenly, in blocks and by two axes. Returns the numbers.
at::Tensor check(const Draw& draw, at::IntArrayRef sizes = {6, 10, 4}) {
  const at::Tensor x = random_tensor(sizes, 3).abs();
  const at::Tensor alone = drawn(draw, x, {{"a", 1}}, {});
  const auto same = [&](const Axes& axes, const Layout& layout) {
    EXPECT_TRUE(at::equal(alone, drawn(draw, x, axes, layout))) << layout.to_string();
  };
  same({{"a", 2}}, {});
  same({{"a", 2}}, {{"a", Shard{0}}});
  same({{"a", 3}}, {{"a", Shard{1}}});
  same({{"a", 3}}, {{"a", Shard{1, {sizes[1] - 3, 0, 3}}}});
  same({{"a", 2}}, {{"a", Shard{0, {}, -1, -1, 3}}});
  same({{"a", 2}, {"b", 2}}, {{"a", Shard{1}}, {"b", Shard{0}}});
  same({{"a", 2}, {"b", 2}}, {{"b", Shard{1}}, {"a", Shard{1}}});
  return alone;
}

double mean_of(const at::Tensor& x) { return x.to(at::kDouble).mean().item<double>(); }

// Of 12000 numbers: six standard errors of the mean, so that no correct stream fails, and a wrong scale does.
constexpr double kErrors = 6 / 109.5;
const std::vector<int64_t> kMany{6, 100, 20};

TEST(GlobalRandom, uniform) {
  const at::Tensor x = check([](const at::Tensor& x) { return x.clone().uniform_(2, 4); }, kMany);
  EXPECT_GE(x.min().item<double>(), 2);
  EXPECT_LT(x.max().item<double>(), 4);
  EXPECT_NEAR(mean_of(x), 3, kErrors * 0.58);
}
TEST(GlobalRandom, normal) {
  const at::Tensor x = check([](const at::Tensor& x) { return x.clone().normal_(1, 2); }, kMany);
  EXPECT_NEAR(mean_of(x), 1, kErrors * 2);
  EXPECT_NEAR(mean_of((x - 1).square()), 4, kErrors * 4 * 1.42);
}
TEST(GlobalRandom, bernoulli) {
  const at::Tensor x = check([](const at::Tensor& x) { return x.clone().bernoulli_(0.3); }, kMany);
  EXPECT_NEAR(mean_of(x), 0.3, kErrors * 0.46);
  check([](const at::Tensor& x) { return at::bernoulli(x); });
  check([](const at::Tensor& x) { return at::zeros_like(x).bernoulli_(x); });
}
TEST(GlobalRandom, other_distributions) {
  EXPECT_NEAR(mean_of(check([](const at::Tensor& x) { return x.clone().exponential_(2); }, kMany)), 0.5, kErrors * 0.5);
  EXPECT_NEAR(mean_of(check([](const at::Tensor& x) { return x.clone().geometric_(0.4); }, kMany)), 2.5,
              kErrors * 1.94);
  EXPECT_NEAR(mean_of(check([](const at::Tensor& x) { return x.clone().log_normal_(0, 0.5); }, kMany)), 1.1331,
              kErrors * 0.61);
  EXPECT_NEAR(mean_of(check([](const at::Tensor& x) { return x.clone().random_(3, 8); }, kMany)), 5, kErrors * 1.42);
  check([](const at::Tensor& x) { return x.clone().cauchy_(1, 2); });
}
TEST(GlobalRandom, counts) {
  EXPECT_NEAR(mean_of(check([](const at::Tensor& x) { return at::poisson(at::full_like(x, 900.5)); }, kMany)), 900.5,
              kErrors * 30.1);
  const auto binomial = [](const at::Tensor& x) { return at::binomial(at::full_like(x, 700), at::full_like(x, 0.8)); };
  EXPECT_NEAR(mean_of(check(binomial, kMany)), 560, kErrors * 10.6);
}
TEST(GlobalRandom, tensors_like_others) {
  check([](const at::Tensor& x) { return at::rand_like(x); });
  check([](const at::Tensor& x) { return at::randn_like(x); });
  const at::Tensor x = check([](const at::Tensor& x) { return at::randint_like(x, 3, 6); }, kMany);
  EXPECT_EQ(x.min().item<double>(), 3);
  EXPECT_EQ(x.max().item<double>(), 5);
  check([](const at::Tensor& x) { return at::normal(x, x); });
}
TEST(GlobalRandom, dropout) {
  const at::Tensor x = check([](const at::Tensor& x) { return at::dropout(at::ones_like(x), 0.25, true); }, kMany);
  EXPECT_NEAR(mean_of(x), 1, kErrors * 0.58);
  check([](const at::Tensor& x) { return std::get<0>(at::native_dropout(x, 0.25, true)); });
  check([](const at::Tensor& x) { return at::feature_dropout(x, 0.5, true); }, {6, 10, 2, 2});
  check([](const at::Tensor& x) { return at::alpha_dropout(x, 0.5, true); });
}
TEST(GlobalRandom, multinomial) {
  const Draw replaced = [](const at::Tensor& x) { return at::multinomial(x, 3, true); };
  const Draw once = [](const at::Tensor& x) { return at::multinomial(x, 5, false); };
  const at::Tensor x = random_tensor({6, 5}, 3).abs();
  for (const Draw& draw : {replaced, once}) {
    const at::Tensor alone = drawn(draw, x, {{"a", 1}}, {});
    EXPECT_TRUE(at::equal(alone, drawn(draw, x, {{"a", 2}}, {{"a", Shard{0}}})));
    EXPECT_TRUE(at::equal(alone, drawn(draw, x, {{"a", 3}}, {{"a", Shard{0, {1, 0, 5}}}})));
  }
  const at::Tensor all = std::get<0>(drawn(once, x, {{"a", 1}}, {}).sort(-1));
  EXPECT_TRUE(at::equal(all, at::arange(5).expand({6, 5})));
}

TEST(GlobalRandom, ops_without_a_rule_are_refused) {
  on_mesh({{"a", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    for (const Layout& layout : {Layout{}, Layout{{"a", Shard{0}}}}) {
      const at::Tensor x = distribute(random_tensor({6, 4}, 3).abs(), layout, context);
      EXPECT_THROW(at::_standard_gamma(x), UsageError);
      EXPECT_THROW(at::_sample_dirichlet(x), UsageError);
      EXPECT_THROW(at::randint_like(x, at::scalar_tensor(5)), UsageError);
    }
    try {
      at::_standard_gamma(distribute(at::ones({6}), {}, context));
      ADD_FAILURE() << "each rank draws its own";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("aten::_standard_gamma"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("local_map()"));
    }
    // Without dropout, an op that might draw does not.
    const at::Tensor x = distribute(random_tensor({2, 2, 3, 4}, 4), {}, context);
    EXPECT_NO_THROW(at::scaled_dot_product_attention(x, x, x));
  });
}

}  // namespace
}  // namespace caravan::testing::random_test
