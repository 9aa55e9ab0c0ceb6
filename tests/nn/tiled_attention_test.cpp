#include "caravan/nn/attention/tiled_attention.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/product/tile_product.h"
#include "tests/nn/compare.h"
#include "tests/nn/exact_attention.h"
#include "tests/nn/tiny.h"

namespace caravan::tiled_attention_test {
namespace {

using testing::expect_same_on_threads;
using testing::normal;

using Sizes = testing::AttentionSizes;
using Operands = testing::AttentionOperands;
using Results = testing::AttentionResults;
using testing::exact;
using testing::expect_close;
using testing::kFp32;
using testing::kNames;
using testing::operands;
using testing::tiled;

at::Tensor causal(int64_t queries, int64_t keys) { return at::ones({queries, keys}, at::kBool).tril(keys - queries); }

class TiledAttention : public ::testing::TestWithParam<Sizes> {};

TEST_P(TiledAttention, isTheFormula) {
  const Sizes& s = GetParam();
  const Operands x = operands(s);
  expect_close(tiled(x, VisibleKeys::all()), exact(x, at::ones({s.queries, s.keys}, at::kBool)), kFp32);
  if (s.queries == s.keys) {
    expect_close(tiled(x, VisibleKeys::causal()), exact(x, causal(s.queries, s.keys)), kFp32);
  }
  const at::Tensor last = at::arange(s.queries).add(s.keys - s.queries).clamp_min(0);
  expect_close(tiled(x, VisibleKeys::up_to(last)), exact(x, at::arange(s.keys).le(last.unsqueeze(1))), kFp32);
}

TEST_P(TiledAttention, in16BitsIsWithinItsRoundings) {
  const Sizes& s = GetParam();
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Operands x = operands(s, type);
    const double rounding = type == at::kHalf ? 0x1p-11 : 0x1p-8;
    const Results want = exact(x, causal(s.queries, s.keys).logical_or(at::arange(s.keys).eq(0)));
    const VisibleKeys seen = VisibleKeys::up_to(at::arange(s.queries).add(s.keys - s.queries).clamp_min(0));
    expect_close(tiled(x, seen), want, 1.5 * rounding);
    if (type != at::kBFloat16 || !has_bf16_tiles()) continue;
    expect_close(tiled(x, seen, TileOperands::exact_bf16), want, 1.5 * rounding);
    expect_close(tiled(x, seen, TileOperands::rounded_bf16), want, 3 * rounding);
  }
}

INSTANTIATE_TEST_SUITE_P(, TiledAttention,
                         ::testing::Values(Sizes{1, 1, 1, 1, 1, 1}, Sizes{2, 3, 3, 2, 1, 5}, Sizes{1, 16, 16, 1, 1, 16},
                                           Sizes{1, 64, 64, 2, 2, 64}, Sizes{1, 65, 65, 3, 1, 33},
                                           Sizes{2, 130, 130, 2, 2, 20}, Sizes{1, 1, 129, 4, 2, 48},
                                           Sizes{1, 17, 200, 2, 1, 80}, Sizes{1, 70, 9, 2, 2, 24},
                                           Sizes{1, 257, 257, 1, 1, 128}, Sizes{1, 40, 300, 2, 2, 7}));

/// Documents: stretches of keys, of which some end within a tile; and numbers that come back.
TEST(TiledAttentionRanges, keepToDocuments) {
  constexpr int64_t kLength = 150;
  const Sizes s{2, kLength, kLength, 2, 1, 24};
  const Operands x = operands(s);
  const at::Tensor position = at::arange(kLength);
  const at::Tensor stretches = at::stack({position.div(37, "floor"), position.ge(64).to(at::kLong).mul(-5)});
  const at::Tensor coming_back = at::stack({position.div(10, "floor").remainder(3), position.remainder(2)});
  for (const at::Tensor& documents : {stretches, coming_back}) {
    const at::Tensor same = documents.unsqueeze(2).eq(documents.unsqueeze(1)).unsqueeze(1);
    expect_close(tiled(x, VisibleKeys::all().within_documents(documents, documents)), exact(x, same), kFp32);
    const VisibleKeys seen = VisibleKeys::causal().within_documents(documents, documents);
    expect_close(tiled(x, seen), exact(x, same.logical_and(causal(kLength, kLength))), kFp32);
    EXPECT_TRUE(seen.mask(kLength, kLength, x.q).equal(same.logical_and(causal(kLength, kLength))));
  }
  // Queries of a document that the keys lack see nothing; the last sequence sees nothing at all.
  const at::Tensor elsewhere = at::stack({position.div(75, "floor"), at::full({kLength}, 9, at::kLong)});
  const at::Tensor here = at::zeros({2, kLength}, at::kLong);
  const VisibleKeys seen = VisibleKeys::all().within_documents(elsewhere, here);
  expect_close(tiled(x, seen), exact(x, elsewhere.eq(0).unsqueeze(1).unsqueeze(3).expand({2, 1, kLength, kLength})),
               kFp32);
  EXPECT_FALSE(seen.is_nothing());
  EXPECT_TRUE(VisibleKeys::all().within_documents(elsewhere.narrow(0, 1, 1), here.narrow(0, 1, 1)).is_nothing());
  EXPECT_TRUE(VisibleKeys::all().within_documents(here, here).is_everything(kLength));
}

/// Windows, and ranges in no order, of which a tile sees pieces.
TEST(TiledAttentionRanges, mayBeAnything) {
  const Sizes s{1, 140, 300, 2, 2, 16};
  const Operands x = operands(s);
  const at::Tensor query = at::arange(s.queries), key = at::arange(s.keys);
  for (const int64_t window : {1, 16, 50}) {
    const at::Tensor end = query.add(s.keys - s.queries + 1), first = end - window;
    const auto bounds = at::stack({first, end}).to(at::kInt).unsqueeze(0);
    const VisibleKeys seen = VisibleKeys::restored(false, 0, {bounds, at::Tensor(), at::Tensor()});
    // With one key, the gradients of q and k are 0: what is left is the rounding of dp - delta.
    const double tolerance = window == 1 ? 5 * kFp32 : kFp32;
    expect_close(tiled(x, seen), exact(x, key.ge(first.unsqueeze(1)).logical_and(key.lt(end.unsqueeze(1)))), tolerance);
  }
  const at::Tensor first = query.mul(97).remainder(290), end = first.add(query.mul(31).remainder(120)).clamp_max(300);
  const auto bounds = at::stack({first, end}).to(at::kInt).unsqueeze(0);
  expect_close(tiled(x, VisibleKeys::restored(false, 0, {bounds, at::Tensor(), at::Tensor()})),
               exact(x, key.ge(first.unsqueeze(1)).logical_and(key.lt(end.unsqueeze(1)))), kFp32);
}

/// The factors are those that counter_dropout draws for the weights of the whole, also for some heads and queries.
TEST(TiledAttentionDropout, dropsWeights) {
  const Sizes s{2, 150, 150, 4, 2, 24};
  const Operands x = operands(s);
  const auto index = [](int64_t first, int64_t count, int64_t global) { return DimIndex(first, count, global); };
  const DropoutKey of_whole{.seed = 5, .name = "core", .step = 2, .index = {{}, {}, {}, {}}};
  const at::Tensor factors = counter_dropout(at::ones({3, 8, 170, 170}), 0.3, of_whole);
  // Sequences 1 and 2 of 3, heads 4 to 7 of 8, queries 20 to 169 of 170; all keys but the last 20.
  const DropoutKey key{
      .seed = 5, .name = "core", .step = 2, .index = {index(1, 2, 3), index(4, 4, 8), index(20, 150, 170)}};
  const AttentionDropout dropout(0.3, key, {2, 4, 150}, 170);
  const at::Tensor here = factors.narrow(0, 1, 2).narrow(1, 4, 4).narrow(2, 20, 150).narrow(3, 0, 150);
  EXPECT_TRUE(dropout.dropped(at::ones({2, 4, 150, 150})).equal(here));
  expect_close(tiled(x, VisibleKeys::causal(), TileOperands::fp32, &dropout), exact(x, causal(150, 150), here), kFp32);
  const at::Tensor all = at::ones({150, 150}, at::kBool);
  expect_close(tiled(x, VisibleKeys::all(), TileOperands::fp32, &dropout), exact(x, all, here), kFp32);
  const Operands half = operands(s, at::kBFloat16);
  const Results want = exact(half, causal(150, 150), here);
  expect_close(tiled(half, VisibleKeys::causal(), TileOperands::fp32, &dropout), want, 1.5 * 0x1p-8);
  if (!has_bf16_tiles()) return;
  expect_close(tiled(half, VisibleKeys::causal(), TileOperands::exact_bf16, &dropout), want, 1.5 * 0x1p-8);
  expect_close(tiled(half, VisibleKeys::causal(), TileOperands::rounded_bf16, &dropout), want, 3 * 0x1p-8);
}

/// Views: heads of one product of q, k and v, rows that begin at an odd element, transposed ones.
TEST(TiledAttentionOperands, mayBeViews) {
  const Sizes s{2, 70, 70, 3, 3, 10};
  const Operands x = operands(s);
  const Results want = exact(x, causal(70, 70));
  const at::Tensor fused = at::cat({x.q, x.k, x.v, x.dy}, 2);
  const Operands of_fused{fused.narrow(2, 0, 3), fused.narrow(2, 3, 3), fused.narrow(2, 6, 3), fused.narrow(2, 9, 3)};
  expect_close(tiled(of_fused, VisibleKeys::causal()), want, kFp32);
  const auto shifted = [](const at::Tensor& t) {
    at::Tensor wide = at::full({t.size(0), t.size(1), t.size(2), t.size(3) + 3}, NAN, t.options());
    return wide.narrow(3, 1, t.size(3)).copy_(t);
  };
  expect_close(tiled({shifted(x.q), shifted(x.k), shifted(x.v), shifted(x.dy)}, VisibleKeys::causal()), want, kFp32);
  const auto turned = [](const at::Tensor& t) { return t.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0}); };
  expect_close(tiled({turned(x.q), turned(x.k), turned(x.v), turned(x.dy)}, VisibleKeys::causal()), want, kFp32);
  // Rows that are all the same row, where the gradients of q and k cancel, and pairs of bf16 that begin at no multiple
  // of 4 bytes.
  const Operands repeated{x.q, x.k.narrow(1, 0, 1).expand_as(x.k), x.v.narrow(1, 0, 1).expand_as(x.v), x.dy};
  expect_close(tiled(repeated, VisibleKeys::causal()), exact(repeated, causal(70, 70)), 5e-5);
  const Operands half = operands(s, at::kBFloat16);
  const auto at_odd = [](const at::Tensor& t) {
    at::Tensor wide = at::zeros({t.size(0), t.size(1), t.size(2), t.size(3) + 2}, t.options());
    return wide.narrow(3, 1, t.size(3)).copy_(t);
  };
  for (const TileOperands operands : {TileOperands::fp32, TileOperands::exact_bf16, TileOperands::rounded_bf16}) {
    if (operands != TileOperands::fp32 && !has_bf16_tiles()) continue;
    const Results contiguous = tiled(half, VisibleKeys::causal(), operands);
    const Results of_views =
        tiled({at_odd(half.q), at_odd(half.k), at_odd(half.v), at_odd(half.dy)}, VisibleKeys::causal(), operands);
    for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(of_views.all()[i].equal(contiguous.all()[i])) << kNames[i];
  }
  const Operands of_one{x.q, x.k, x.v, x.dy.narrow(1, 0, 1).expand_as(x.dy)};
  expect_close(tiled(of_one, VisibleKeys::causal()), exact(of_one, causal(70, 70)), kFp32);
}

