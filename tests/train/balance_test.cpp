/// Ranks with unlike numbers of rows compute what one process does, and a run repeats the deals of another.

#include <chrono>
#include <gmock/gmock.h>
#include <sstream>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/train/balance/deal_record.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::balance_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Keys = std::vector<std::string>;

/// Errors of rounding stay as they are: AdamW would turn a gradient of nothing else into a full step.
const Keys kSgd{"train.steps=6", "optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.1",
                "optimizer.clip_norm=0.5"};

class Balance : public ::testing::Test {
 protected:
  /// A record of these deals, each after so many steps.
  std::string record(const std::string& name, int64_t micro_batches,
                     const std::vector<std::pair<int64_t, std::vector<int64_t>>>& deals) const {
    std::string text;
    for (const auto& [step, rows] : deals) {
      text += RecordedDeal{.step = step, .micro_batches = micro_batches, .rows = rows}.to_json() + '\n';
    }
    write_file(runs_ / name, text);
    return "train.balance=\"" + (runs_ / name).string() + "\"";
  }
  std::vector<RecordedDeal> deals_of(const std::string& dir) const {
    return parse_deals(read_file(runs_ / dir / kDealsFile), dir);
  }
  TrainOptions options(const std::string& dir, const std::vector<Keys>& keys,
                       Architecture kind = Architecture::gpt2()) const {
    return {.recipe = runs_.recipe(kind, dir, together(keys)), .folders = runs_.folders()};
  }

  const TinyRuns runs_;
};

struct Arranged {
  std::string name;
  int ranks;
  int64_t micro_batches;
  std::vector<int64_t> first, then;  ///< rows in the first three steps, and in the others
  Keys keys{};
  Keys of_model{};  ///< for the one process too
  Architecture arch = Architecture::gpt2();
};

const Keys kExperts{"moe.experts=4", "moe.balance_loss=0.01", "moe.z_loss=0.001"};

std::vector<Arranged> arrangements() {
  const auto technique = [](const std::string& name) { return Keys{"data_parallel.technique=" + name}; };
  const Keys stages{"mesh.pp=2", "pipeline.micro_batches=3"};
  return {
      {"one", 1, 2, {36}, {36}},
      {"ddp2", 2, 1, {25, 11}, {1, 35}},
      {"ddp3", 3, 3, {20, 9, 7}, {3, 17, 16}},
      {"ddp4", 4, 3, {3, 14, 10, 9}, {15, 3, 3, 15}, {}, {}, Architecture::llama()},
      {"zero1", 2, 2, {25, 11}, {11, 25}, technique("zero1")},
      {"zero2", 3, 3, {20, 9, 7}, {3, 17, 16}, technique("zero2"), {}, Architecture::llama()},
      {"zero2full", 2, 3, {20, 16}, {7, 29}, together({technique("zero2"), {"data_parallel.accumulate=full"}})},
      {"zero3", 4, 3, {3, 14, 10, 9}, {15, 3, 3, 15}, technique("zero3")},
      {"hsdp", 4, 3, {3, 14, 10, 9}, {15, 3, 3, 15}, together({technique("hsdp"), {"data_parallel.shard=2"}})},
      {"servers", 3, 2, {20, 9, 7}, {3, 17, 16}, technique("param_server")},
      {"replicas", 3, 2, {20, 9, 7}, {3, 17, 16}, together({technique("replicas"), {"comm.backend=thread"}})},
      {"tp", 4, 2, {20, 16}, {5, 31}, {"mesh.tp=2"}},
      {"cp", 4, 3, {20, 16}, {5, 31}, {"mesh.cp=2"}, {"model.dropout=0"}},
      {"ep", 4, 3, {20, 16}, {6, 30}, {"mesh.ep=2"}, kExperts},
      {"counted", 2, 2, {25, 11}, {5, 31}, {}, together({kExperts, {"moe.balance=batch"}})},
      {"pp", 4, 3, {25, 11}, {4, 32}, stages},
      {"pp3", 4, 3, {25, 11}, {4, 32}, together({stages, technique("zero3"), {"memory.recompute=full"}})},
      {"zb", 4, 3, {25, 11}, {4, 32}, together({stages, {"pipeline.schedule=zb-h1"}})},
      {"packed", 2, 2, {25, 11}, {5, 31}, {}, {"data.pack=documents", "data.tokenizer={train = 270}"}},
      {"recompute", 2, 2, {25, 11}, {5, 31}, {"memory.recompute=selective"}},
      {"offload", 2, 2, {25, 11}, {5, 31}, together({technique("zero2"), {"offload.optimizer=host"}})},
  };
}

