#include <cmath>
#include <gmock/gmock.h>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/kernel_log.h"
#include "caravan/nn/attention/fused_attention.h"
#include "caravan/nn/attention/scores.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/tile_product.h"
#include "tests/nn/compare.h"
#include "tests/nn/exact_attention.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::attention_scores_test {
namespace {

using testing::error_of;
using testing::exact;
using testing::expect_close;
using ::testing::HasSubstr;
using testing::kFp32;
using testing::kNames;
using testing::normal;
using testing::operands;
using testing::tiled;
using Sizes = testing::AttentionSizes;
using Operands = testing::AttentionOperands;
using Results = testing::AttentionResults;

at::Tensor causal(int64_t length) { return at::ones({length, length}, at::kBool).tril(); }
at::Tensor everything(int64_t queries, int64_t keys) { return at::ones({queries, keys}, at::kBool); }

/// Random, for all distances between `queries` and `keys` at their indices.
Scores with_bias(const Sizes& s, Scores scores = {}, uint64_t seed = 9) {
  scores.bias = normal({s.heads, s.queries + s.keys - 1}, seed).requires_grad_(true);
  scores.zero = s.queries - 1;
  return scores;
}

/// Those of Gemma 2, T5 and ALiBi, and all at once. Scores are beyond the caps: see `wide`.
std::vector<Scores> kinds(const Sizes& s) {
  const at::Tensor slopes = at::exp2(-at::arange(1, s.heads + 1).to(at::kFloat)).unsqueeze(1);
  const Scores alibi{.bias = slopes * at::arange(1 - s.queries, s.keys).to(at::kFloat), .zero = s.queries - 1};
  return {{.scale = 0.11},
          {.scale = 0.2, .soft_cap = 1.5},
          with_bias(s, {.scale = 0.4}),
          alibi,
          with_bias(s, {.scale = 0.3, .soft_cap = 4})};
}

/// Scores of up to some 10.
Operands wide(const Sizes& s, at::ScalarType type = at::kFloat) {
  Operands x = operands(s, type);
  x.q = x.q * 3;
  return x;
}

class AttentionScores : public ::testing::TestWithParam<Sizes> {};

/// Scores of 10 are rounded to 1e-6, and so are weights, relatively.
constexpr double kRounding = 2 * kFp32;

TEST_P(AttentionScores, areTheFormula) {
  const Sizes& s = GetParam();
  const Operands x = wide(s);
  for (const Scores& scores : kinds(s)) {
    SCOPED_TRACE(::testing::Message() << scores.scale << " cap " << scores.soft_cap);
    expect_close(tiled(x, VisibleKeys::all(), TileOperands::fp32, nullptr, scores),
                 exact(x, everything(s.queries, s.keys), at::ones({}), scores), kRounding);
    if (s.queries != s.keys) continue;
    expect_close(tiled(x, VisibleKeys::causal(), TileOperands::fp32, nullptr, scores),
                 exact(x, causal(s.keys), at::ones({}), scores), kRounding);
  }
}

TEST_P(AttentionScores, in16BitsAreWithinTheirRoundings) {
  const Sizes& s = GetParam();
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Operands x = wide(s, type);
    // Where weights are near 1, gradients of scores are differences of rounded numbers.
    const double rounding = type == at::kHalf ? 0x1p-11 : 0x1p-8;
    for (const Scores& scores : kinds(s)) {
      SCOPED_TRACE(::testing::Message() << type << scores.scale << " cap " << scores.soft_cap);
      const Results want = exact(x, everything(s.queries, s.keys), at::ones({}), scores);
      const VisibleKeys seen = VisibleKeys::all();
      expect_close(tiled(x, seen, TileOperands::fp32, nullptr, scores), want, 2 * rounding);
      if (type != at::kBFloat16 || !has_bf16_tiles()) continue;
      expect_close(tiled(x, seen, TileOperands::exact_bf16, nullptr, scores), want, 2 * rounding);
      expect_close(tiled(x, seen, TileOperands::rounded_bf16, nullptr, scores), want, 3 * rounding);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , AttentionScores,
    ::testing::Values(Sizes{1, 1, 1, 1, 1, 1}, Sizes{2, 15, 15, 2, 1, 5}, Sizes{1, 16, 16, 1, 1, 16},
                      Sizes{1, 17, 17, 3, 3, 8}, Sizes{2, 63, 63, 2, 2, 24}, Sizes{1, 64, 64, 4, 2, 16},
                      Sizes{1, 65, 65, 3, 1, 33}, Sizes{1, 127, 127, 2, 1, 16}, Sizes{1, 128, 128, 2, 2, 8},
                      Sizes{2, 129, 129, 2, 1, 20}, Sizes{1, 130, 130, 1, 1, 7}, Sizes{1, 200, 200, 4, 2, 16},
                      Sizes{2, 1, 130, 4, 2, 16}, Sizes{1, 17, 200, 2, 1, 40}, Sizes{2, 70, 9, 2, 2, 24}));

/// Those of dropout: a bias moves a weight before it is dropped.
TEST(AttentionScoresOfDroppedWeights, areTheFormula) {
  const Sizes s{2, 130, 130, 4, 2, 24};
  const Operands x = wide(s);
  const DropoutKey key{.seed = 5, .name = "core", .step = 2, .index = {{}, {}, {}, {}}};
  const at::Tensor factors = counter_dropout(at::ones({2, 4, 130, 130}), 0.3, key);
  DropoutKey of_rows = key;
  of_rows.index.pop_back();
  const AttentionDropout dropout(0.3, of_rows, {2, 4, 130}, 130);
  for (const Scores& scores : kinds(s)) {
    expect_close(tiled(x, VisibleKeys::causal(), TileOperands::fp32, &dropout, scores),
                 exact(x, causal(130), factors, scores), kRounding);
  }
}

/// Queries and keys anywhere: those of a later chunk, of stripes, of a zigzag, and of no order.
TEST(AttentionScoresOfPositions, areTheFormula) {
  const Sizes s{2, 90, 150, 2, 1, 16};
  const Operands x = wide(s);
  const auto chunks = [](int64_t one, int64_t two, int64_t count) {
    return at::cat({at::arange(one, one + count / 2), at::arange(two, two + count - count / 2)});
  };
  const std::vector<std::array<at::Tensor, 2>> cases{
      {at::arange(300, 390), at::arange(150)},
      {at::arange(90).mul(3).add(1), at::arange(150).mul(3)},
      {at::arange(90).mul(2), at::arange(150).mul(3)},
      {chunks(20, 400, 90), chunks(0, 300, 150)},
      {chunks(20, 400, 90), at::Tensor()},
      {at::arange(90).mul(37).remainder(90), chunks(3, 90, 150).to(at::kInt)},
  };
  for (const auto& [of_queries, of_keys] : cases) {
    Scores scores{.soft_cap = 5,
                  .bias = normal({2, 1001}, 3).requires_grad_(true),
                  .zero = 500,
                  .query_positions = of_queries,
                  .key_positions = of_keys};
    expect_close(tiled(x, VisibleKeys::all(), TileOperands::fp32, nullptr, scores),
                 exact(x, everything(90, 150), at::ones({}), scores), kRounding);
    const at::Tensor keys = of_keys.defined() ? of_keys : at::arange(150);
    const at::Tensor visible = keys.gt(of_queries.unsqueeze(1) - 40);
    expect_close(tiled(x, VisibleKeys::all().within_window(40, of_queries, keys), TileOperands::fp32, nullptr, scores),
                 exact(x, visible, at::ones({}), scores), kRounding);
  }
}

TEST(AttentionScoresAndOperands, mustFit) {
  const Operands x = operands({1, 20, 20, 4, 2, 8});
  const auto attend = [&](const Scores& scores, const VisibleKeys& seen = VisibleKeys::causal()) {
    return error_of<UsageError>([&] { fused_attention(x.q, x.k, x.v, seen, scores); });
  };
  EXPECT_THAT(attend({.scale = -1}), HasSubstr("a scale of -1"));
  EXPECT_THAT(attend({.soft_cap = INFINITY}), HasSubstr("a cap of inf"));
  EXPECT_THAT(attend({.bias = at::ones({2, 20}), .zero = 19}), HasSubstr("[2, 20] Float for 4 heads"));
  EXPECT_THAT(attend({.bias = at::ones({4, 19}), .zero = 18}),
              HasSubstr("distances -19 to 0, and there are biases of -18 to 0"));
  EXPECT_THAT(attend({.bias = at::ones({4, 20}), .zero = 19}, VisibleKeys::all()), HasSubstr("distances -19 to 19"));
  EXPECT_THAT(attend({.bias = at::ones({4, 20}), .query_positions = at::arange(19)}),
              HasSubstr("20 queries have positions [19] Long"));
  EXPECT_THAT(attend({.bias = at::ones({4, 20}), .key_positions = at::ones({20})}), HasSubstr("positions [20] Float"));
  // A window shortens the distances.
  EXPECT_NO_THROW(
      fused_attention(x.q, x.k, x.v, VisibleKeys::causal().within_window(5), {.bias = at::ones({4, 5}), .zero = 4}));
}

// ---- windows ----

at::Tensor window_mask(int64_t queries, int64_t keys, int64_t window) {
  const at::Tensor own = at::arange(keys - queries, keys).unsqueeze(1), key = at::arange(keys);
  return key.le(own).logical_and(key.gt(own - window));
}

TEST(AttentionWindow, isTheLastKeys) {
  for (const int64_t length : {1, 16, 65, 130, 200}) {
    const Sizes s{2, length, length, 2, 1, 16};
    const Operands x = operands(s);
    for (const int64_t window : {int64_t{1}, int64_t{3}, int64_t{16}, int64_t{50}, int64_t{129}, int64_t{1} << 40}) {
      const at::Tensor visible = window_mask(length, length, window);
      const VisibleKeys seen = VisibleKeys::causal().within_window(window);
      EXPECT_TRUE(seen.mask(length, length, x.q).equal(visible.unsqueeze(0).unsqueeze(0))) << length << " " << window;
      // With one key, the gradients of q and k are 0: what is left is the rounding of dp - delta.
      const double tolerance = window == 1 ? 10 * kFp32 : kFp32;
      expect_close(tiled(x, seen), exact(x, visible), tolerance);
      expect_close(tiled(x, VisibleKeys::up_to(at::arange(length)).within_window(window)), exact(x, visible),
                   tolerance);
    }
  }
}

TEST(AttentionWindow, ofOtherQueriesThanKeys) {
  const Sizes s{1, 70, 200, 2, 2, 16};
  const Operands x = operands(s);
  for (const int64_t window : {2, 40, 150}) {
    const VisibleKeys seen = VisibleKeys::up_to(at::arange(130, 200)).within_window(window);
    const at::Tensor visible = window_mask(70, 200, window);
    EXPECT_TRUE(seen.mask(70, 200, x.q).squeeze().equal(visible));
    expect_close(tiled(x, seen), exact(x, visible), kFp32);
  }
}

/// In either order, also if documents come back.
TEST(AttentionWindow, withinDocuments) {
  constexpr int64_t kLength = 150;
  const Operands x = operands({2, kLength, kLength, 2, 1, 24});
  const at::Tensor position = at::arange(kLength);
  const at::Tensor stretches = at::stack({position.div(37, "floor"), position.ge(64).to(at::kLong).mul(-5)});
  const at::Tensor coming_back = at::stack({position.div(10, "floor").remainder(3), position.remainder(2)});
  for (const at::Tensor& documents : {stretches, coming_back}) {
    const at::Tensor same = documents.unsqueeze(2).eq(documents.unsqueeze(1)).unsqueeze(1);
    for (const int64_t window : {7, 50}) {
      const at::Tensor visible = same.logical_and(window_mask(kLength, kLength, window));
      for (const VisibleKeys& all : {VisibleKeys::causal(), VisibleKeys::up_to(position)}) {
        for (const VisibleKeys& seen :
             {all.within_documents(documents, documents).within_window(window),
              all.within_window(window).within_documents(documents, documents),
              all.within_window(window + 9).within_window(window).within_documents(documents, documents)}) {
          EXPECT_TRUE(seen.mask(kLength, kLength, x.q).equal(visible));
          EXPECT_EQ(seen.window(), window);
        }
      }
      expect_close(tiled(x, VisibleKeys::causal().within_documents(documents, documents).within_window(window)),
                   exact(x, visible), kFp32);
    }
  }
}

/// Windows by positions, as those of a ring: of blocks that follow each other, and of stripes.
TEST(AttentionWindow, ofPositions) {
  const at::Tensor like = at::ones({});
  for (const auto& [queries, keys] : std::vector<std::array<at::Tensor, 2>>{
           {at::arange(64, 128), at::arange(0, 64)},
           {at::arange(1, 129, 2), at::arange(0, 128, 2)},
           {at::cat({at::arange(0, 32), at::arange(96, 128)}), at::cat({at::arange(32, 64), at::arange(64, 96)})}}) {
    for (const int64_t window : {1, 20, 40, 1000}) {
      const at::Tensor far = keys.le(queries.unsqueeze(1) - window);
      const VisibleKeys seen = VisibleKeys::all().within_window(window, queries, keys);
      EXPECT_TRUE(seen.mask(64, 64, like).squeeze().equal(far.logical_not()));
      EXPECT_EQ(seen.is_nothing(), far.all().item<bool>());
      EXPECT_EQ(seen.is_everything(64), !far.any().item<bool>());
      const VisibleKeys of_triangle = VisibleKeys::causal().within_window(window, queries, keys);
      EXPECT_TRUE(of_triangle.mask(64, 64, like).squeeze().equal(far.logical_not().logical_and(causal(64))));
      EXPECT_TRUE(of_triangle.is_causal());
    }
  }
  EXPECT_THROW(VisibleKeys::all().within_window(3), InternalError);
  EXPECT_THROW(VisibleKeys::causal().within_window(0), InternalError);
}

class AttentionLog final : public KernelLog {
 public:
  void add(KernelWork work) override { flops.push_back(work.flops()); }
  std::vector<double> flops;
};

/// Tiles before the window are not computed: a product with their keys, or with their weights of 0, would be no number.
TEST(AttentionWindow, skipsTiles) {
  const Sizes s{1, 64, 512, 2, 1, 16};
  Operands x = operands(s);
  for (const at::Tensor& unseen : {x.k.narrow(1, 0, 384), x.v.narrow(1, 0, 384)}) unseen.fill_(NAN);
  const VisibleKeys seen = VisibleKeys::up_to(at::arange(448, 512)).within_window(50);
  const Results got = tiled(x, seen);
  for (size_t i : {0, 1, 2}) EXPECT_TRUE(got.all()[i].isfinite().all().item<bool>()) << kNames[i];
  EXPECT_TRUE(got.dk.narrow(1, 0, 384).eq(0).all().item<bool>());
}

/// What a rehearsal counts: windows of causal attention leave out the queries' earlier keys.
TEST(AttentionWindow, countsWhatIsVisible) {
  const Operands x = operands({1, 256, 256, 1, 1, 16});
  AttentionLog log;
  {
    const KernelLogScope scope(&log);
    for (const VisibleKeys& seen :
         {VisibleKeys::causal(), VisibleKeys::causal().within_window(64), VisibleKeys::causal().within_window(300)}) {
      tiled(x, seen);
    }
  }
  const double pairs = 2.0 * 16 * 256 * 256 / 2, in_window = 2.0 * 16 * (256 * 64 - 64 * 64 / 2);
  EXPECT_EQ(log.flops, (std::vector<double>{2 * pairs, 5 * pairs, 2 * in_window, 5 * in_window, 2 * pairs, 5 * pairs}));
}

// ---- what layers call ----

struct Differentiated {
  at::Tensor out, q, k, v, bias;
};

Differentiated differentiated(const Operands& x, const VisibleKeys& seen, Scores scores,
                              const c10::intrusive_ptr<AttentionDropout>& dropout = {}) {
  const auto leaf = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(true); };
  const at::Tensor q = leaf(x.q), k = leaf(x.k), v = leaf(x.v);
  if (scores.bias.defined()) {
    const bool has_gradient = scores.bias.requires_grad();
    scores.bias = leaf(scores.bias.to(compute_type(q.scalar_type()))).requires_grad_(has_gradient);
  }
  const at::Tensor out = fused_attention(q, k, v, seen, scores, dropout);
  EXPECT_EQ(out.scalar_type(), x.q.scalar_type());
  out.backward(x.dy);
  return {out.detach(), q.grad(), k.grad(), v.grad(), scores.bias.defined() ? scores.bias.grad() : at::Tensor()};
}

void expect_close_to_formula(const Differentiated& got, const Results& want, double tolerance) {
  const std::array<at::Tensor, 5> ours{got.out, got.q, got.k, got.v, got.bias},
      all{want.out, want.dq, want.dk, want.dv, want.dbias};
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(ours[i].defined(), all[i].defined()) << i;
    if (!all[i].defined()) continue;
    const double scale = std::max(1.0, all[i].norm().item<double>());
    EXPECT_LE((ours[i].to(at::kDouble) - all[i]).norm().item<double>(), tolerance * scale) << i;
  }
}