/// Scores far beyond what exp holds, and values that no query may see.
TEST(TiledAttentionOperands, mayBeHuge) {
  const Sizes s{1, 80, 80, 1, 1, 32};
  Operands x = operands(s);
  x.q = x.q * 300;
  // A score of up to 2,000 is rounded by 1e-4, and so is the weight, relatively.
  expect_close(tiled(x, VisibleKeys::causal()), exact(x, causal(80, 80)), 1e-3);
  const Results before = tiled(x, VisibleKeys::up_to(at::full({80}, 49, at::kLong)));
  for (const at::Tensor& unseen : {x.k.narrow(1, 50, 30), x.v.narrow(1, 50, 30)}) unseen.fill_(1e30);
  const Results after = tiled(x, VisibleKeys::up_to(at::full({80}, 49, at::kLong)));
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(after.all()[i].equal(before.all()[i])) << kNames[i];
  x.v.fill_(NAN);
  EXPECT_TRUE(tiled(x, VisibleKeys::all()).out.isnan().all().item<bool>());
}

TEST(TiledAttentionOperands, mustFit) {
  const Operands x = operands({1, 20, 20, 4, 2, 8});
  const auto attend = [&](const at::Tensor& k, const at::Tensor& v) {
    return tiled_attention(x.q, k, v, VisibleKeys::all(), {}, nullptr, TileOperands::fp32, at::kFloat);
  };
  EXPECT_THROW(attend(x.k.to(at::kBFloat16), x.v.to(at::kBFloat16)), ShapeError);
  EXPECT_THROW(attend(x.k, x.v.narrow(3, 0, 7)), ShapeError);
  EXPECT_THROW(attend(x.k.narrow(1, 0, 19), x.v), ShapeError);
  EXPECT_THROW(attend(normal({1, 20, 3, 8}), normal({1, 20, 3, 8})), ShapeError);
  EXPECT_THROW(attend(normal({2, 20, 2, 8}), normal({2, 20, 2, 8})), ShapeError);
}

/// Ranges end with the keys.
TEST(TiledAttentionRanges, maySayMoreKeysThanThereAre) {
  const Sizes s{1, 300, 129, 2, 1, 8};
  const Operands x = operands(s);
  const at::Tensor visible = at::ones({300, 129}, at::kBool).tril();
  expect_close(tiled(x, VisibleKeys::causal()), exact(x, visible), kFp32);
  expect_close(tiled(x, VisibleKeys::up_to(at::arange(300))), exact(x, visible), kFp32);
}

/// The same bits with any number of threads.
TEST(TiledAttentionThreads, changeNothing) {
  const Operands x = operands({3, 90, 90, 4, 2, 24});
  expect_same_on_threads([&] { return tiled(x, VisibleKeys::causal()).all(); });
}

}  // namespace
}  // namespace caravan::tiled_attention_test