/// Losses, norms and weights of all steps, with dropout, through a change of the deal.
TEST_F(Balance, UnlikeRowsMatchOneProcess) {
  for (const Arranged& arranged : arrangements()) {
    SCOPED_TRACE(arranged.name);
    train_on(1, options(arranged.name + " alone", {kSgd, {"train.micro_batch=36"}, arranged.of_model}, arranged.arch));
    Keys keys{record(arranged.name + ".jsonl", arranged.micro_batches, {{0, arranged.first}, {3, arranged.then}})};
    const int64_t rows = 36 / static_cast<int64_t>(arranged.first.size());
    if (!arranged.name.starts_with("pp") && arranged.name != "zb") {
      keys.push_back("train.micro_batch=" + std::to_string(rows / arranged.micro_batches));
    }
    train_on(arranged.ranks, options(arranged.name, {kSgd, arranged.keys, arranged.of_model, keys}, arranged.arch));
    const std::vector<double> got = losses(runs_ / arranged.name), want = losses(runs_ / (arranged.name + " alone"));
    ASSERT_EQ(got.size(), 6U);
    for (size_t step = 0; step < want.size(); ++step) EXPECT_NEAR(got[step] / want[step], 1, 1e-5) << step;
    const auto [apart, worst] =
        distance(checkpoint_tensors(runs_ / arranged.name), checkpoint_tensors(runs_ / (arranged.name + " alone")));
    EXPECT_LE(apart, 2e-5) << worst;
    EXPECT_THAT(deals_of(arranged.name).back().rows, arranged.then);
  }
}

TEST_F(Balance, GradientsAndNormsMatchOneProcess) {
  const auto dump = [&](const std::string& dir, int ranks, const Keys& keys) {
    TrainOptions run = options(dir, {kSgd, keys});
    run.dump_dir = runs_ / (dir + " dump");
    run.dump_steps = {0, 4};
    train_on(ranks, run);
    return run.dump_dir;
  };
  const auto norm = [](const fs::path& folder) {
    return nlohmann::json::parse(read_file(folder / "metrics.json")).at("grad_norm").get<double>();
  };
  const fs::path want = dump("alone", 1, {"train.micro_batch=36"});
  const std::string deals = record("deals.jsonl", 2, {{0, {20, 9, 7}}, {2, {3, 16, 17}}});
  for (const char* technique : {"ddp", "zero3"}) {
    const fs::path got =
        dump(technique, 3, {std::string("data_parallel.technique=") + technique, "train.micro_batch=6", deals});
    for (const char* step : {"step_0", "step_4"}) {
      EXPECT_EQ(read_file(got / step / "batch.safetensors"), read_file(want / step / "batch.safetensors"));
      const auto [apart, worst] =
          distance(tensors_of(got / step / "gradients.safetensors"), tensors_of(want / step / "gradients.safetensors"));
      EXPECT_LE(apart, 1e-5) << worst;
      EXPECT_NEAR(norm(got / step) / norm(want / step), 1, 1e-5);
    }
  }
}

/// Makes one rank slower than the others for some steps.
std::function<bool()> slow(bool is_slow) {
  return [is_slow] {
    if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    return false;
  };
}

/// Trains with ranks of which the last is slow.
void train_slowed(int ranks, TrainOptions options) {
  run_thread_ranks(ranks,
                   [&](const std::shared_ptr<Communicator>& world) {
                     TrainOptions own = options;
                     own.stop_requested = slow(world->rank() == ranks - 1);
                     train(own, world);
                   },
                   {.timeout = std::chrono::seconds(20)});
}

