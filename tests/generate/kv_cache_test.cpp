#include "caravan/generate/kv_cache.h"

#include <optional>

#include <ATen/core/grad_mode.h>
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

class CachedModel : public ::testing::TestWithParam<Architecture> {
 protected:
  at::Tensor run(const at::Tensor& ids) {
    return model_->run({ids}, {.phase = Phase::evaluate, .positions = cache_->positions(ids.size(1))}).front();
  }
  at::Tensor next_logits(const at::Tensor& ids) {
    return model_->next_logits(ids, {.phase = Phase::evaluate, .positions = cache_->positions(ids.size(1))});
  }
  at::Tensor expected(int64_t position) { return all_.select(1, position); }

  const at::NoGradGuard no_grad_;
  ModelConfig config_ = testing::tiny_config(GetParam());
  std::unique_ptr<Model> model_ = testing::whole_model(config_);
  at::Tensor ids_ = testing::tokens(2, config_.context, config_.vocabulary);
  at::Tensor all_ = model_->run({ids_}, {.phase = Phase::evaluate}).front();
  std::optional<KvCache> cache_{std::in_place, *model_, config_.context};
};

TEST_P(CachedModel, oneTokenAtATimeMatchesTheFullForward) {
  for (int64_t t = 0; t < config_.context; ++t) {
    EXPECT_LT(distance(next_logits(ids_.narrow(1, t, 1)), expected(t)), kTolerance) << t;
    EXPECT_EQ(cache_->length(), t + 1);
  }
}

TEST_P(CachedModel, piecesOfAnyLengthMatchTheFullForward) {
  int64_t first = 0;
  for (const int64_t count : {4, 1, 3, 5}) {
    const at::Tensor logits = run(ids_.narrow(1, first, count));
    EXPECT_LT(distance(logits, all_.narrow(1, first, count)), kTolerance) << first;
    first += count;
  }
}

TEST_P(CachedModel, withoutACacheNextLogitsAreTheLastOnes) {
  cache_.reset();
  const at::Tensor logits = model_->next_logits(ids_.narrow(1, 0, 6), {.phase = Phase::evaluate});
  EXPECT_LT(distance(logits, expected(5)), kTolerance);
}

TEST_P(CachedModel, continuesFromWhereItWasTruncated) {
  run(ids_.narrow(1, 0, 5));
  run(ids_.narrow(1, 0, 3));  // a rejected continuation
  cache_->truncate(5);
  EXPECT_LT(distance(next_logits(ids_.narrow(1, 5, 2)), expected(6)), kTolerance);
  cache_->clear();
  EXPECT_EQ(cache_->length(), 0);
  EXPECT_LT(distance(next_logits(ids_.narrow(1, 0, 2)), expected(1)), kTolerance);
}

TEST_P(CachedModel, leavingTheContextIsRefusedAndChangesNothing) {
  run(ids_.narrow(1, 0, config_.context - 1));
  EXPECT_THAT(error_of<UsageError>([&] { run(ids_.narrow(1, 0, 2)); }),
              HasSubstr("14 positions, but the model's context is 13"));
  EXPECT_EQ(cache_->length(), config_.context - 1);
  EXPECT_LT(distance(next_logits(ids_.narrow(1, config_.context - 1, 1)), expected(config_.context - 1)), kTolerance);
}

TEST_P(CachedModel, anotherBatchOrRecordedGradientsAreRefused) {
  run(ids_.narrow(1, 0, 2));
  EXPECT_THAT(error_of<UsageError>([&] { run(ids_.narrow(0, 0, 1).narrow(1, 0, 1)); }),
              HasSubstr("a batch of 1, but the cache holds 2"));
  cache_->clear();
  const at::AutoGradMode records(true);
  EXPECT_THAT(error_of<UsageError>([&] { run(ids_.narrow(1, 0, 1)); }), HasSubstr("while gradients are recorded"));
}

TEST_P(CachedModel, aSmallOneSaysThatItIsFull) {
  cache_.reset();
  cache_.emplace(*model_, 4);
  EXPECT_THAT(error_of<UsageError>([&] { run(ids_.narrow(1, 0, 5)); }),
              HasSubstr("5 positions, but the cache holds 4"));
}

TEST_P(CachedModel, hooksOnTheModelEncloseBothStages) {
  std::vector<at::Tensor> outputs;
  const Hook hook = model_->add_hook([&](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    outputs.push_back(next(std::move(inputs), context).front());
    return Tensors{outputs.back()};
  });
  const at::Tensor logits = next_logits(ids_.narrow(1, 0, 6));
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(outputs[0].sizes(), at::IntArrayRef({2, 6, config_.width}));
  EXPECT_TRUE(outputs[1].squeeze(1).equal(logits));
}

INSTANTIATE_TEST_SUITE_P(, CachedModel, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caravan::kv_cache_test