double tolerance_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return 1e-13;
    case at::kFloat: return kRounding;
    case at::kHalf: return 1.5 * 0x1p-11;
    default: return 3 * 0x1p-8;  // products of a processor with bf16 tiles round the weights too
  }
}

/// An encoder's batch: padding tokens are a document of their own; and queries of another text than the keys.
TEST(FusedAttention, ofPaddedKeysAndOtherQueries) {
  const at::Tensor lengths = at::tensor({70, 23}, at::kLong).unsqueeze(1);
  for (const Sizes& s : {Sizes{2, 70, 70, 4, 2, 16}, Sizes{2, 33, 70, 4, 2, 16}, Sizes{2, 150, 70, 2, 2, 8}}) {
    const at::Tensor is_padding = at::arange(70).ge(lengths).to(at::kLong);
    const at::Tensor of_queries = s.queries == s.keys ? is_padding : at::zeros({2, s.queries}, at::kLong);
    const at::Tensor visible = of_queries.unsqueeze(2).eq(is_padding.unsqueeze(1)).unsqueeze(1);
    const VisibleKeys seen = VisibleKeys::all().within_documents(of_queries, is_padding);
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const Operands x = operands(s, type);
      for (const Scores& scores : {Scores{}, with_bias(s, {.scale = 0.3}), Scores{.soft_cap = 0.7}}) {
        SCOPED_TRACE(::testing::Message() << s << " " << type << " " << scores.soft_cap);
        expect_close_to_formula(differentiated(x, seen, scores), exact(x, visible, at::ones({}), scores),
                                tolerance_of(type));
      }
    }
  }
}

