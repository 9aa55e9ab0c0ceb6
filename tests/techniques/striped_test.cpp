#include "caravan/techniques/context/striped.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/prove/prove.h"
#include "caravan/recipe/recipe.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/mesh/refusal.h"
#include "tests/prove/expect_holds.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::striped_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Striped, DealsOutTokensRoundRobin) {
  const std::vector<DimIndex::Run> runs{{0, 1}, {3, 1}, {1, 1}, {4, 1}, {2, 1}, {5, 1}};
  EXPECT_EQ(striped().tokens(6, 3), DimIndex(runs, 6));
  EXPECT_EQ(striped().tokens(5, 1), DimIndex(0, 5, 5));
  EXPECT_THAT(refusal<ShapeError>([] { striped().tokens(7, 3); }), AllOf(HasSubstr("7 tokens"), HasSubstr("6 or 9")));
  EXPECT_THAT(refusal<ShapeError>([] { striped().tokens(2, 3); }), HasSubstr("use 3 tokens"));
}

/// Every pair of a query and a key that it sees is computed once, on the rank of the query, and ranks differ by the
/// diagonal of a triangle at most.
TEST(Striped, CoversTheCausalPairsOnce) {
  for (int n = 1; n <= 5; ++n) {
    for (const int64_t local : {1, 4, 5}) {
      const int64_t length = local * n;
      const at::Tensor order = striped().tokens(length, n).indices(length);
      at::Tensor times = at::zeros({length, length}, at::kLong);
      for (int turn = 0; turn < n; ++turn) {
        for (int coord = 0; coord < n; ++coord) {
          const RingPart part = striped().part(coord, turn, n, local);
          int64_t products = 0;
          for (int64_t q = 0; q < part.num_queries; ++q) {
            for (int64_t k = 0; k < (part.is_causal ? q + 1 : part.num_keys); ++k, ++products) {
              const auto query = order[coord * local + part.first_query + q].item<int64_t>();
              times[query][order[part.from * local + k].item<int64_t>()] += 1;
            }
          }
          EXPECT_EQ(products, local * (part.from <= coord ? local + 1 : local - 1) / 2);
        }
      }
      EXPECT_TRUE(times.equal(at::ones_like(times).tril())) << n;
    }
  }
}

struct Case {
  int64_t cp = 2;
  Architecture arch = Architecture::gpt2();
  bool has_documents = false;
  bool overlaps = true;
  int pp = 1;
  double dropout = 0;
  int64_t tp = 1;  ///< with the stream split over it
  at::ScalarType dtype = at::kFloat;
  int64_t of_rank = 4;  ///< tokens of a sequence
};

ProveCase to_prove(const Case& of) {
  ModelConfig model = shrunken({.arch = of.arch, .tie_embeddings = of.arch == Architecture::gpt2()});
  model.kv_heads = of.arch == Architecture::llama() ? 2 : 0;
  model.dropout = of.dropout;
  model.context = of.of_rank * of.cp;
  StrategyChoice choice;
  choice.context_parallel = context_of("striped", of.cp);
  choice.tensor_parallel = tensor_of(of.tp, "1d", {{"sequence", of.tp > 1}});
  choice.sequences = 2;
  choice.overlap = of.overlaps;
  std::vector<AxisSize> axes{{"dp", 1}, {"cp", static_cast<int>(of.cp)}};
  if (of.tp > 1) axes.push_back({"tp", static_cast<int>(of.tp)});
  if (of.pp > 1) {
    choice.pipeline.degree = of.pp;
    model.layers = of.pp + 1;
    axes.insert(axes.begin(), {"pp", of.pp});
  }
  return {.name = "striped, overlap " + std::to_string(static_cast<int>(of.overlaps)),
          .model = model,
          .axes = axes,
          .arrange = [choice](Model& built, Mesh& mesh) { return Arrangement(make_strategy(choice, built, mesh)); },
          .num_micro_batches = 2,
          .rows = 4,
          .has_documents = of.has_documents,
          .dtype = of.dtype,
          .tolerance = of.dtype == at::kDouble ? 1e-12 : 1e-5,
          .lr = 0.1};
}

/// Losses, gradients, norm and updates in fp32 to 1e-5.
TEST(Striped, MatchesOneProcess) {
  for (const int64_t cp : {2, 3, 4}) {
    for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
      for (const bool has_documents : {false, true}) {
        const bool overlaps = (cp + static_cast<int64_t>(has_documents)) % 2 == 0;
        expect_holds(to_prove({.cp = cp, .arch = kind, .has_documents = has_documents, .overlaps = overlaps}));
        expect_holds(to_prove(
            {.cp = cp, .arch = kind, .has_documents = has_documents, .overlaps = !overlaps, .pp = 2, .of_rank = 5}));
      }
    }
  }
}

TEST(Striped, MatchesOneProcessInFp64WithDropoutAndTensorParallelism) {
  expect_holds(to_prove({.cp = 3, .arch = Architecture::llama(), .has_documents = true, .dtype = at::kDouble}));
  expect_holds(to_prove({.has_documents = true, .dropout = 0.1, .dtype = at::kDouble}));
  expect_holds(to_prove({.arch = Architecture::llama(), .tp = 2, .dtype = at::kDouble}));
  expect_holds(to_prove({.cp = 4, .dtype = at::kDouble, .of_rank = 1}));
}

/// A ring of zig-zag chunks would need twice as many.
TEST(Striped, ASequenceIsAMultipleOfTheRanks) {
  const std::vector<std::string> keys{"mesh.cp=3", "context_parallel.kind=striped"};
  const auto with_context = [&](const char* context) {
    std::vector<std::string> all = keys;
    all.emplace_back(context);
    return parse_recipe("", "r", all);
  };
  EXPECT_NO_THROW(plan_batch(with_context("model.context=9"), 3));
  EXPECT_THAT(refusal<UsageError>([&] { plan_batch(with_context("model.context=10"), 3); }),
              AllOf(HasSubstr("10 positions do not split into 3 equal pieces"), HasSubstr("model.context = 9")));
}

}  // namespace
}  // namespace caravan::testing::striped_test
