/// Layers in uneven tiles against ATen in fp64, and against themselves without tiles.

#include "caravan/nn/tiles.h"

#include <numeric>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/models/head.h"
#include "caravan/nn/embedding.h"
#include "caravan/nn/experts/experts.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/nn/cut.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::tiles_test {
namespace {

/// Sums in fp64 in another order.
constexpr double kTolerance = 1e-12;

int64_t draw(uint64_t& seed, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(RandomStream(7, "tiles").bits(seed++) % static_cast<uint64_t>(high - low + 1));
}

/// 1 to 5 tiles of at least one row each.
std::vector<int64_t> random_sizes(uint64_t& seed, int64_t rows) {
  std::vector<int64_t> sizes;
  while (rows > 0) {
    sizes.push_back(sizes.size() == 4 ? rows : draw(seed, 1, rows));
    rows -= sizes.back();
  }
  return sizes;
}

/// Sets the parameters: tiles to their rows of the values of the whole tensor.
void set_values(Module& module, const std::map<std::string, at::Tensor>& values) {
  for (Parameter* parameter : module.parameters()) {
    const at::Tensor& whole = values.at(parameter->whole_name());
    at::Tensor own = whole.detach();
    if (parameter->tile_of() != nullptr) {
      const TileOf::Part& part = parameter->tile_of()->parts.front();
      own = own.narrow(0, part.begin, part.rows);
    }
    const Layout layout = Layout::all(one_rank(), Invariant{});
    parameter->set_sharded(own.clone().requires_grad_(), layout);
  }
}

std::map<std::string, at::Tensor> values_of(Module& untiled, at::ScalarType type = at::kDouble) {
  std::map<std::string, at::Tensor> values;
  uint64_t seed = 40;
  for (const Parameter* parameter : untiled.parameters()) {
    values[parameter->name()] = normal(parameter->global_shape(), ++seed).to(type).requires_grad_();
  }
  return values;
}

/// The gradients, put together: by name of the whole tensors.
std::map<std::string, at::Tensor> gradients_of(Module& module) {
  std::map<std::string, std::vector<at::Tensor>> parts;
  for (const Parameter* parameter : module.parameters()) {
    parts[parameter->whole_name()].push_back(parameter->unsharded().grad());
  }
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, tensors] : parts) all[name] = at::cat(tensors);
  return all;
}

at::Tensor of_module(Module& module, const Tensors& inputs, const ForwardContext& context = {}) {
  return module.run(inputs, context).front();
}

void expect_equal(const std::map<std::string, at::Tensor>& got, const std::map<std::string, at::Tensor>& want,
                  double tolerance = kTolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    ASSERT_TRUE(values.grad().defined()) << name;
    EXPECT_LE(distance(got.at(name), values.grad()), tolerance) << name;
  }
}

TEST(Tiles, LinearEqualsAten) {
  uint64_t seed = 0;
  for (int round = 0; round < 30; ++round) {
    const int64_t in = draw(seed, 1, 17), out = draw(seed, 1, 41), rows = draw(seed, 1, 20);
    Linear linear({.in = in, .out = out, .bias = round % 2 == 0});
    const auto values = values_of(linear);
    cut_into(linear, random_sizes(seed, out));
    set_values(linear, values);
    EXPECT_EQ(linear.own_parameters().size(), round % 2 == 0 ? 1U : 0U) << "the weight belongs to the tiles";
    const at::Tensor x = normal({2, rows, in}, seed).to(at::kDouble).requires_grad_();
    const at::Tensor x_aten = x.detach().clone().requires_grad_();
    const at::Tensor y = of_module(linear, {x});
    const auto bias = round % 2 == 0 ? std::optional(values.at("bias")) : std::nullopt;
    const at::Tensor want = at::linear(x_aten, values.at("weight"), bias);
    EXPECT_LE(distance(y, want), kTolerance);
    const at::Tensor weights = normal(y.sizes().vec(), seed + 1).to(at::kDouble);
    (y * weights).sum().backward();
    (want * weights).sum().backward();
    EXPECT_LE(distance(x.grad(), x_aten.grad()), kTolerance);
    expect_equal(gradients_of(linear), values);
  }
}