/// The rank that is slower gets fewer rows; the deals are recorded, and a run that repeats them has the same bits.
TEST_F(Balance, AMeasuredRunIsRepeatedByItsRecord) {
  const Keys keys{"train.steps=16", "train.micro_batch=6", "data_parallel.technique=zero2"};
  train_slowed(3, options("measured", {keys, {"train.balance=measured"}}));
  const std::vector<RecordedDeal> deals = deals_of("measured");
  ASSERT_GE(deals.size(), 2U);
  EXPECT_THAT(deals.front().rows, ElementsAre(12, 12, 12));
  EXPECT_EQ(deals[1].step % 5, 1);
  EXPECT_LT(deals[1].rows[2], 12);
  EXPECT_GT(deals[1].busy_ms[2], deals[1].busy_ms[0]);
  const std::string same = "train.balance=\"" + (runs_ / "measured" / kDealsFile).string() + "\"";
  train_on(3, options("repeated", {keys, {same}}));
  EXPECT_EQ(number_lines(runs_ / "repeated"), number_lines(runs_ / "measured"));
  EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / "repeated"), checkpoint_tensors(runs_ / "measured")), "");
  EXPECT_EQ(deals_of("repeated").back().rows, deals.back().rows);
}

/// A resumed run continues with the last deal before its checkpoint; repeated deals continue where they were.
TEST_F(Balance, AResumedRunContinuesWithItsDeal) {
  const Keys keys{"train.steps=12", "train.micro_batch=6", "checkpoint.every=1", "checkpoint.keep=0"};
  TrainOptions measured = options("measured", {keys, {"train.balance=measured"}});
  measured.stop_after = 8;
  train_slowed(3, measured);
  const std::vector<RecordedDeal> before = deals_of("measured");
  ASSERT_GE(before.size(), 2U);
  ASSERT_EQ(before[1].step, 6);
  measured.resume = true;
  measured.stop_after = 11;  // before the next measurement
  train_on(3, measured);
  EXPECT_EQ(deals_of("measured"), before);

  const std::string same = record("same.jsonl", 2, {{0, before[0].rows}, {6, before[1].rows}});
  train_on(3, options("repeated", {keys, {same}}));
  const std::vector<std::string> whole = number_lines(runs_ / "repeated"), got = number_lines(runs_ / "measured");
  ASSERT_EQ(got.size(), 11U);
  EXPECT_EQ(got, std::vector<std::string>(whole.begin(), whole.begin() + 11));

  TrainOptions part = options("parts", {keys, {same}});
  part.stop_after = 7;
  train_on(3, part);
  part.resume = true;
  part.stop_after.reset();
  train_on(3, part);
  EXPECT_EQ(number_lines(runs_ / "parts"), whole);
  EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / "parts"), checkpoint_tensors(runs_ / "repeated")), "");
}

/// After an earlier checkpoint, later deals are forgotten; an even run after a measured one says so in the record.
TEST_F(Balance, TheRecordFollowsTheRun) {
  const Keys keys{"train.steps=12", "train.micro_batch=6", "checkpoint.every=1", "checkpoint.keep=0"};
  const std::string deals = record("deals.jsonl", 2, {{0, {20, 9, 7}}, {4, {7, 9, 20}}, {8, {9, 20, 7}}});
  train_on(3, options("run", {keys, {deals}}));
  TrainOptions again = options("run", {keys, {"train.balance=measured"}});
  again.resume_from = "step_000006";
  again.stop_after = 7;
  train_on(3, again);
  std::vector<RecordedDeal> got = deals_of("run");
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got.back().step, 4);
  again.recipe = options("run", {keys}).recipe;
  again.stop_after = 8;
  again.resume_from.clear();
  again.resume = true;
  train_on(3, again);
  got = deals_of("run");
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got.back().step, 7);
  EXPECT_THAT(got.back().rows, ElementsAre(12, 12, 12));
}

/// What a run says before its first step.
class Announced final : public TrainObserver {
 public:
  MemoryPlan memory;
  std::vector<std::string> notes;
  void planned(const TrainPlan& plan) override { memory = plan.memory; }
  void started(const TrainStart& start) override { notes = start.notes; }
};

