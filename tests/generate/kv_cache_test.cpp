#include "caravan/generate/kv_cache.h"

#include <optional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/models/model.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::kv_cache_test {
namespace {

using testing::distance;
using testing::error_of;
using ::testing::HasSubstr;

/// With a cache the products have another number of rows and round differently: a few fp32 roundings.
constexpr double kTolerance = 2e-6;

/// More than a block of the cache.
constexpr int64_t kContext = KvCache::kBlock + 20;

class CachedModel : public ::testing::TestWithParam<Architecture> {
 protected:
  using Sequence = KvCache::Sequence;

  static ModelConfig config_of() {
    ModelConfig config = testing::tiny_config(GetParam());
    config.context = kContext;
    return config;
  }
  at::Tensor run(const at::Tensor& ids, const std::vector<Sequence>& rows) {
    const ForwardContext context{.phase = Phase::evaluate,
                                 .positions = cache_->begin(rows, std::vector<int64_t>(rows.size(), ids.size(1)))};
    at::Tensor logits = model_->run({ids}, context).front();
    cache_->finish();
    return logits;
  }
  /// Ids [first, first + count) of a row of ids_.
  at::Tensor run_row(int64_t row, int64_t first, int64_t count, Sequence sequence) {
    return run(ids_.narrow(0, row, 1).narrow(1, first, count), {sequence});
  }
  at::Tensor expected(int64_t row, int64_t first, int64_t count) {
    return all_.narrow(0, row, 1).narrow(1, first, count);
  }