/// Its gradient is rounded once, that of ATen too; products of bf16 may be rounded before they are added: one more unit
/// for each of the 3 tiles.
TEST(Tiles, LinearInBf16RoundsTheGradientOfItsInputOnce) {
  Linear linear({.in = 64, .out = 50});
  const auto values = values_of(linear, at::kBFloat16);
  cut_into(linear, {17, 32, 1});
  set_values(linear, values);
  const at::Tensor x = normal({2, 20, 64}, 5).to(at::kBFloat16).requires_grad_();
  const at::Tensor dy = normal({2, 20, 50}, 6).to(at::kBFloat16);
  of_module(linear, {x}).backward(dy);
  const at::Tensor want = at::matmul(dy.to(at::kDouble), values.at("weight").detach().to(at::kDouble));
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_LE(distance(x.grad().to(at::kDouble), want), 4 * 0x1p-9);
}

TEST(Tiles, LinearWithoutGradientsKeepsNothing) {
  Linear linear({.in = 3, .out = 7});
  const auto values = values_of(linear);
  cut_into(linear, {2, 5});
  set_values(linear, values);
  const at::Tensor x = normal({1, 4, 3}, 1).to(at::kDouble);
  const at::NoGradGuard no_grad;
  const at::Tensor y = of_module(linear, {x});
  EXPECT_FALSE(y.requires_grad());
  EXPECT_LE(distance(y, at::linear(x, values.at("weight"), values.at("bias"))), kTolerance);
}

TEST(Tiles, FrozenWeightsPassTheGradientOn) {
  Linear linear({.in = 3, .out = 7, .bias = false});
  const auto values = values_of(linear);
  cut_into(linear, {2, 5});
  set_values(linear, values);
  for (Parameter* tile : linear.parameters()) tile->set_requires_grad(false);
  const at::Tensor x = normal({1, 4, 3}, 1).to(at::kDouble).requires_grad_();
  of_module(linear, {x}).sum().backward();
  EXPECT_LE(distance(x.grad(), values.at("weight").detach().sum(0).expand({1, 4, 3})), kTolerance);
  for (const Parameter* tile : linear.parameters()) EXPECT_FALSE(tile->unsharded().grad().defined());
}

TEST(Tiles, RefusesAnInputOfAnotherWidth) {
  Linear linear({.in = 3, .out = 7});
  const auto values = values_of(linear);
  cut_into(linear, {2, 5});
  set_values(linear, values);
  EXPECT_THROW(of_module(linear, {normal({1, 4, 2}).to(at::kDouble)}), ShapeError);
  EXPECT_THROW(of_module(linear, {normal({1, 4, 3})}), ShapeError) << "fp32";
}

TEST(Tiles, EmbeddingEqualsAten) {
  uint64_t seed = 100;
  for (int round = 0; round < 20; ++round) {
    const int64_t rows = draw(seed, 1, 30), width = draw(seed, 1, 9);
    Embedding embedding(rows, width, kInitStd);
    const auto values = values_of(embedding);
    cut_into(embedding, random_sizes(seed, rows));
    set_values(embedding, values);
    const at::Tensor ids = tokens(2, 13, rows, seed);  // some tiles have no token
    const at::Tensor y = of_module(embedding, {ids});
    const at::Tensor want = at::embedding(values.at("weight"), ids);
    EXPECT_TRUE(y.equal(want));
    const at::Tensor weights = normal(y.sizes().vec(), seed).to(at::kDouble);
    (y * weights).sum().backward();
    (want * weights).sum().backward();
    expect_equal(gradients_of(embedding), values);
  }
  Embedding embedding(5, 2, kInitStd);
  const auto values = values_of(embedding);
  cut_into(embedding, {2, 3});
  set_values(embedding, values);
  EXPECT_THROW(of_module(embedding, {at::full({1, 2}, 5, at::kLong)}), DataError);
}

