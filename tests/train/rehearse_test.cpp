#include "caravan/train/model/rehearse.h"

#include <gmock/gmock.h>
#include <limits>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/nn/experts/expert_rows.h"
#include "caravan/step/batch.h"
#include "caravan/train/model/trained_model.h"
#include "tests/needs.h"

namespace caravan::testing::rehearse_test {
namespace {

using Keys = std::vector<std::string>;
constexpr int64_t kVocabulary = 300;

Recipe small(const Keys& more) {
  Keys keys{"model.layers=2", "model.width=32", "model.heads=4", "model.context=32", "train.global_batch=24"};
  keys.insert(keys.end(), more.begin(), more.end());
  needs_chosen(keys);
  return parse_recipe("", "test", keys);
}

/// What `rank` sends in a step with all micro-batches, the mean of the steps to a boundary or of the whole run.
double sent_in_whole_step(const Recipe& recipe, int num_ranks, int rank, bool of_run = false) {
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
  stepper->advance(stepper->steps_at_once(), batch_of, nullptr);  // sends more
  stepper->start_at(0, {});
  const int64_t before = trained.engine->mesh().bytes_sent();
  const int64_t end = of_run ? recipe.train.steps : stepper->steps_at_once();
  while (stepper->step() < end) {
    stepper->advance(of_run ? next_due(recipe, stepper->step(), end) : end, batch_of, nullptr);
  }
  return static_cast<double>(trained.engine->mesh().bytes_sent() - before) / static_cast<double>(end);
}

/// If two ranks have half of the experts each, one gets at most twice as many tokens, as if the batch were twice as
/// large for everything that belongs to experts.
TEST(Rehearse, ExpertsGetUpToAllTokens) {
  const Recipe recipe = small({"mesh.ep=2", "moe.experts=4", "moe.top_k=2", "train.micro_batch=12"});
  const auto peak = [&](double most) {
    const ExpertLoadScope load(most);
    return rehearse(recipe, kVocabulary, 2, 0).peak.total();
  };
  const int64_t alike = peak(1);
  const int64_t worst = peak(std::numeric_limits<double>::infinity());
  EXPECT_EQ(peak(1), alike);
  EXPECT_EQ(peak(2), worst);
  const int64_t between = peak(1.5);
  EXPECT_GT(between, alike);
  EXPECT_LT(between, worst);
  // At least two copies of 12 x 32 tokens, up and down, and the hidden tensors of 2 layers.
  EXPECT_GT(worst - alike, 2 * 12 * 32 * 2 * (32 + 128) * 4);
}

/// The micro-batches that are not rehearsed are counted.
TEST(Rehearse, CountsMicroBatchesThatItLeavesOut) {
  const std::vector<std::pair<int, Keys>> cases{
      {2, {}},
      {2, {"data_parallel.technique=zero2"}},
      {2, {"data_parallel.technique=zero2", "data_parallel.accumulate=full"}},
      {2, {"data_parallel.technique=zero3"}},
      {2, {"data_parallel.technique=zero3", "data_parallel.reshard_after_forward=false"}},
      {2, {"data_parallel.technique=zero3", "tiling.tiles=3"}},
      {3, {"data_parallel.technique=param_server"}},
      {2, {"mesh.tp=2"}},
      {2, {"mesh.cp=2"}},
      {4, {"mesh.tp=2", "data_parallel.technique=zero1", "memory.recompute=full"}},
      {2, {"mesh.ep=2", "moe.experts=4", "moe.balance=batch", "train.micro_batch=2"}},
      {3, {"data_parallel.technique=diloco", "data_parallel.local_steps=7", "train.steps=7"}},
      {4, {"mesh.tp=2", "data_parallel.technique=diloco", "data_parallel.local_steps=5", "train.steps=20"}},
  };
  for (const auto& [ranks, keys] : cases) {
    Keys all{"train.micro_batch=1"};
    all.insert(all.end(), keys.begin(), keys.end());
    const Recipe recipe = small(all);
    ASSERT_GT(plan_batch(recipe, ranks).accumulation, 4);
    for (int rank = 0; rank < ranks; ++rank) {
      const Rehearsal found = rehearse(recipe, kVocabulary, ranks, rank);
      EXPECT_NEAR(found.bytes_sent(), sent_in_whole_step(recipe, ranks, rank), 0.01)
          << ::testing::PrintToString(keys) << " rank " << rank;
    }
  }
}

/// For a window, its steps; a round or window ends where the run stops for something else.
TEST(Rehearse, CountsStepsThatItLeavesOut) {
  const Keys pipe{"data_parallel.technique=ddp", "mesh.pp=2", "model.layers=4", "model.tie_embeddings=false",
                  "optimizer.clip_norm=0"};
  for (const char* schedule : {"pipedream", "pipedream-2bw"}) {
    Keys keys = pipe;
    keys.push_back(std::string("pipeline.schedule=") + schedule);
    keys.push_back("pipeline.drain=20");
    const Recipe recipe = small(keys);
    // The first stage tells the second the shapes of its inputs, also in the whole step.
    EXPECT_NEAR(rehearse(recipe, kVocabulary, 2, 0).bytes_sent(), sent_in_whole_step(recipe, 2, 0), 0.01) << schedule;
  }
  const auto sent = [](const char* steps) {
    return rehearse(small({"data_parallel.technique=diloco", "data_parallel.local_steps=500", "checkpoint.every=0",
                           "train.eval_every=0", std::string("train.steps=") + steps}),
                    kVocabulary, 2, 0)
        .bytes_sent("dp");
  };
  EXPECT_NEAR(sent("100"), 2 * sent("200"), 1e-6 * sent("100"));
  // Rounds of 4, 1, 3, 2 and 2 steps.
  const Recipe uneven = small({"data_parallel.technique=diloco", "data_parallel.local_steps=5", "train.eval_every=4",
                               "checkpoint.every=0", "train.steps=12"});
  EXPECT_NEAR(rehearse(uneven, kVocabulary, 2, 0).bytes_sent(), sent_in_whole_step(uneven, 2, 0, true), 0.01);
}

/// The last stage has the tied embedding, but owns no part of it.
TEST(Rehearse, AHookIsNotCalledForEmptyRanges) {
  for (const char* hook : {"topk", "powersgd"}) {
    const Recipe recipe = small({"mesh.pp=2", "model.tie_embeddings=true", std::string("data_parallel.hook=") + hook});
    for (const int rank : {0, 2}) EXPECT_GT(rehearse(recipe, kVocabulary, 4, rank).bytes_sent("dp"), 0) << hook;
  }
}

/// An asynchronous checkpoint also copies the state that the stepper keeps.
TEST(Rehearse, CopiesTheStateOfTheStepper) {
  const auto peak = [](const char* momentum, const char* async, int rank = 0) {
    return rehearse(small({"data_parallel.technique=diloco", "train.micro_batch=1", "optimizer.kind=sgd",
                           std::string("data_parallel.outer_momentum=") + momentum,
                           std::string("checkpoint.async=") + async}),
                    kVocabulary, 2, rank)
        .peak;
  };
  const int64_t momentum = peak("0.9", "false").state() - peak("0", "false").state();
  EXPECT_GT(momentum, 4 * 2 * 12 * 32 * 32);
  int64_t copied = 0;  // by both ranks, which share the work
  for (int rank = 0; rank < 2; ++rank) {
    const auto copy = [&](const char* of) { return peak(of, "true", rank).total() - peak(of, "false", rank).total(); };
    copied += copy("0.9") - copy("0");
  }
  EXPECT_NEAR(static_cast<double>(copied), static_cast<double>(momentum), 0.01 * static_cast<double>(momentum));
}

/// Workers without a barrier: all gradients of a step, and a push and all values for each other worker of a server.
TEST(Rehearse, HoldsTheMessagesOfServersWithoutABarrier) {
  const auto peak = [](const char* mode, int rank) {
    return rehearse(small({"data_parallel.technique=param_server", "data_parallel.servers=1", "optimizer.clip_norm=0",
                           std::string("data_parallel.mode=") + mode}),
                    kVocabulary, 3, rank)
        .peak.total();
  };
  const int64_t parameters = small({}).model.num_parameters() + 32 * kVocabulary;
  EXPECT_GE(peak("async", 1) - peak("sync", 1), 4 * parameters);
  EXPECT_GE(peak("async", 0) - peak("sync", 0), 4 * parameters + 2 * 4 * parameters);
}

/// The memory of a replica does not depend on how long a round is.
TEST(Rehearse, ARoundTakesTheMemoryOfOneStep) {
  const auto peak = [](const char* steps) {
    return rehearse(small({"data_parallel.technique=diloco", std::string("data_parallel.local_steps=") + steps}),
                    kVocabulary, 2, 0)
        .peak.total();
  };
  EXPECT_EQ(peak("20"), peak("2"));
}

TEST(Rehearse, RefusesFewerRanksThanStages) {
  const Recipe four = small({"mesh.pp=4", "model.layers=4"}), sixteen = small({"mesh.pp=16", "model.layers=16"});
  EXPECT_THROW(rehearse(four, kVocabulary, 2, 0), UsageError);
  EXPECT_THROW(telling_ranks(sixteen, 12), UsageError);
}

/// A stage that is cut by hand to be large is among them.
TEST(TellingRanks, HaveTheLargestStage) {
  const Recipe recipe = small({"mesh.pp=16", "model.layers=32", "train.global_batch=96", "model.vocabulary=300",
                               "pipeline.cut=[1,1,1,17,1,1,1,1,1,1,1,1,1,1,1,1]"});
  EXPECT_THAT(telling_ranks(recipe, 16), ::testing::Contains(3));
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

/// More micro-batches need more memory only for their rows.
TEST(Rehearse, MicroBatchesTakeTheirMemoryOneAfterAnother) {
  const auto peak = [](int64_t rows) {
    const Recipe recipe = small({"train.micro_batch=1", "train.global_batch=" + std::to_string(rows)});
    return rehearse(recipe, kVocabulary, 1, 0).peak.total();
  };
  const int64_t batch = 2 * 8 * 32;  // ids and labels of a row
  EXPECT_EQ(peak(40) - peak(8), 32 * batch);
}

TEST(Rehearse, IncludesACopyOfTheCheckpoint) {
  needs({"adamw"});
  const auto peak = [](const char* copies, const char* every = "100") {
    return rehearse(small({std::string("checkpoint.async=") + copies, std::string("checkpoint.every=") + every}),
                    kVocabulary, 1, 0)
        .peak.total();
  };
  const int64_t state = 3 * 4 * 2;  // at least this many bytes for each number of a block's matrices
  EXPECT_GT(peak("true") - peak("false"), state * 12 * 32 * 32);
  EXPECT_EQ(peak("true", "0"), peak("false", "0")) << "one is written after the last step, when activations are gone";
}

TEST(TellingRanks, AreTheFirstAndTheLastOfEachStage) {
  EXPECT_THAT(telling_ranks(small({}), 3), ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(telling_ranks(small({"train.global_batch=96"}), 32), ::testing::ElementsAre(0, 31));
  EXPECT_THAT(telling_ranks(small({"mesh.pp=2", "train.global_batch=96"}), 32), ::testing::ElementsAre(0, 15, 16, 31));
  EXPECT_LE(telling_ranks(small({"mesh.pp=32", "model.layers=64", "train.global_batch=96"}), 64).size(), 10U);
}

}  // namespace
}  // namespace caravan::testing::rehearse_test