  const at::NoGradGuard no_grad_;
  ModelConfig config_ = config_of();
  std::unique_ptr<Model> model_ = testing::whole_model(config_);
  at::Tensor ids_ = testing::tokens(2, kContext, config_.vocabulary);
  at::Tensor all_ = model_->run({ids_}, {.phase = Phase::evaluate}).front();
  std::optional<KvCache> cache_{std::in_place, *model_, kContext};
  Sequence a_ = cache_->add(), b_ = cache_->add();
};

TEST_P(CachedModel, oneTokenAtATimeMatchesTheFullForward) {
  for (int64_t t = 0; t < kContext; ++t) {
    const at::Tensor logits = run(ids_.narrow(1, t, 1), {a_, b_});
    EXPECT_LT(distance(logits, all_.narrow(1, t, 1)), kTolerance) << t;
    EXPECT_EQ(cache_->length(a_), t + 1);
  }
  EXPECT_EQ(cache_->num_blocks(), 4);
}

TEST_P(CachedModel, piecesOfAnyLengthMatchTheFullForward) {
  ASSERT_LT(KvCache::kMostQueries, 30);
  int64_t first = 0;
  for (const int64_t count : {4, 30, 1, 3, 27, 5}) {
    const at::Tensor logits = run(ids_.narrow(1, first, count), {a_, b_});
    EXPECT_LT(distance(logits, all_.narrow(1, first, count)), kTolerance) << first;
    first += count;
  }
}

/// Bit for bit, side by side, and in pieces of up to kMostQueries.
TEST_P(CachedModel, sequencesOfAnyLengthAreAsAlone) {
  run_row(0, 0, 5, a_);
  run_row(1, 0, 70, b_);
  const at::Tensor next = at::cat({ids_.narrow(0, 0, 1).narrow(1, 5, 1), ids_.narrow(0, 1, 1).narrow(1, 70, 1)});
  const at::Tensor both = run(next, {a_, b_});
  EXPECT_LT(distance(both.narrow(0, 0, 1), expected(0, 5, 1)), kTolerance);
  EXPECT_LT(distance(both.narrow(0, 1, 1), expected(1, 70, 1)), kTolerance);
  cache_->truncate(a_, 5);
  cache_->truncate(b_, 70);
  EXPECT_TRUE(run_row(0, 5, 1, a_).equal(both.narrow(0, 0, 1)));
  const at::Tensor piece = run_row(1, 70, 6, b_);
  EXPECT_TRUE(piece.narrow(1, 0, 1).equal(both.narrow(0, 1, 1)));
  cache_->truncate(b_, 71);
  for (int64_t i = 1; i < 6; ++i) EXPECT_TRUE(run_row(1, 70 + i, 1, b_).equal(piece.narrow(1, i, 1))) << i;
}

TEST_P(CachedModel, forksShareWhatTheyHaveInCommon) {
  run_row(0, 0, KvCache::kBlock + 3, a_);
  EXPECT_EQ(cache_->num_blocks(), 2);
  const Sequence fork = cache_->fork(a_);
  EXPECT_EQ(cache_->num_blocks(), 2);
  run_row(1, KvCache::kBlock + 3, 2, fork);
  EXPECT_EQ(cache_->num_blocks(), 3) << "the block that it writes to is its own";
  EXPECT_LT(distance(run_row(0, KvCache::kBlock + 3, 2, a_), expected(0, KvCache::kBlock + 3, 2)), kTolerance);
  const at::Tensor mixed = at::cat(
      {ids_.narrow(0, 0, 1).narrow(1, 0, KvCache::kBlock + 3), ids_.narrow(0, 1, 1).narrow(1, KvCache::kBlock + 3, 4)},
      1);
  cache_->remove(a_);
  EXPECT_EQ(cache_->num_blocks(), 2);
  const at::Tensor logits = run(mixed.narrow(1, KvCache::kBlock + 5, 2), {fork});
  cache_.reset();
  const at::Tensor want = model_->run({mixed}, {.phase = Phase::evaluate}).front().narrow(1, KvCache::kBlock + 5, 2);
  EXPECT_LT(distance(logits, want), kTolerance);
}

TEST_P(CachedModel, continuesFromWhereItWasTruncated) {
  run_row(0, 0, 5, a_);
  run_row(0, 0, 3, a_);  // a rejected continuation
  cache_->truncate(a_, 5);
  EXPECT_LT(distance(run_row(0, 5, 2, a_), expected(0, 5, 2)), kTolerance);
  cache_->truncate(a_, 0);
  EXPECT_EQ(cache_->length(a_), 0);
  EXPECT_EQ(cache_->num_blocks(), 0);
  EXPECT_LT(distance(run_row(0, 0, 2, a_), expected(0, 0, 2)), kTolerance);
}

TEST_P(CachedModel, leavingTheContextIsRefusedAndChangesNothing) {
  run_row(0, 0, kContext - 1, a_);
  EXPECT_THAT(error_of<UsageError>([&] { run_row(0, 0, 2, a_); }), HasSubstr("85 positions, but the cache holds 84"));
  EXPECT_EQ(cache_->length(a_), kContext - 1);
  EXPECT_LT(distance(run_row(0, kContext - 1, 1, a_), expected(0, kContext - 1, 1)), kTolerance);
}

TEST_P(CachedModel, aPassThatThrowsLeavesNoTrace) {
  run_row(0, 0, 3, a_);
  {
    const Hook hook = model_->blocks().back()->add_hook(
        [](Module&, const Tensors&, const ForwardContext&, const Next&) -> Tensors { throw UsageError({"test"}); });
    EXPECT_THROW(run_row(1, 3, 2, a_), UsageError);
  }
  EXPECT_EQ(cache_->length(a_), 3);
  EXPECT_LT(distance(run_row(0, 3, 2, a_), expected(0, 3, 2)), kTolerance);
}

TEST_P(CachedModel, otherRowsOrRecordedGradientsAreRefused) {
  cache_->begin({a_, b_}, {1, 1});
  EXPECT_THAT(error_of<UsageError>([&] { model_->run({ids_.narrow(0, 0, 1).narrow(1, 0, 1)}, {}); }),
              HasSubstr("1 sequences of 1 new positions, but the pass began with 2 of 1"));
  const at::AutoGradMode records(true);
  EXPECT_THAT(error_of<UsageError>([&] { run_row(0, 0, 1, a_); }), HasSubstr("while gradients are recorded"));
}

TEST_P(CachedModel, withoutACacheNextLogitsAreTheLastOnes) {
  cache_.reset();
  const at::Tensor logits = model_->next_logits(ids_.narrow(1, 0, 6), {.phase = Phase::evaluate});
  EXPECT_LT(distance(logits, all_.select(1, 5)), kTolerance);
}

TEST_P(CachedModel, hooksOnTheModelEncloseBothStages) {
  std::vector<at::Tensor> outputs;
  const Hook hook = model_->add_hook([&](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    outputs.push_back(next(std::move(inputs), context).front());
    return Tensors{outputs.back()};
  });
  cache_.reset();
  const at::Tensor logits = model_->next_logits(ids_.narrow(1, 0, 6), {.phase = Phase::evaluate});
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(outputs[0].sizes(), at::IntArrayRef({2, 6, config_.width}));
  EXPECT_TRUE(outputs[1].squeeze(1).equal(logits));
}

INSTANTIATE_TEST_SUITE_P(, CachedModel, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caravan::kv_cache_test
