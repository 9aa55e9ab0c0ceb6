#include "caravan/nn/attention/one_query.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/nn/attention/fused_attention.h"
#include "tests/nn/compare.h"
#include "tests/nn/exact_attention.h"
#include "tests/nn/tiny.h"

namespace caravan::one_query_test {
namespace {

using testing::exact;
using testing::normal;
using Sizes = testing::AttentionSizes;
using Operands = testing::AttentionOperands;

/// Keys and values are views of a cache that holds more of them, in rows of heads.
Operands cached(const Sizes& s, at::ScalarType type = at::kFloat) {
  Operands x = testing::operands(s, type);
  for (at::Tensor* of_keys : {&x.k, &x.v}) {
    at::Tensor cache = at::full({s.batch, s.kv_heads, s.keys + 13, s.width}, NAN, of_keys->options());
    *of_keys = cache.narrow(2, 0, s.keys).copy_(of_keys->transpose(1, 2)).transpose(1, 2);
  }
  return x;
}

/// fp32 sums of up to 1000 products, and a rounding of 16 bits.
double tolerance_of(at::ScalarType type) {
  return type == at::kFloat ? 2e-6 : type == at::kHalf ? 1.1 * 0x1p-11 : 1.1 * 0x1p-8;
}

void expect_exact(const Operands& x, const VisibleKeys& seen, const at::Tensor& visible, const Scores& scores = {},
                  double more = 1) {
  const at::Tensor got = attention_of_one_query(x.q, x.k, x.v, seen, scores);
  const at::Tensor want = exact(x, visible, at::ones({}), scores).out;
  EXPECT_EQ(got.scalar_type(), x.q.scalar_type());
  ASSERT_EQ(got.sizes(), x.q.sizes());
  EXPECT_LE((got.to(at::kDouble) - want).norm().item<double>(),
            more * tolerance_of(x.q.scalar_type()) * std::max(1e-3, want.norm().item<double>()));
}

at::Tensor everything(int64_t keys) { return at::ones({1, keys}, at::kBool); }

std::vector<Scores> kinds(const Sizes& s) {
  Scores biased{.scale = 0.4, .bias = normal({s.heads, s.keys}, 9), .zero = s.keys - 1};
  biased.query_positions = at::tensor({s.keys - 1}, at::kLong);
  Scores capped_too = biased;
  capped_too.soft_cap = 0.8;
  return {{}, {.soft_cap = 0.8}, biased, capped_too};
}

class OneQuery : public ::testing::TestWithParam<Sizes> {};

TEST_P(OneQuery, IsTheFormula) {
  const Sizes& s = GetParam();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Operands x = cached(s, type);
    for (const Scores& scores : kinds(s)) {
      SCOPED_TRACE(::testing::Message() << type << " cap " << scores.soft_cap << " scale " << scores.scale);
      expect_exact(x, VisibleKeys::all(), everything(s.keys), scores);
      for (const int64_t window : {1, 8, 60, 300}) {
        const VisibleKeys seen = VisibleKeys::up_to(at::tensor({s.keys - 1}, at::kLong)).within_window(window);
        expect_exact(x, seen, at::arange(s.keys).ge(s.keys - window).unsqueeze(0), scores);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, OneQuery,
                         ::testing::Values(Sizes{1, 1, 1, 1, 1, 1}, Sizes{2, 1, 7, 2, 1, 5}, Sizes{1, 1, 8, 9, 3, 64},
                                           Sizes{2, 1, 9, 4, 4, 33}, Sizes{1, 1, 255, 2, 2, 128},
                                           Sizes{3, 1, 256, 8, 2, 16}, Sizes{1, 1, 257, 3, 3, 40},
                                           Sizes{2, 1, 700, 6, 1, 96}, Sizes{1, 1, 1000, 1, 1, 104}));

/// Stretches, documents that come back, and rows that see no key; they begin and end elsewhere in each row.
TEST(OneQueryOfDocuments, IsTheFormula) {
  const Sizes s{4, 1, 600, 4, 2, 24};
  const Operands x = cached(s);
  const at::Tensor key = at::arange(600);
  const at::Tensor of_keys =
      at::stack({key.ge(500).to(at::kLong), key.remainder(3), key.div(7, "floor").remainder(2), at::zeros_like(key)});
  const at::Tensor of_queries = at::tensor({1, 2, 0, 9}, at::kLong).unsqueeze(1);
  const at::Tensor same = of_keys.eq(of_queries).view({4, 1, 1, 600});
  expect_exact(x, VisibleKeys::all().within_documents(of_queries, of_keys), same);
  const VisibleKeys last = VisibleKeys::up_to(at::tensor({580}, at::kLong)).within_window(100);
  const at::Tensor in_window = key.le(580).logical_and(key.gt(480));
  for (const Scores& scores : kinds(s)) {
    expect_exact(x, last.within_documents(of_queries, of_keys), same.logical_and(in_window), scores);
  }
  const at::Tensor nothing =
      attention_of_one_query(x.q, x.k, x.v, VisibleKeys::all().within_documents(of_queries, of_keys), {}).select(0, 3);
  EXPECT_TRUE(nothing.eq(0).all().item<bool>());
}

/// Scores far below 0, pieces of which one outweighs the others, keys at positions of their own.
TEST(OneQueryOfScores, MayBeHuge) {
  const Sizes s{1, 1, 520, 2, 1, 16};
  Operands x = cached(s);
  Scores scores{.bias = at::arange(520).mul(-30).flip(0).unsqueeze(0).expand({2, 520}).to(at::kFloat), .zero = 519};
  scores.query_positions = at::tensor({519}, at::kLong);
  expect_exact(x, VisibleKeys::all(), everything(520), scores);
  // Scores of -1000 are rounded by 3e-5, and so are the weights, relatively.
  scores.bias = at::full({2, 520}, -1000.0F);
  expect_exact(x, VisibleKeys::all(), everything(520), scores, 15);
  scores.bias = normal({2, 2000}, 4);
  scores.key_positions = at::arange(520).mul(3);
  scores.query_positions = at::tensor({1558}, at::kLong);
  scores.zero = 1700;
  expect_exact(x, VisibleKeys::all(), everything(520), scores);
}

/// Rows that are no rows of a cache: those of one product, of every second position, and turned ones.
TEST(OneQueryOfViews, IsTheSame) {
  const Operands x = testing::operands({2, 1, 90, 4, 2, 12});
  const at::Tensor want = attention_of_one_query(x.q, x.k, x.v, VisibleKeys::all(), {});
  const at::Tensor fused = at::cat({x.k, x.v}, 3);
  EXPECT_TRUE(
      attention_of_one_query(x.q, fused.narrow(3, 0, 12), fused.narrow(3, 12, 12), VisibleKeys::all(), {}).equal(want));
  const auto turned = [](const at::Tensor& t) { return t.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0}); };
  EXPECT_TRUE(attention_of_one_query(turned(x.q), turned(x.k), turned(x.v), VisibleKeys::all(), {}).equal(want));
  EXPECT_THROW(attention_of_one_query(x.q, x.k, x.v.narrow(1, 0, 80), VisibleKeys::all(), {}), ShapeError);
}

TEST(OneQueryOnThreads, HasTheSameBits) {
  const Operands x = cached({2, 1, 1500, 6, 2, 64}, at::kBFloat16);
  testing::expect_same_on_threads(
      [&] { return Tensors{attention_of_one_query(x.q, x.k, x.v, VisibleKeys::all(), {})}; });
}

/// What layers call takes it for generation, and tiles where there are gradients.
TEST(OneQueryInLayers, IsForGeneration) {
  Operands x = cached({1, 1, 40, 4, 2, 16});
  const auto path_of = [&](const at::Tensor& q, const VisibleKeys& seen) {
    PathLog log;
    const PathScope scope(&log);
    fused_attention(q, x.k, x.v, seen);
    return log.counts();
  };
  const VisibleKeys window = VisibleKeys::up_to(at::tensor({39}, at::kLong)).within_window(7);
  EXPECT_EQ(path_of(x.q, VisibleKeys::all()), (PathCounts{{"attention of one query", 1}}));
  EXPECT_EQ(path_of(x.q, window), (PathCounts{{"attention of one query (masked)", 1}}));
  const at::Tensor leaf = x.q.clone().requires_grad_(true);
  EXPECT_EQ(path_of(leaf, VisibleKeys::all()), (PathCounts{{"fused attention", 1}}));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(path_of(leaf, VisibleKeys::all()), (PathCounts{{"attention of one query", 1}}));
  const auto meta = [](const at::Tensor& t) { return t.to(at::kMeta); };
  EXPECT_EQ(fused_attention(meta(x.q), meta(x.k), meta(x.v), window).sizes(), x.q.sizes());
}

}  // namespace
}  // namespace caravan::one_query_test
