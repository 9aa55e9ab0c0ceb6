#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/techniques/grid/grid.h"
#include "tests/cost/formulas/tensor.h"

namespace caravan::testing::tensor_formulas_test {
namespace {

using ::testing::HasSubstr;

/// The model of "Language models are few-shot learners", arXiv 2005.14165.
ModelConfig gpt3() { return {.layers = 96, .width = 12'288, .heads = 96, .context = 2048, .vocabulary = 50'257}; }

TensorShape shape_of(const std::string& kind, int64_t ranks, int64_t depth = 1) {
  return {.model = gpt3(), .kind = kind, .ranks = ranks, .depth = depth, .sequences = 64};
}

constexpr double kH = 12'288;
constexpr double kBsh = 64 * 2048 * kH;
constexpr double kWeights = 12 * kH * kH;

/// The formulas of the papers for a layer of GPT, written out.
TEST(TensorFormulas, OfAGptLayer) {
  const TensorTraffic one = layer_elements(shape_of("1d", 64));
  EXPECT_DOUBLE_EQ(one.forward, 4.0 * 63 / 64 * kBsh);
  EXPECT_DOUBLE_EQ(one.backward, 4.0 * 63 / 64 * kBsh);
  const TensorTraffic two = layer_elements(shape_of("2d", 64));
  EXPECT_DOUBLE_EQ(two.forward, 7.0 / 64 * (7 * kBsh + kWeights));
  EXPECT_DOUBLE_EQ(two.backward, 2 * two.forward);
  const TensorTraffic deep = layer_elements(shape_of("2.5d", 64, 4));
  EXPECT_DOUBLE_EQ(deep.forward, 3.0 / 16 * (7 * kBsh / 4 + kWeights));
  EXPECT_DOUBLE_EQ(deep.backward, 2 * deep.forward);
  const TensorTraffic three = layer_elements(shape_of("3d", 64));
  EXPECT_DOUBLE_EQ(three.forward, 3.0 / 64 * (16 * kBsh + kWeights));
  EXPECT_DOUBLE_EQ(three.backward, 3.0 / 64 * (23 * kBsh + 2 * kWeights));
  const TensorTraffic ulysses = layer_elements(shape_of("ulysses", 64));
  EXPECT_DOUBLE_EQ(ulysses.forward, 63.0 / 64 * kBsh * (2. / 64 + 2)) << "96 heads do not divide by 64";
  EXPECT_DOUBLE_EQ(layer_elements(shape_of("ulysses", 32)).forward, 4 * 31.0 / 32 * kBsh / 32);
  const TensorTraffic ring = layer_elements(shape_of("ring", 64));
  EXPECT_DOUBLE_EQ(ring.forward, 2 * 63.0 / 64 * kBsh);
  EXPECT_DOUBLE_EQ(ring.backward, ring.forward + 2 * kBsh);
  EXPECT_DOUBLE_EQ(layer_bytes(shape_of("ring", 64)).backward, 2 * ring.forward + 4 * 2 * kBsh);
}

TEST(TensorFormulas, RecomputeSendsTheForwardAgain) {
  for (const char* kind : {"1d", "2d", "2.5d", "3d", "ring", "ulysses"}) {
    TensorShape shape = shape_of(kind, 64, std::string(kind) == "2.5d" ? 4 : 1);
    const TensorTraffic kept = layer_elements(shape);
    shape.recompute = true;
    EXPECT_DOUBLE_EQ(layer_elements(shape).backward, kept.backward + kept.forward) << kind;
    EXPECT_DOUBLE_EQ(layer_elements(shape).forward, kept.forward) << kind;
  }
}

TEST(TensorFormulas, OneRankSendsNothing) {
  for (const char* kind : {"1d", "2d", "2.5d", "3d", "ring", "ulysses"}) {
    const TensorShape shape = shape_of(kind, 1);
    for (const TensorTraffic& sent : {layer_bytes(shape), embedding_bytes(shape), head_bytes(shape)}) {
      EXPECT_EQ(sent.total(), 0) << kind;
    }
    EXPECT_EQ(words_elements_per_step(shape) + data_elements_per_step(shape), 0) << kind;
    EXPECT_DOUBLE_EQ(layer_weight_elements(shape), kWeights + 13 * kH) << kind;
  }
}

/// With four times the ranks 2D sends half, with eight times the ranks 3D sends a quarter, for any number of ranks of
/// 1D.
TEST(TensorFormulas, FallWithTheRanks) {
  const auto sent = [](const char* kind, int64_t ranks) { return layer_elements(shape_of(kind, ranks)).total(); };
  EXPECT_NEAR(sent("1d", 4096) / sent("1d", 1024), 1, 1e-3);
  EXPECT_NEAR(sent("2d", 1 << 20) / sent("2d", 1 << 18), 1. / 2, 2e-3);
  EXPECT_NEAR(sent("3d", 1 << 30) / sent("3d", 1 << 27), 1. / 4, 2e-3);
}

TEST(TensorFormulas, OfMemory) {
  const TensorShape whole = shape_of("1d", 1);
  const double activations = layer_activation_elements(whole);
  EXPECT_DOUBLE_EQ(activations, kBsh * 16);
  for (const auto& [kind, ranks, depth, weights] : std::vector<std::tuple<const char*, int64_t, int64_t, double>>{
           {"2d", 64, 1, kWeights / 64}, {"2.5d", 64, 4, kWeights / 16}, {"3d", 64, 1, kWeights / 64}}) {
    const TensorShape shape = shape_of(kind, ranks, depth);
    EXPECT_DOUBLE_EQ(layer_activation_elements(shape), activations / 64) << kind;
    const double vectors = 13 * kH / static_cast<double>(shape.side());
    EXPECT_DOUBLE_EQ(layer_weight_elements(shape), weights + vectors) << kind;
  }
  TensorShape one = shape_of("1d", 64);
  EXPECT_DOUBLE_EQ(layer_activation_elements(one), kBsh * (4 + 12. / 64));
  one.sequence = true;
  EXPECT_DOUBLE_EQ(layer_activation_elements(one), kBsh * (2 + 14. / 64));
  EXPECT_DOUBLE_EQ(layer_weight_elements(shape_of("ring", 64)), layer_weight_elements(whole));
}

/// Which kind sends least for the layer of 175B.
TEST(TensorFormulas, CompareTheKinds) {
  const auto kinds = [](int64_t ranks, int64_t sequences) {
    std::vector<std::string> names;
    TensorShape like = shape_of("1d", ranks);
    like.sequences = sequences;
    for (const TensorCost& cost : compare_tensor_kinds(like)) {
      names.push_back(cost.misfit.empty() ? cost.shape.kind : "(" + cost.shape.kind + ")");
      EXPECT_EQ(cost.bytes > 0, cost.misfit.empty() || cost.shape.kind == "1d") << cost.shape.kind;
    }
    return names;
  };
  EXPECT_EQ(kinds(64, 64), (std::vector<std::string>{"2.5d", "3d", "2d", "(1d)"}));
  EXPECT_EQ(kinds(512, 64), (std::vector<std::string>{"3d", "2.5d", "(2d)", "(1d)"}));
  const TensorShape deep = compare_tensor_kinds(shape_of("1d", 512))[1].shape;
  EXPECT_EQ(deep.depth, 8);
  EXPECT_EQ(deep.side(), 8);
  const std::vector<TensorCost> of_64 = compare_tensor_kinds(shape_of("1d", 64));
  EXPECT_LT(of_64.front().bytes, of_64.back().bytes / 4) << "1D sends as much to any number of ranks";
}

TEST(TensorFormulas, ReportWhatDoesNotFit) {
  EXPECT_EQ(misfit_of(shape_of("2d", 16)), "");
  EXPECT_THAT(misfit_of(shape_of("2d", 8)), HasSubstr("8 ranks are not a square: use 4 or 9"));
  EXPECT_THAT(misfit_of(shape_of("3d", 9)), HasSubstr("9 ranks are not a cube: use 8 or 27"));
  EXPECT_THAT(misfit_of(shape_of("2.5d", 9, 2)), HasSubstr("9 ranks are not a square times a depth of 2: use 8 or 18"));
  EXPECT_THAT(misfit_of(shape_of("2d", 25)), HasSubstr("divides 96 heads by 5: use 4 or 9 or 16 or 36"));
  EXPECT_THAT(misfit_of(shape_of("1d", 64)), HasSubstr("64 ranks do not divide 96 heads"));
  TensorShape few = shape_of("3d", 64);
  few.sequences = 8;
  EXPECT_THAT(misfit_of(few), HasSubstr("8 sequences of a micro-batch are split in 16 parts: use 16"));
  EXPECT_THROW(layer_bytes(shape_of("4d", 16)), UsageError);
  EXPECT_FALSE(misfit_of_grid(Grid{.dims = 3}, {.width = 8, .heads = 2, .vocabulary = 9, .hidden = 12}, 2));
  EXPECT_THAT(misfit_of_grid(Grid{.dims = 3}, {.width = 6, .heads = 2, .vocabulary = 9, .hidden = 12}, 2)->fact,
              HasSubstr("divides 6 features by 4"));
}

}  // namespace
}  // namespace caravan::testing::tensor_formulas_test