/// The types that other kernels compute; windows, dropout, and one query, which torch's kernels compute if they can.
TEST(FusedAttention, ofAllScoresIsTheFormula) {
  for (const Sizes& s : {Sizes{2, 40, 40, 4, 2, 16}, Sizes{2, 1, 40, 4, 2, 16}}) {
    const at::Tensor last = at::arange(s.keys - s.queries, s.keys);
    const at::Tensor visible = window_mask(s.queries, s.keys, 11);
    const VisibleKeys seen = VisibleKeys::up_to(last).within_window(11);
    const DropoutKey key{.seed = 5, .name = "core", .step = 2, .index = {{}, {}, {}, {}}};
    const at::Tensor factors = counter_dropout(at::ones({2, 4, s.queries, s.keys}), 0.3, key);
    DropoutKey of_rows = key;
    of_rows.index.pop_back();
    const auto dropout =
        c10::make_intrusive<AttentionDropout>(0.3, of_rows, std::vector<int64_t>{2, 4, s.queries}, s.keys);
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const Operands x = wide(s, type);
      for (const Scores& scores : kinds(s)) {
        SCOPED_TRACE(::testing::Message() << s << " " << type << " " << scores.scale << " " << scores.soft_cap);
        expect_close_to_formula(differentiated(x, seen, scores), exact(x, visible, at::ones({}), scores),
                                tolerance_of(type));
        expect_close_to_formula(differentiated(x, seen, scores, dropout), exact(x, visible, factors, scores),
                                tolerance_of(type));
      }
    }
  }
}