/// More tokens than a chunk, labels in every tile and ignored ones.
TEST(Tiles, LossAndLogitsEqualAten) {
  uint64_t seed = 200;
  for (const int64_t length : {1, 37, 700}) {
    const int64_t vocabulary = length == 700 ? 1501 : draw(seed, 2, 60);  // several chunks of tokens
    const ModelConfig config{
        .arch = Architecture::llama(), .layers = 1, .width = 6, .heads = 1, .context = 700, .vocabulary = vocabulary};
    Head head(config, nullptr);
    const auto values = values_of(head);
    cut_into(head, random_sizes(seed, vocabulary));
    set_values(head, values);
    const at::Tensor x = normal({2, length, 6}, seed).to(at::kDouble).requires_grad_();
    const at::Tensor x_aten = x.detach().clone().requires_grad_();
    at::Tensor labels = tokens(2, length, vocabulary, seed);
    labels[1][0] = kIgnoredLabel;
    const at::Tensor h =
        x_aten * at::rsqrt(x_aten.square().mean(-1, true) + config.norm_epsilon) * values.at("norm.weight");
    const at::Tensor logits = at::linear(h, values.at("weight"));
    const double scale = 0.3;
    const at::Tensor want =
        scale * at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten(), {}, at::Reduction::Sum, kIgnoredLabel);
    ForwardContext context;
    context.loss_scale = scale;
    const at::Tensor loss = of_module(head, {x, labels}, context);
    EXPECT_NEAR(loss.item<double>(), want.item<double>(), 1e-12 * std::abs(want.item<double>()));
    (2 * loss).backward();  // an incoming gradient other than 1
    (2 * want).backward();
    EXPECT_LE(distance(x.grad(), x_aten.grad()), kTolerance);
    expect_equal(gradients_of(head), values);
    const at::NoGradGuard no_grad;
    EXPECT_LE(distance(of_module(head, {x}), logits), kTolerance);
  }
}

TEST(Tiles, LossOfNoTargetsIsZero) {
  const ModelConfig config{
      .arch = Architecture::llama(), .layers = 1, .width = 6, .heads = 1, .context = 9, .vocabulary = 11};
  Head head(config, nullptr);
  const auto values = values_of(head);
  cut_into(head, {4, 7});
  set_values(head, values);
  const at::Tensor x = normal({1, 9, 6}).to(at::kDouble).requires_grad_();
  const at::Tensor loss = of_module(head, {x, at::full({1, 9}, kIgnoredLabel, at::kLong)});
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  EXPECT_EQ(x.grad().abs().max().item<double>(), 0);
  for (const auto& [name, gradient] : gradients_of(head)) EXPECT_EQ(gradient.abs().max().item<double>(), 0) << name;
  EXPECT_THROW(of_module(head, {x, at::full({1, 9}, 11, at::kLong)}), DataError);
}

/// Tiles of whole experts, against the same layer without tiles (whose reference is ATen, in experts_test.cpp).
TEST(Tiles, ExpertsEqualThemselves) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    const ModelConfig config{.arch = kind,
                             .layers = 1,
                             .width = 8,
                             .heads = 2,
                             .context = 6,
                             .vocabulary = 11,
                             .hidden = 5,
                             .moe = {.experts = 7, .top_k = 2}};
    Experts whole(config), tiled(config);
    const auto values = values_of(whole);
    cut_into(tiled, {3, 1, 3});
    set_values(whole, values);
    set_values(tiled, values);
    at::Tensor experts = tokens(2, 6 * 2, 5, 3).view({2, 6, 2});  // experts 5 and 6 have no token
    experts.select(2, 1).copy_((experts.select(2, 0) + 1).remainder(5));
    const at::Tensor weights = normal({2, 6, 8}, 9).to(at::kDouble);
    std::vector<Tensors> results;
    for (Experts* layer : {&whole, &tiled}) {
      const at::Tensor x = normal({2, 6, 8}, 4).to(at::kDouble).requires_grad_();
      const at::Tensor gates = normal({2, 6, 2}, 5).to(at::kDouble).requires_grad_();
      const at::Tensor y = of_module(*layer, {x, gates, experts});
      (y * weights).sum().backward();
      results.push_back({y, x.grad(), gates.grad()});
    }
    for (size_t i = 0; i < results[0].size(); ++i) EXPECT_LE(distance(results[1][i], results[0][i]), kTolerance) << i;
    const auto of_whole = gradients_of(whole), of_tiled = gradients_of(tiled);
    ASSERT_EQ(of_whole.size(), of_tiled.size());
    for (const auto& [name, gradient] : of_whole) {
      EXPECT_TRUE(of_tiled.at(name).equal(gradient)) << name << ": the same products";
    }
  }
}

}  // namespace
}  // namespace caravan::testing::tiles_test
