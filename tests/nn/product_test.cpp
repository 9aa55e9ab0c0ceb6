#include "caravan/nn/product/product.h"

#include <atomic>
#include <cmath>
#include <thread>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/system/processor.h"
#include "caravan/nn/attention/fused_attention.h"
#include "caravan/nn/loss/cross_entropy.h"
#include "caravan/nn/product/tile_product.h"
#include "tests/data/support.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"
#include "tests/nn/with_products.h"
#include "tests/nn/with_variable.h"

namespace caravan::product_test {
namespace {

using testing::compare;
using testing::distance;
using testing::normal;
using testing::Op;
using testing::Slots;
using testing::WithProducts;
using testing::WithVariable;

/// Each library for each product, for every build of torch.
std::vector<std::string> all_libraries() {
  std::vector<std::string> texts;
  for (const ProductLibrary library : available_product_libraries()) texts.emplace_back(name(library));
  return texts;
}

class Products : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(Products, matchAtenWithEveryLibrary) {
  const auto [rows, in, out] = GetParam();
  const Op reference = [](const Tensors& x) {
    return at::linear(x[0], x[1], x.size() > 2 ? std::optional(x[2]) : std::nullopt);
  };
  Slots slots;
  const Op ours = [&](const Tensors& x) {
    return linear(x[0], slots.of(x[1]), x.size() > 2 ? &slots.of(x[2]) : nullptr);
  };
  const Tensors inputs{normal({rows, 3, in}, 1), normal({out, in}, 2), normal({out}, 3)};
  const auto roundings = static_cast<double>(std::max({rows, in, out}));
  for (const std::string& library : all_libraries()) {
    for (const char* bf16 : {" bf16=native", " bf16=fp32"}) {
      const WithProducts with(library + bf16);
      SCOPED_TRACE(products_in_use());
      compare(ours, reference, inputs, std::sqrt(roundings));
      compare(ours, reference, {inputs[0], inputs[1]}, std::sqrt(roundings));
      compare(ours, reference, {inputs[0].select(1, 0), inputs[1]}, std::sqrt(roundings));  // rows with gaps
    }
    for (const ProductKind kind : {ProductKind::forward, ProductKind::dx, ProductKind::dw}) {
      const WithProducts with(library);
      for (const bool transposed : {false, true}) {
        const at::Tensor a = transposed ? normal({in, rows}, 4).t() : normal({rows, in}, 4);
        const at::Tensor b = transposed ? normal({in, out}, 5).t() : normal({out, in}, 5);
        EXPECT_LT(distance(product(a, b, kind), at::matmul(a.to(at::kDouble), b.t().to(at::kDouble))), 1e-6);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Products,
                         ::testing::Combine(::testing::Values(1, 16, 67), ::testing::Values(1, 18, 64),
                                            ::testing::Values(1, 23, 128)));

/// Ranks that are threads compute at the same time, each its own shapes.
TEST(ProductsEdges, threadsDoNotDisturbEachOther) {
  for (const std::string& library : all_libraries()) {
    const WithProducts with(library);
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int64_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([thread, &wrong] {
        for (int64_t i = 0; i < 40; ++i) {
          const at::Tensor a = normal({17 + i, 9 + thread}, 1);
          const at::Tensor b = normal({21 + thread, 9 + thread}, 2);
          if (distance(product(a, b), at::matmul(a.to(at::kDouble), b.t().to(at::kDouble))) > 1e-6) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << library;
  }
}

TEST(ProductsEdges, aFrozenWeightOrInputGetsNoGradient) {
  const at::Tensor x = normal({40, 6}, 1).requires_grad_(true);
  const at::Tensor weight = normal({5, 6}, 2).requires_grad_(true);
  Slots slots;
  Parameter& bias = slots.of(normal({5}, 3).requires_grad_(true));
  Parameter& frozen = slots.of(weight.detach());
  linear(x, frozen, &bias).sum().backward();
  EXPECT_LT(distance(x.grad(), weight.detach().sum(0).expand({40, 6})), 1e-6);
  EXPECT_FALSE(frozen.unsharded().grad().defined());
  EXPECT_TRUE(bias.unsharded().grad().equal(at::full({5}, 40.0)));
  linear(x.detach(), slots.of(weight)).sum().backward();
  EXPECT_LT(distance(weight.grad(), x.detach().sum(0).expand({5, 6})), 1e-6);
  EXPECT_FALSE(linear(x.detach(), frozen).requires_grad());
}

/// What the choice does not decide about is torch's linear layer, bit for bit: fp64, bf16 without tiles, the gradients
/// of few rows.
TEST(ProductsEdges, othersAreAtensBitForBit) {
  const WithProducts with("bf16=native");
  for (const auto& [type, rows] : {std::pair(at::kDouble, 40), {at::kBFloat16, 40}, {at::kFloat, 5}, {at::kFloat, 1}}) {
    if (type == at::kBFloat16 && has_bf16_tiles()) continue;
    for (const bool has_bias : {false, true}) {
      Slots slots;
      Tensors ours{normal({rows, 3, 24}, 1).to(type), normal({17, 24}, 2).to(type), normal({17}, 3).to(type)};
      if (type == at::kFloat) ours[0] = ours[0].select(1, 0).contiguous();
      Tensors theirs;
      for (at::Tensor& x : ours) theirs.push_back(x.clone().requires_grad_(true));
      for (at::Tensor& x : ours) x.requires_grad_(true);
      const at::Tensor y = linear(ours[0], slots.of(ours[1]), has_bias ? &slots.of(ours[2]) : nullptr);
      const at::Tensor want = at::linear(theirs[0], theirs[1], has_bias ? std::optional(theirs[2]) : std::nullopt);
      EXPECT_LE(distance(y, want), type == at::kFloat ? 1e-6 : 0) << type;  // few rows are added up in another order
      const at::Tensor outer = normal(y.sizes().vec(), 4).to(type);
      y.backward(outer);
      want.backward(outer);
      for (size_t i = 0; i < (has_bias ? 3U : 2U); ++i) {
        // Sums of rows are ours, in another order.
        const double tolerance = i < 2 ? 0 : type == at::kBFloat16 ? 0x1p-8 : 1e-6;
        EXPECT_LE(distance(ours[i].grad(), theirs[i].grad()), tolerance) << type << " gradient " << i;
      }
    }
  }
}

/// The gradient of a weight is not rounded to bf16, however x lies.
TEST(ProductsEdges, gradientsOfWeightsAreInFp32) {
  if (!has_bf16_tiles()) return;
  const WithProducts with("bf16=native");
  constexpr int64_t kTokens = 65;
  const at::Tensor dy = normal({kTokens, 8}, 1).to(at::kBFloat16), x = normal({kTokens, 24}, 2).to(at::kBFloat16);
  const at::Tensor exact = at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
  for (const at::Tensor& lying : {x, x.t().contiguous().t()}) {
    at::Tensor sum = at::zeros({8, 24});
    add_product(sum, /*is_empty=*/true, dy.t(), lying.t(), ProductKind::dw, kTokens);
    EXPECT_LT(distance(sum, exact), 1e-6);
  }
}

TEST(ProductsEdges, noRowsOrColumnsAreEmpty) {
  Slots slots;
  Parameter& no_rows = slots.of(at::empty({0, 6}).requires_grad_(true));
  Parameter& no_columns = slots.of(at::empty({4, 0}).requires_grad_(true));
  const at::Tensor x = normal({2, 20, 6}, 1).requires_grad_(true);
  const at::Tensor y = linear(x, no_rows);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 20, 0}));
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(at::zeros({2, 20, 6})));
  EXPECT_TRUE(linear(at::empty({2, 20, 0}), no_columns).equal(at::zeros({2, 20, 4})));
}

TEST(ProductsInUse, areTheRequestedOnes) {
  const std::string own = chosen_products();
  EXPECT_EQ(chosen_products(), own);
  const std::string library(name(available_product_libraries().front()));
  const WithProducts with(library + " bf16=fp32 attention=native");
  EXPECT_EQ(products_in_use(), library + " bf16=fp32 attention=native");
  EXPECT_EQ(chosen_products(), own);
  EXPECT_THROW(use_products("cublas"), UsageError);
  EXPECT_EQ(products_in_use(), library + " bf16=fp32 attention=native");
}

TEST(ProductsInUse, followTheVariableThenTheTunedFileThenTheRule) {
  TemporaryFolder cache;
  const WithVariable folder("CARAVAN_CACHE", cache.path().c_str());
  const WithVariable none("CARAVAN_PRODUCTS", nullptr);
  const std::vector<ProductLibrary> available = available_product_libraries();
  const std::string rule = to_text(product_rule(processor_class(), available));
  EXPECT_EQ(chosen_products(), rule);
  const std::string tuned = fmt::format("{} bf16=fp32 attention=native", name(available.back()));
  const char* attention = has_bf16_tiles() ? "native" : "fp32";  // not on every processor
  const std::string used = fmt::format("{} bf16=fp32 attention={}", name(available.back()), attention);
  write_tuned_products(cache.path(), "another class", tuned);
  EXPECT_EQ(chosen_products(), rule);
  write_tuned_products(cache.path(), processor_class(), tuned);
  EXPECT_EQ(chosen_products(), used);
  {
    const WithVariable given("CARAVAN_PRODUCTS", "attention=fp32");
    EXPECT_EQ(chosen_products(), fmt::format("{} bf16=fp32 attention=fp32", name(available.back())));
  }
  const WithVariable wrong("CARAVAN_PRODUCTS", "attention=fp16");
  EXPECT_THROW(chosen_products(), UsageError);
}

constexpr double kBf16Rounding = 0x1p-9;  ///< the most that rounding to bf16 changes a number, relative to it
constexpr double kFp32Noise = 1e-5;       ///< fp32 sums of the sizes here: far below one rounding to bf16

/// The value and the gradients of one layer on bf16 operands, with bf16=native or bf16=fp32.
Tensors linear_in_bf16(const char* arithmetic, const Tensors& inputs, const at::Tensor& outer) {
  const WithProducts with(arithmetic);
  Tensors x;
  for (const at::Tensor& input : inputs) x.push_back(input.to(at::kBFloat16).detach().requires_grad_(true));
  Slots slots;
  const at::Tensor y = linear(x[0], slots.of(x[1]), &slots.of(x[2]));
  y.backward(outer.to(at::kBFloat16));
  return {y.detach(), x[0].grad(), x[1].grad(), x[2].grad()};
}

TEST(ProductsInBf16, areRoundedOnce) {
  const Tensors inputs{normal({70, 96}, 1), normal({40, 96}, 2), normal({40}, 3)};
  const at::Tensor outer = normal({70, 40}, 4).to(at::kBFloat16);
  Tensors wide;
  for (const at::Tensor& x : inputs) wide.push_back(x.to(at::kBFloat16).to(at::kDouble).requires_grad_(true));
  const at::Tensor y = at::linear(wide[0], wide[1], wide[2]);
  y.backward(outer.to(at::kDouble));
  const Tensors exact{y.detach(), wide[0].grad(), wide[1].grad(), wide[2].grad()};
  const Tensors ours = linear_in_bf16("bf16=fp32", inputs, outer);
  const Tensors native = linear_in_bf16("bf16=native", inputs, outer);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), at::kBFloat16);
    EXPECT_LT(distance(ours[i], exact[i]), kBf16Rounding + kFp32Noise) << i;
    EXPECT_LT(distance(ours[i], native[i]), 2 * (kBf16Rounding + kFp32Noise)) << i;
  }
}

/// Several chunks add their parts of the weight's gradient in fp32, so it is rounded once for any number of chunks. The
/// gradient of the logits is rounded to bf16 before, and so are the logits.
TEST(ProductsInBf16, crossEntropyDiffersByRoundingsOnly) {
  const at::Tensor labels = testing::tokens(1, 601, 300, 3).view({601});
  const auto run = [&](const char* arithmetic) {
    const WithProducts with(arithmetic);
    const at::Tensor hidden = normal({601, 24}, 1).to(at::kBFloat16).requires_grad_(true);
    const at::Tensor weight = normal({300, 24}, 2).to(at::kBFloat16).requires_grad_(true);
    Slots slots;
    CrossEntropy cross_entropy(slots.of(weight));
    const at::Tensor loss = cross_entropy.run({hidden, labels}, {}).front();
    loss.backward();
    return Tensors{loss.detach(), hidden.grad(), weight.grad()};
  };
  const Tensors ours = run("bf16=fp32");
  const Tensors native = run("bf16=native");
  EXPECT_LT(distance(ours[0], native[0]), kBf16Rounding);
  for (const size_t i : {1, 2}) EXPECT_LT(distance(ours[i], native[i]), 4 * kBf16Rounding) << i;
}

struct AttentionCase {
  int64_t heads;
  int64_t kv_heads;
  int64_t queries;
  int64_t keys;
};

class AttentionInBf16 : public ::testing::TestWithParam<AttentionCase> {
 protected:
  /// Operands as a layer gives them: [batch, positions, heads, width], seen as [batch, heads, positions, width].
  Tensors operands(at::ScalarType type) const {
    const auto& [heads, kv_heads, queries, keys] = GetParam();
    Tensors x{normal({2, queries, heads, 16}, 1), normal({2, keys, kv_heads, 16}, 2),
              normal({2, keys, kv_heads, 16}, 3)};
    for (at::Tensor& one : x) one = one.to(at::kBFloat16).to(type).requires_grad_(true);
    return x;
  }
  at::Tensor outer() const {
    return normal({2, GetParam().queries, GetParam().heads, 16}, 4).to(at::kBFloat16).transpose(1, 2);
  }
  /// True where a query, one of the last positions, sees a key.
  at::Tensor visible() const {
    return at::ones({GetParam().queries, GetParam().keys}, at::kBool).tril(GetParam().keys - GetParam().queries);
  }
};

struct Attended {
  at::Tensor value;
  Tensors gradients;
};

/// The plain formula in fp64. `bounds`: how much one rounding of the output, which backward reads again, may change
/// each gradient; for the gradients of q and k that is an error of sum(dy * y) in every row.
Attended attend_exactly(const Tensors& x, const at::Tensor& outer, const at::Tensor& visible, Tensors& bounds) {
  const int64_t group = x[0].size(2) / x[1].size(2);
  const at::Tensor q = x[0].transpose(1, 2);
  const at::Tensor k = x[1].transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor v = x[2].transpose(1, 2).repeat_interleave(group, 1);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor weights =
      at::softmax((at::matmul(q, k.transpose(2, 3)) * scale).masked_fill(visible.logical_not(), -INFINITY), -1);
  const at::Tensor y = at::matmul(weights, v);
  y.backward(outer);
  const at::Tensor rows = (outer.abs() * y.detach().abs()).sum(-1, true) * kBf16Rounding * scale;
  const at::Tensor p = weights.detach() * rows;
  const auto norm_of = [](const at::Tensor& t) { return t.norm(); };
  bounds = {norm_of(at::matmul(p, k.detach().abs())), norm_of(at::matmul(p.transpose(2, 3), q.detach().abs())),
            at::zeros({}, at::kDouble)};
  return {y.detach(), {x[0].grad(), x[1].grad(), x[2].grad()}};
}

TEST_P(AttentionInBf16, isWithinItsRoundings) {
  const bool is_square = GetParam().queries == GetParam().keys;
  Tensors bounds;
  const Attended exact = attend_exactly(operands(at::kDouble), outer().to(at::kDouble), visible(), bounds);
  for (const char* arithmetic : {"attention=fp32", "attention=native"}) {
    const WithProducts with(arithmetic);
    SCOPED_TRACE(arithmetic);
    const Tensors x = operands(at::kBFloat16);
    const VisibleKeys seen =
        is_square ? VisibleKeys::causal()
                  : VisibleKeys::up_to(at::arange(GetParam().keys - GetParam().queries, GetParam().keys));
    if (std::string(arithmetic) == "attention=native" && !has_bf16_tiles()) {
      EXPECT_THROW(fused_attention(x[0], x[1], x[2], seen), UsageError);
      continue;
    }
    const at::Tensor y = fused_attention(x[0], x[1], x[2], seen).transpose(1, 2);
    y.backward(outer());
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    // The native kernel also rounds the weights, and in backward their gradients.
    const double more = std::string(arithmetic) == "attention=fp32" ? 1 : 6;
    EXPECT_LT(distance(y, exact.value), more * kBf16Rounding + kFp32Noise);
    for (size_t i = 0; i < 3; ++i) {
      const double norm = exact.gradients[i].norm().item<double>();
      const double bound = kBf16Rounding * norm + bounds[i].item<double>() + kFp32Noise * norm;
      EXPECT_LT((x[i].grad().to(at::kDouble) - exact.gradients[i]).norm().item<double>(), more * bound) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionInBf16,
                         ::testing::Values(AttentionCase{3, 3, 40, 40}, AttentionCase{4, 2, 33, 33},
                                           AttentionCase{4, 1, 5, 37}, AttentionCase{2, 2, 1, 9}));

}  // namespace
}  // namespace caravan::product_test