/// Micro-batches grow as far as the budget of the device allows, and the predicted peak is that of the largest.
TEST_F(Balance, MicroBatchesGrowWithinTheMemory) {
  int num_runs = 0;
  const auto announced = [&](const Keys& keys) {
    TrainOptions run = options("run" + std::to_string(num_runs++), {{"train.steps=7", "offload.optimizer=host"}, keys});
    Announced all;
    run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
      TrainOptions own = run;
      if (world->rank() == 0) own.observer = &all;
      if (world->rank() == 1) own.stop_requested = slow(true);
      train(own, world);
    });
    return all;
  };
  const auto peak_of = [&](int64_t micro_batch) {
    return announced({"train.micro_batch=" + std::to_string(micro_batch),
                      "train.global_batch=" + std::to_string(4 * micro_batch)})
        .memory.own.peak.total();
  };
  const auto measured = [&](int64_t budget) {
    return announced({"train.balance=measured", "train.micro_batch=9", "train.global_batch=36",
                      "offload.device_budget=" + std::to_string(budget)});
  };
  const int64_t even = peak_of(9), larger = peak_of(13), largest = peak_of(18);
  ASSERT_LT(even, larger);
  ASSERT_LT(larger, largest);
  EXPECT_EQ(measured(largest).memory.own.peak.total(), largest);
  EXPECT_EQ(measured(largest - 1).memory.own.peak.total(), peak_of(17));
  const Announced some = measured(larger);
  EXPECT_EQ(some.memory.own.peak.total(), larger);
  EXPECT_THAT(some.notes, Contains(HasSubstr("up to 13 sequences at a time (9 on even ranks)")));
  EXPECT_THAT(deals_of("run" + std::to_string(num_runs - 1)).back().rows, ElementsAre(26, 10));
  const Announced none = measured(even);
  EXPECT_EQ(none.memory.own.peak.total(), even);
  EXPECT_THAT(none.notes, Contains(HasSubstr("has no effect")));
  EXPECT_EQ(deals_of("run" + std::to_string(num_runs - 1)).size(), 1U);
}

TEST_F(Balance, AnEvenRunHasNoRecord) {
  train_on(2, options("run", {{"train.steps=2"}}));
  EXPECT_FALSE(fs::exists(runs_ / "run" / kDealsFile));
}

TEST_F(Balance, WhatCannotBeDealtIsRefused) {
  const auto refusal = [&](int ranks, const Keys& keys) {
    return message_of<UsageError>([&] { train_on(ranks, options("run", {keys})); });
  };
  const Keys measured{"train.balance=measured"};
  EXPECT_THAT(message_of<UsageError>([&] { options("run", {{"train.balance=mesured"}}); }),
              AllOf(HasSubstr("train.balance"), HasSubstr("measured")));
  EXPECT_THAT(refusal(2, together({measured, {"data_parallel.technique=param_server", "data_parallel.mode=async"}})),
              AllOf(HasSubstr("train.balance"), HasSubstr("use train.balance = \"even\"")));
  EXPECT_THAT(refusal(2, together({measured, {"data_parallel.technique=diloco"}})), HasSubstr("train.balance"));
  EXPECT_THAT(refusal(2, together({measured,
                                   {"mesh.pp=2", "pipeline.schedule=pipedream", "optimizer.clip_norm=0",
                                    "model.tie_embeddings=false"}})),
              HasSubstr("train.balance"));
  const std::string deals = record("deals.jsonl", 2, {{0, {20, 9, 7}}});
  EXPECT_THAT(refusal(2, {deals, "train.micro_batch=9"}), HasSubstr("rows of 3 data-parallel ranks, but there are 2"));
  EXPECT_THAT(refusal(3, {deals, "train.micro_batch=4"}),
              AllOf(HasSubstr("2 micro-batches, but this run has 3"), HasSubstr("use train.micro_batch = 6")));
  EXPECT_THAT(refusal(3, {deals, "train.micro_batch=8", "train.global_batch=48"}),
              HasSubstr("36 rows in a step, but there are 48"));
  EXPECT_FALSE(fs::exists(runs_ / "run"));
  EXPECT_THAT(message_of<DataError>([&] { train_on(2, options("run", {{"train.balance=./none.jsonl"}})); }),
              HasSubstr("none.jsonl"));
}

}  // namespace
}  // namespace caravan::testing::balance_test