/// A query that sees nothing gives 0 and no gradient, whichever kernel computes it.
TEST(FusedAttention, ofNothingIsZero) {
  const Sizes s{1, 20, 20, 2, 1, 8};
  const at::Tensor of_queries = at::arange(20).div(10, "floor").unsqueeze(0), of_keys = at::zeros({1, 20}, at::kLong);
  const VisibleKeys seen = VisibleKeys::all().within_documents(of_queries, of_keys);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const Operands x = operands(s, type);
    for (const Scores& scores : {Scores{}, with_bias(s), Scores{.soft_cap = 2}}) {
      const Differentiated got = differentiated(x, seen, scores);
      EXPECT_TRUE(got.out.narrow(1, 10, 10).eq(0).all().item<bool>()) << type;
      EXPECT_TRUE(got.q.narrow(1, 10, 10).eq(0).all().item<bool>()) << type;
      expect_close_to_formula(
          got, exact(x, of_queries.eq(0).unsqueeze(2).unsqueeze(1).expand({1, 1, 20, 20}), at::ones({}), scores),
          tolerance_of(type));
    }
  }
}

/// Blocks of keys at their positions merge to the whole, and so do their gradients.
TEST(AttentionBlocks, mergeToTheWhole) {
  const Sizes s{2, 96, 96, 4, 2, 16};
  const at::Tensor visible = window_mask(96, 96, 40);
  const at::Tensor positions = at::arange(96);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const Operands x = wide(s, type);
    for (const Scores& scores : kinds(s)) {
      const Results want = exact(x, visible, at::ones({}), scores);
      const auto of_block = [&](int64_t first) {
        Scores here = scores;
        here.query_positions = positions.narrow(0, 48, 48);
        here.key_positions = positions.narrow(0, first, 48);
        return here;
      };
      const auto of_queries = [](const at::Tensor& t) { return t.narrow(1, 48, 48); };
      const auto of_keys = [](const at::Tensor& t, int64_t first) { return t.narrow(1, first, 48); };
      const auto seen = [&](int64_t first) {
        return (first == 48 ? VisibleKeys::causal() : VisibleKeys::all())
            .within_window(40, positions.narrow(0, 48, 48), positions.narrow(0, first, 48));
      };
      // Of the later half of the queries; the first of them are those that the earlier keys see.
      AttentionBlock all = attend_to_block(of_queries(x.q), of_keys(x.k, 48), of_keys(x.v, 48), seen(48), of_block(48));
      all.merge(attend_to_block(of_queries(x.q), of_keys(x.k, 0), of_keys(x.v, 0), seen(0), of_block(0)));
      Operands later = x;
      later.dy = x.dy.clone();
      later.dy.narrow(1, 0, 48).zero_();
      const Results of_later = exact(later, visible, at::ones({}), scores);
      const double tolerance = tolerance_of(type);
      const auto expect_same = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
        EXPECT_LE((a.to(at::kDouble) - b).norm().item<double>(), tolerance * std::max(1.0, b.norm().item<double>()))
            << what << type;
      };
      expect_same(all.out, of_queries(want.out), "out");
      expect_same(all.log_sum_exp, want.log_sum_exp.narrow(2, 48, 48), "log_sum_exp");
      at::Tensor dq = at::zeros({}), dbias = at::zeros({});
      for (const int64_t first : {48, 0}) {
        const BlockGradients d = block_gradients(of_queries(x.dy), of_queries(x.q), of_keys(x.k, first),
                                                 of_keys(x.v, first), all, seen(first), of_block(first));
        dq = dq + d.q;
        expect_same(d.k, of_keys(of_later.dk, first), "dk");
        expect_same(d.v, of_keys(of_later.dv, first), "dv");
        ASSERT_EQ(d.bias.defined(), of_later.dbias.defined());
        if (d.bias.defined()) dbias = dbias + d.bias;
      }
      expect_same(dq, of_queries(of_later.dq), "dq");
      if (of_later.dbias.defined()) expect_same(dbias, of_later.dbias, "dbias");
    }
  }
}

