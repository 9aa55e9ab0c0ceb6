#include "caravan/train/rehearse.h"

#include <gmock/gmock.h>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "caravan/comm/record.h"
#include "caravan/step/batch.h"
#include "caravan/train/trained_model.h"

namespace caravan::testing::rehearse_test {
namespace {

using Keys = std::vector<std::string>;
constexpr int64_t kVocabulary = 300;

Recipe small(const Keys& more) {
  Keys keys{"model.layers=2",   "model.width=32",        "model.heads=4",
            "model.context=32", "train.global_batch=24", "optimizer.kind=adamw"};
  keys.insert(keys.end(), more.begin(), more.end());
  return parse_recipe("", "test", keys);
}

/// What `rank` sends in its second step, which has all of its micro-batches.
int64_t sent_in_whole_step(const Recipe& recipe, int num_ranks, int rank) {
  ModelConfig config = recipe.model;
  config.vocabulary = kVocabulary;
  Mesh mesh = Mesh::create(make_record_world(rank, num_ranks), mesh_axes(recipe, num_ranks));
  TrainedModel trained(recipe, config, mesh, {}, at::kMeta);
  const int64_t count = plan_batch(recipe, num_ranks).accumulation;
  const auto stepper = make_stepper(stepper_inputs(trained, recipe, count), recipe);
  const auto make = [&](int64_t, int64_t rows) {
    const auto ids = [&] { return at::empty({rows, config.context}, at::TensorOptions(at::kLong).device(at::kMeta)); };
    return TrainBatch{.ids = ids(), .labels = ids()};
  };
  const RowSource source{
      .context = config.context, .make = make, .num_targets = [](int64_t, int64_t rows) { return rows; }};
  const auto batch_of = [&](int64_t step) {
    return make_rank_batch(*trained.engine, source, step, recipe.train.global_batch);
  };
  stepper->advance(1, batch_of, nullptr);
  const int64_t before = trained.engine->mesh().bytes_sent();
  stepper->advance(2, batch_of, nullptr);
  return trained.engine->mesh().bytes_sent() - before;
}

/// The micro-batches that are not rehearsed are counted.
TEST(Rehearse, CountsMicroBatchesThatItLeavesOut) {
  const std::vector<std::pair<int, Keys>> cases{
      {2, {}},
      {2, {"data_parallel.technique=zero2"}},
      {2, {"data_parallel.technique=zero2", "data_parallel.accumulate=full"}},
      {2, {"data_parallel.technique=zero3"}},
      {2, {"data_parallel.technique=zero3", "data_parallel.reshard_after_forward=false"}},
      {3, {"data_parallel.technique=param_server"}},
      {2, {"mesh.tp=2"}},
      {2, {"mesh.cp=2"}},
      {4, {"mesh.tp=2", "data_parallel.technique=zero1", "memory.recompute=full"}},
      {2, {"mesh.ep=2", "moe.experts=4", "moe.balance=batch", "train.micro_batch=2"}},
  };
  for (const auto& [ranks, keys] : cases) {
    Keys all{"train.micro_batch=1"};
    all.insert(all.end(), keys.begin(), keys.end());
    const Recipe recipe = small(all);
    ASSERT_GT(plan_batch(recipe, ranks).accumulation, 4);
    for (int rank = 0; rank < ranks; ++rank) {
      const Rehearsal found = rehearse(recipe, kVocabulary, ranks, rank);
      EXPECT_EQ(found.bytes_sent(), static_cast<double>(sent_in_whole_step(recipe, ranks, rank)))
          << ::testing::PrintToString(keys) << " rank " << rank;
    }
  }
}

/// Later stages are told the shapes of their inputs.
TEST(Rehearse, EveryStageOfAPipeline) {
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-v"}) {
    const Recipe recipe = small({"mesh.pp=2", "model.layers=4", std::string("pipeline.schedule=") + schedule});
    for (int rank = 0; rank < 2; ++rank) {
      const Rehearsal found = rehearse(recipe, kVocabulary, 2, rank);
      EXPECT_GT(found.bytes_sent("pp"), 0) << schedule << " rank " << rank;
      EXPECT_GT(found.peak.total(), 0) << schedule << " rank " << rank;
    }
  }
}

/// More micro-batches need no more memory but for their rows, and with one less all at once.
TEST(Rehearse, MicroBatchesTakeTheirMemoryOneAfterAnother) {
  const auto peak = [](int64_t rows) {
    const Recipe recipe = small({"train.micro_batch=1", "train.global_batch=" + std::to_string(rows)});
    return rehearse(recipe, kVocabulary, 1, 0).peak.total();
  };
  const int64_t batch = 2 * 8 * 32;  // ids and labels of a row
  EXPECT_EQ(peak(40) - peak(8), 32 * batch);
}

TEST(Rehearse, ACopyOfTheCheckpointIsThere) {
  const auto peak = [](const char* copies) {
    return rehearse(small({std::string("checkpoint.async=") + copies}), kVocabulary, 1, 0).peak.total();
  };
  const int64_t state = 3 * 4 * 2;  // at least so many bytes for each number of a block's matrices
  EXPECT_GT(peak("true") - peak("false"), state * 12 * 32 * 32);
}

TEST(TellingRanks, AreTheFirstAndTheLastOfEachStage) {
  EXPECT_THAT(telling_ranks(small({}), 3), ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(telling_ranks(small({"train.global_batch=96"}), 32), ::testing::ElementsAre(0, 31));
  EXPECT_THAT(telling_ranks(small({"mesh.pp=2", "train.global_batch=96"}), 32), ::testing::ElementsAre(0, 15, 16, 31));
  EXPECT_LE(telling_ranks(small({"mesh.pp=32", "model.layers=64", "train.global_batch=96"}), 64).size(), 10U);
}

}  // namespace
}  // namespace caravan::testing::rehearse_test
