#include "caravan/nn/dropout.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/models/model.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::dropout_test {
namespace {

using testing::distance;
using testing::normal;

at::Tensor dropped(const at::Tensor& x, double dropout, std::vector<DimIndex> index,
                   const std::string& name = "blocks.0.dropout", int64_t step = 4) {
  return counter_dropout(x, dropout, {.seed = 9, .name = name, .step = step, .index = std::move(index)});
}

/// Drops elements of a whole tensor.
at::Tensor dropped(const at::Tensor& x, double dropout) {
  return dropped(x, dropout, std::vector<DimIndex>(static_cast<size_t>(x.dim())));
}

TEST(CounterDropout, zeroesItsShareAndKeepsTheMean) {
  for (const double dropout : {0.1, 0.5, 0.9}) {
    const at::Tensor y = dropped(at::ones({200, 5, 1001}), dropout);
    const double n = static_cast<double>(y.numel());
    const double zeroed = (y == 0).sum().item<double>() / n;
    EXPECT_NEAR(zeroed, dropout, 5 * std::sqrt(dropout * (1 - dropout) / n));  // five standard deviations
    EXPECT_TRUE((y == 0).logical_or((y - 1 / (1 - dropout)).abs() < 1e-5).all().item<bool>());
    // Neighbours along each dim are independent: the fraction of pairs that are both zeroed is its square.
    for (const int64_t dim : {0, 1, 2}) {
      const int64_t size = y.size(dim) - 1;
      const at::Tensor both = (y.narrow(dim, 0, size) == 0).logical_and(y.narrow(dim, 1, size) == 0);
      EXPECT_NEAR(both.to(at::kDouble).mean().item<double>(), dropout * dropout, 6 / std::sqrt(n)) << dim;
    }
  }
}

TEST(CounterDropout, seedNameAndStepGiveOtherMasks) {
  const at::Tensor x = at::ones({64, 64});
  const auto draw = [&](uint64_t seed, const std::string& name, int64_t step) {
    return counter_dropout(x, 0.5, {.seed = seed, .name = name, .step = step, .index = {{}, {}}});
  };
  const at::Tensor base = draw(1, "a", 0);
  EXPECT_TRUE(base.equal(draw(1, "a", 0)));
  for (const at::Tensor& other : {draw(2, "a", 0), draw(1, "b", 0), draw(1, "a", 1)}) {
    // Independent halves agree on half of the elements; 0.05 is more than six standard deviations.
    EXPECT_NEAR((base == other).to(at::kDouble).mean().item<double>(), 0.5, 0.05);
  }
}

TEST(CounterDropout, backwardDrawsTheSameMask) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor x = normal({3, 7, 37}, 1).to(type).requires_grad_(true);
    const at::Tensor y = dropped(x, 0.3);
    y.backward(at::ones_like(y));
    EXPECT_TRUE((x.detach() * x.grad()).allclose(y.detach(), 1e-2, 0)) << c10::toString(type);
    EXPECT_TRUE((x.grad() == 0).equal(y.detach() == 0));
  }
}

/// Every box of a small tensor gets exactly its piece of the global mask: ranks, micro-batches, pieces of sequences and
/// features. Odd sizes give vector tails everywhere.
TEST(CounterDropout, everyPieceIsAPieceOfTheWhole) {
  const std::vector<int64_t> whole{4, 5, 23};
  const at::Tensor x = normal(whole, 2);
  const at::Tensor all = dropped(x, 0.4);
  for (int64_t b = 0; b < 4; ++b) {
    for (int64_t rows = 1; b + rows <= 4; ++rows) {
      for (const auto& [s, length] : {std::pair<int64_t, int64_t>{0, 5}, {1, 3}, {4, 1}}) {
        for (const auto& [f, width] : {std::pair<int64_t, int64_t>{0, 23}, {3, 17}, {22, 1}}) {
          const auto piece = [&](const at::Tensor& t) {
            return t.narrow(0, b, rows).narrow(1, s, length).narrow(2, f, width);
          };
          const std::vector<DimIndex> index{{b, rows, 4}, {s, length, 5}, {f, width, 23}};
          EXPECT_TRUE(dropped(piece(x), 0.4, index).equal(piece(all))) << b << rows << s << f;
        }
      }
    }
  }
}