/// The same bits with any number of threads, also of the sums over the batch.
TEST(AttentionScoresOfThreads, areTheSame) {
  const Sizes s{5, 90, 90, 4, 2, 24};
  const Operands x = wide(s);
  const Scores scores = with_bias(s, {.soft_cap = 4});
  testing::expect_same_on_threads(
      [&] { return tiled(x, VisibleKeys::causal().within_window(50), TileOperands::fp32, nullptr, scores).all(); });
}

/// Tensors without memory have the shapes of those with some, whichever kernel computes them.
TEST(FusedAttention, takesMetaTensors) {
  const Sizes s{2, 40, 40, 4, 2, 16};
  const auto without = [](const at::Tensor& t) { return t.defined() ? t.detach().to(at::kMeta) : t; };
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Operands x = operands(s, type);
    for (Scores scores : kinds(s)) {
      const bool has_gradient = scores.bias.defined() && scores.bias.requires_grad();
      if (scores.bias.defined()) scores.bias = without(scores.bias).requires_grad_(has_gradient);
      const Differentiated got = differentiated({without(x.q), without(x.k), without(x.v), without(x.dy)},
                                                VisibleKeys::causal().within_window(7), scores);
      EXPECT_EQ(got.out.sizes(), x.q.sizes());
      EXPECT_EQ(got.k.sizes(), x.k.sizes());
      ASSERT_EQ(got.bias.defined(), has_gradient);
      EXPECT_TRUE(!has_gradient || got.bias.sizes() == scores.bias.sizes());
    }
  }
}

}  // namespace
}  // namespace caravan::attention_scores_test
