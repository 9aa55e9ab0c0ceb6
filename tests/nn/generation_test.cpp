#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/kv_cache.h"
#include "caravan/nn/model.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan {
namespace {

using testing::distance;
using testing::error_of;
using ::testing::HasSubstr;

/// With a cache the products have another number of rows and round differently: a few fp32 roundings.
constexpr double kTolerance = 2e-6;

class Generation : public ::testing::TestWithParam<ModelKind> {
 protected:
  Generation() { context_.cache = &cache_; }

  at::Tensor expected(int64_t position) { return all_.select(1, position); }

  const at::NoGradGuard no_grad_;
  ModelConfig config_ = testing::tiny_config(GetParam());
  std::unique_ptr<Model> model_ = testing::whole_model(config_);
  at::Tensor ids_ = testing::tokens(2, config_.context, config_.vocabulary);
  at::Tensor all_ = model_->run({ids_}, {.training = false}).front();
  KvCache cache_{config_.context};
  ForwardContext context_{.training = false};
};

TEST_P(Generation, oneTokenAtATimeIsTheFullForward) {
  for (int64_t t = 0; t < config_.context; ++t) {
    EXPECT_LT(distance(model_->next_logits(ids_.narrow(1, t, 1), context_), expected(t)), kTolerance) << t;
    EXPECT_EQ(cache_.length(), t + 1);
  }
}

TEST_P(Generation, piecesOfAnyLengthAreTheFullForward) {
  int64_t first = 0;
  for (const int64_t count : {4, 1, 3, 5}) {
    const at::Tensor logits = model_->run({ids_.narrow(1, first, count)}, context_).front();
    EXPECT_LT(distance(logits, all_.narrow(1, first, count)), kTolerance) << first;
    first += count;
  }
}

TEST_P(Generation, withoutACacheNextLogitsAreTheLastOnes) {
  const at::Tensor logits = model_->next_logits(ids_.narrow(1, 0, 6), {.training = false});
  EXPECT_LT(distance(logits, expected(5)), kTolerance);
}

TEST_P(Generation, goesOnFromWhereItWasCutBack) {
  model_->run({ids_.narrow(1, 0, 5)}, context_);
  model_->run({ids_.narrow(1, 0, 3)}, context_);  // a rejected continuation
  cache_.truncate(5);
  EXPECT_LT(distance(model_->next_logits(ids_.narrow(1, 5, 2), context_), expected(6)), kTolerance);
  cache_.clear();
  EXPECT_EQ(cache_.length(), 0);
  EXPECT_LT(distance(model_->next_logits(ids_.narrow(1, 0, 2), context_), expected(1)), kTolerance);
}

TEST_P(Generation, leavingTheContextIsRefusedAndChangesNothing) {
  model_->run({ids_.narrow(1, 0, config_.context - 1)}, context_);
  EXPECT_THAT(error_of<UsageError>([&] { model_->run({ids_.narrow(1, 0, 2)}, context_); }),
              HasSubstr("14 positions, but the model's context is 13"));
  EXPECT_EQ(cache_.length(), config_.context - 1);
  EXPECT_LT(
      distance(model_->next_logits(ids_.narrow(1, config_.context - 1, 1), context_), expected(config_.context - 1)),
      kTolerance);
}

TEST_P(Generation, anotherBatchOrRecordedGradientsAreRefused) {
  model_->run({ids_.narrow(1, 0, 2)}, context_);
  EXPECT_THAT(error_of<UsageError>([&] { model_->run({ids_.narrow(0, 0, 1).narrow(1, 0, 1)}, context_); }),
              HasSubstr("a batch of 1, but the cache holds 2"));
  cache_.clear();
  const at::AutoGradMode records(true);
  EXPECT_THAT(error_of<UsageError>([&] { model_->run({ids_.narrow(1, 0, 1)}, context_); }),
              HasSubstr("while gradients are recorded"));
}

INSTANTIATE_TEST_SUITE_P(, Generation, ::testing::Values(ModelKind::gpt2, ModelKind::llama),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace caravan