TEST(CounterDropout, largeTensorsAreSplitInvisibly) {
  const std::vector<int64_t> whole{3, 100, 331};
  const at::Tensor x = normal(whole, 2);
  const at::Tensor all = dropped(x, 0.4);
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_TRUE(dropped(x.narrow(0, b, 1), 0.4, {{b, 1, 3}, {}, {}}).equal(all.narrow(0, b, 1)));
  }
  // The same in several runs: a permutation of each dim, and pieces that begin and end within a chunk of a thread.
  const at::Tensor batch = at::tensor({2, 0}, at::kLong);
  const at::Tensor sequence = at::cat({at::arange(70, 100), at::arange(0, 41)});
  const at::Tensor feature = at::cat({at::arange(200, 331), at::arange(17, 90)});
  const auto piece = [&](const at::Tensor& t) {
    return t.index_select(0, batch).index_select(1, sequence).index_select(2, feature);
  };
  const std::vector<DimIndex> index{DimIndex::of(batch, 3), DimIndex::of(sequence, 100), DimIndex::of(feature, 331)};
  EXPECT_TRUE(dropped(piece(x), 0.4, index).equal(piece(all)));
  EXPECT_TRUE(dropped(x.index_select(1, sequence), 0.4, {{}, index[1], {}}).equal(all.index_select(1, sequence)));
}

TEST(CounterDropout, anIndexOfAnotherTensorIsRefused) {
  EXPECT_THROW(dropped(at::ones({2, 4}), 0.5, {{}, {0, 3, 8}}), ShapeError);
  const auto model = testing::whole_model([] {
    ModelConfig config = testing::tiny_config(Architecture::gpt2());
    config.dropout = 0.3;
    return config;
  }());
  ForwardContext context;
  context.set(Dim::batch, {4, 3, 8});
  EXPECT_THAT(testing::error_of<ShapeError>([&] { model->run({testing::tokens(2, 5, 23)}, context); }),
              ::testing::HasSubstr("embedding.dropout, batch: 3 elements of 8, but the tensor has 2"));
}

class ModelDropout : public ::testing::TestWithParam<Architecture> {};

/// Rank 1 of 3 and its second micro-batch compute what one process computes for their sequences.
TEST_P(ModelDropout, isThatOfTheGlobalBatch) {
  ModelConfig config = testing::tiny_config(GetParam());
  config.dropout = 0.3;
  const auto model = testing::whole_model(config);
  const at::Tensor ids = testing::tokens(6, 11, config.vocabulary);
  const ForwardContext whole{.seed = 3, .step = 8};
  const at::Tensor all = model->run({ids}, whole).front();
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{2, 2}, {3, 1}}) {
    ForwardContext context = whole;
    context.set(Dim::batch, {first, count, 6});
    const at::Tensor piece = model->run({ids.narrow(0, first, count)}, context).front();
    EXPECT_LT(distance(piece, all.narrow(0, first, count)),
              1e-6);  // products with another number of rows round differently
    context.set(Dim::batch, {});
    EXPECT_GT(distance(model->run({ids.narrow(0, first, count)}, context).front(), all.narrow(0, first, count)), 1e-2);
  }
}

TEST_P(ModelDropout, isOffInEvaluation) {
  ModelConfig config = testing::tiny_config(GetParam());
  const auto plain = testing::whole_model(config);
  config.dropout = 0.3;
  const auto model = testing::whole_model(config);
  const at::Tensor ids = testing::tokens(2, 11, config.vocabulary);
  const at::Tensor expected = plain->run({ids}, {}).front();
  EXPECT_TRUE(model->run({ids}, {.phase = Phase::evaluate}).front().equal(expected));
  EXPECT_FALSE(model->run({ids}, {}).front().equal(expected));
}

/// With a negligible dropout, attention's path for dropout gives the same as the fused kernel.
TEST_P(ModelDropout, aTinyOneChangesNothingElse) {
  ModelConfig config = testing::tiny_config(GetParam());
  const auto plain = testing::whole_model(config);
  config.dropout = 1e-9;
  const auto model = testing::whole_model(config);
  const at::Tensor ids = testing::tokens(2, 11, config.vocabulary);
  const at::Tensor labels = testing::tokens(2, 11, config.vocabulary, 1);
  for (Model* each : {plain.get(), model.get()}) each->run({ids, labels}, {}).front().backward();
  const NamedTensors a = testing::gradients(*plain);
  const NamedTensors b = testing::gradients(*model);
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].first.ends_with("key.bias")) continue;  // zero apart from rounding
    EXPECT_LT(distance(b[i].second, a[i].second), 2e-6) << a[i].first;
  }
}

INSTANTIATE_TEST_SUITE_P(, ModelDropout, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caravan::dropout_test
