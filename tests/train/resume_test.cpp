#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/formats/huggingface/load_model.h"
#include "caravan/train/folder/run_state.h"
#include "caravan/train/model/import.h"
#include "tests/needs.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::resume_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::string> kTwenty{"train.steps=20", "train.eval_every=7", "checkpoint.every=5"};

class Resume : public ::testing::TestWithParam<Architecture> {
 protected:
  TrainOptions options(const std::string& dir, const std::vector<std::string>& set = kTwenty) const {
    return {.recipe = runs_.recipe(GetParam(), dir, set), .folders = runs_.folders()};
  }
  /// Runs ten steps on `ranks` ranks, then resumes on `later` ranks.
  void run_twice(const std::string& dir, int ranks, int later, const std::vector<std::string>& set = kTwenty) const {
    TrainOptions first = options(dir, set);
    first.stop_after = 10;
    train_on(ranks, first);
    EXPECT_EQ(losses(runs_ / dir).size(), 10U);
    TrainOptions second = options(dir, set);
    second.resume = true;
    train_on(later, second);
  }

  const TinyRuns runs_;
};

INSTANTIATE_TEST_SUITE_P(Models, Resume, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Resume, IsBitwiseEqualToAnUninterruptedRun) {
  for (const int ranks : {1, 2, 3}) {
    const std::string n = std::to_string(ranks);
    train_on(ranks, options("whole" + n));
    run_twice("parts" + n, ranks, ranks);
    EXPECT_EQ(log_lines(runs_ / ("parts" + n)), log_lines(runs_ / ("whole" + n)));
    const auto whole = checkpoint_tensors(runs_ / ("whole" + n));
    EXPECT_TRUE(whole.contains("optimizer.exp_avg_sq.head.norm.weight"));
    EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / ("parts" + n)), whole), "");
    const CheckpointInfo a = CheckpointReader(find_checkpoint(runs_ / ("parts" + n))).info();
    const CheckpointInfo b = CheckpointReader(find_checkpoint(runs_ / ("whole" + n))).info();
    EXPECT_EQ(a.step, 20);
    EXPECT_EQ(a.optimizer_steps, 20);
    EXPECT_EQ(a.position, 20 * 36 * 8);
    EXPECT_EQ(a.position, b.position);
    EXPECT_EQ(list_checkpoints(runs_ / ("parts" + n)),
              (std::vector<fs::path>{runs_ / ("parts" + n) / "step_000015", runs_ / ("parts" + n) / "step_000020"}));
  }
}

TEST(ResumeExperts, ARunOfAModelThatTransformersLacksContinues) {
  const TinyRuns runs;
  TrainOptions options{.recipe = runs.recipe(Architecture::gpt2(), "run", {"train.steps=3"}),
                       .folders = runs.folders()};
  options.recipe.model.moe = {.experts = 4, .gates = Gates::sigmoid, .capacity = 1.5};
  options.stop_after = 1;
  train_on(1, options);
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  EXPECT_EQ(load_model(runs / "run", mesh).model->config().moe, options.recipe.model.moe);
  options.stop_after.reset();
  options.resume = true;
  train_on(1, options);
  EXPECT_EQ(losses(runs / "run").size(), 3U);
}

/// A run killed between two checkpoints repeats the steps since the last one, with the same log and weights.
TEST_P(Resume, LinesAfterTheLastCheckpointAreRewritten) {
  train_on(2, options("whole"));
  TrainOptions first = options("killed");
  first.stop_after = 13;
  train_on(2, first);
  fs::remove_all(runs_ / "killed/step_000013");
  write_file(runs_ / "killed/train.log", read_file(runs_ / "killed/train.log") + "{\"step\": 14, \"lo");
  TrainOptions second = options("killed");
  second.resume = true;
  train_on(2, second);
  EXPECT_EQ(log_lines(runs_ / "killed"), log_lines(runs_ / "whole"));
  EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / "killed"), checkpoint_tensors(runs_ / "whole")), "");
}

/// Another number of ranks changes the order of sums: within 1e-5 with SGD, which does not amplify a gradient of pure
/// rounding error.
TEST_P(Resume, OnOtherRanksIsTheSameRunWithinRounding) {
  std::vector<std::string> set = kTwenty;
  set.insert(set.end(), {"optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.1"});
  train_on(2, options("whole", set));
  const auto want = checkpoint_tensors(runs_ / "whole");
  const std::vector<double> want_losses = losses(runs_ / "whole");
  for (const auto& [ranks, later] : std::vector<std::pair<int, int>>{{2, 3}, {2, 1}, {1, 4}, {4, 2}}) {
    const std::string dir = std::to_string(ranks) + "to" + std::to_string(later);
    run_twice(dir, ranks, later, set);
    const auto [apart, worst] = distance(checkpoint_tensors(runs_ / dir), want);
    EXPECT_LE(apart, 1e-5) << worst << " of " << dir;
    const std::vector<double> got = losses(runs_ / dir);
    ASSERT_EQ(got.size(), want_losses.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i] / want_losses[i], 1, 1e-5) << dir << ", step " << i;
  }
}

/// Residuals, factors and the loss scale continue where they were.
TEST(Resuming, KeepsTheStateOfHooksAndOfTheLossScale) {
  const TinyRuns runs;
  const std::vector<std::vector<std::string>> choices{
      {"data_parallel.hook=topk", "data_parallel.hook_fraction=0.05"},
      {"data_parallel.hook=powersgd", "data_parallel.hook_rank=1"},
      {"data_parallel.hook=powersgd", "data_parallel.hook_rank=2", "data_parallel.technique=hsdp",
       "data_parallel.shard=2", "data_parallel.accumulate=full"},
      {"precision.compute=fp16", "data_parallel.technique=zero2"}};
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto options = [&](const std::string& dir, bool resume, std::optional<int64_t> stop_after) {
      return TrainOptions{.recipe = runs.recipe(Architecture::gpt2(), dir + std::to_string(i), choices[i]),
                          .folders = runs.folders(),
                          .resume = resume,
                          .stop_after = stop_after};
    };
    train_on(4, options("whole", false, std::nullopt));
    train_on(4, options("parts", false, 3));
    train_on(4, options("parts", true, std::nullopt));
    const auto want = checkpoint_tensors(runs / ("whole" + std::to_string(i)));
    EXPECT_EQ(first_difference(checkpoint_tensors(runs / ("parts" + std::to_string(i))), want), "") << choices[i][0];
    EXPECT_TRUE(std::ranges::any_of(want, [](const auto& tensor) {
      return tensor.first.starts_with("hook.residual.") || tensor.first == "loss_scale";
    }));
    run_thread_ranks(1, [&](const auto& world) {  // to generate from it, or to export it
      EXPECT_NO_THROW(load_model(runs / ("whole" + std::to_string(i)), Mesh::create(world, {{"dp", 1}})));
    });
  }
}

TEST(Resuming, WithAnotherHookStartsItAnew) {
  const TinyRuns runs;
  const auto train_until = [&](int64_t stop_after, bool resume, const std::string& hook) {
    train_on(2, {.recipe = runs.recipe(Architecture::gpt2(), "run", {"data_parallel.hook=" + hook}),
                 .folders = runs.folders(),
                 .resume = resume,
                 .stop_after = stop_after});
  };
  train_until(2, false, "topk");
  train_until(3, true, "none");
  for (const auto& [name, tensor] : checkpoint_tensors(runs / "run")) EXPECT_FALSE(name.starts_with("hook.")) << name;
  train_until(4, true, "powersgd");
  EXPECT_TRUE(checkpoint_tensors(runs / "run").contains("hook.residual.embedding.token.weight"));
}

class StepCounter final : public TrainObserver {
 public:
  int steps = 0;
  void stepped(const StepMetrics&, bool) override { ++steps; }
};

TEST(Stop, RequestedOnOneRankStopsAllAfterTheSameStep) {
  const TinyRuns runs;
  for (const int asking : {0, 2}) {
    const std::string dir = "run" + std::to_string(asking);
    std::vector<std::string> messages(3);
    run_thread_ranks(3,
                     [&](const std::shared_ptr<Communicator>& world) {
                       TrainOptions options{.recipe = runs.recipe(Architecture::gpt2(), dir),
                                            .folders = runs.folders()};
                       StepCounter counter;
                       options.observer = &counter;
                       options.stop_requested = [&] { return counter.steps == 3 && world->rank() == asking; };
                       messages[world->rank()] = message_of<Interrupted>([&] { train(options, world); });
                     },
                     {.timeout = std::chrono::seconds(20)});
    for (const std::string& message : messages) {
      EXPECT_THAT(message, AllOf(HasSubstr("stopped on request after step 4"), HasSubstr("--resume")));
    }
    EXPECT_EQ(find_checkpoint(runs / dir), runs / dir / "step_000004");
    EXPECT_EQ(losses(runs / dir).size(), 4U);
  }
}

TEST(Resuming, AnotherRunIsRefused) {
  needs({"adamw", "sgd"});
  const TinyRuns runs;
  const auto options = [&](std::vector<std::string> set) {
    set.push_back("model.vocabulary=300");  // room for another tokenizer
    return TrainOptions{.recipe = runs.recipe(Architecture::gpt2(), "run", set), .folders = runs.folders()};
  };
  TrainOptions first = options({});
  first.stop_after = 2;
  train_on(2, first);

  EXPECT_THAT(message_of<UsageError>([&] { train_on(2, options({})); }), HasSubstr("--resume"));
  const auto resume = [&](const std::vector<std::string>& set, std::optional<int64_t> stop_after = std::nullopt) {
    TrainOptions again = options(set);
    again.resume = true;
    again.stop_after = stop_after;
    train_on(2, again);
  };
  EXPECT_THAT(message_of<DataError>([&] { resume({"model.width=24"}); }),
              AllOf(HasSubstr("of another model"), HasSubstr("model.width is 16 there, 24 in this run")));
  EXPECT_THAT(message_of<DataError>([&] { resume({"model.kind=llama"}); }), HasSubstr("of another model"));
  EXPECT_THAT(message_of<UsageError>([&] { resume({"train.seed=4"}); }),
              AllOf(HasSubstr("train.seed"), HasSubstr("--set train.seed=4")));
  EXPECT_THAT(message_of<UsageError>([&] { resume({"train.global_batch=18"}); }), HasSubstr("train.global_batch"));
  EXPECT_THAT(message_of<UsageError>([&] { resume({"optimizer.kind=sgd"}); }), HasSubstr("optimizer.kind"));
  EXPECT_THAT(message_of<UsageError>([&] { resume({}, 2); }),
              AllOf(HasSubstr("--stop-after"), HasSubstr("use 3 or more")));
  EXPECT_THAT(message_of<UsageError>([&] { resume({"data.tokenizer={train = 270}"}); }), HasSubstr("data.tokenizer"));
  EXPECT_NO_THROW(resume({}, 3));
}

TEST(Resuming, WithOtherDataOrAnotherFunctionIsRefusedAndOtherRatesAreListed) {
  const TinyRuns runs;
  const auto options = [&](const std::vector<std::string>& set, bool resume, int64_t stop_after) {
    return TrainOptions{.recipe = runs.recipe(Architecture::llama(), "run", set),
                        .folders = runs.folders(),
                        .resume = resume,
                        .stop_after = stop_after};
  };
  train_on(2, options({}, false, 2));
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"model.rope_theta", "500.0"},
                                                                                   {"model.norm_epsilon", "0.001"},
                                                                                   {"model.dropout", "0.0"},
                                                                                   {"precision.compute", "\"bf16\""}}) {
    EXPECT_THAT(message_of<UsageError>([&] { train_on(2, options({key + "=" + value}, true, 3)); }),
                HasSubstr(key + ": is " + value + ", but the run was trained with"));
  }
  write_file(runs / "other.txt", read_file(runs / "text.txt") + "one more line\n");
  EXPECT_THAT(message_of<UsageError>([&] { train_on(2, options({"data.text=other.txt"}, true, 3)); }),
              AllOf(HasSubstr("data.text: is another text"), HasSubstr("other.txt"), HasSubstr("text.txt")));
  EXPECT_EQ(losses(runs / "run").size(), 2U);

  train_on(2, options({"optimizer.lr=0.02"}, true, 3));
  const std::vector<std::string> lines = log_lines(runs / "run");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[2], R"({"step":2,"resumed":true,"changed":{"optimizer.lr":{"before":"0.01","now":"0.02"}}})");
}

TEST(Resuming, ARunOfNoStepsContinuesLikeAnUninterruptedRun) {
  const TinyRuns runs;
  const auto options = [&](const std::string& dir, const std::string& steps, bool resume) {
    return TrainOptions{.recipe = runs.recipe(Architecture::gpt2(), dir, {"train.steps=" + steps}),
                        .folders = runs.folders(),
                        .resume = resume};
  };
  train_on(2, options("whole", "3", false));
  train_on(2, options("parts", "0", false));
  train_on(2, options("parts", "3", true));
  EXPECT_EQ(first_difference(checkpoint_tensors(runs / "parts"), checkpoint_tensors(runs / "whole")), "");
}

TEST(Resuming, FromAnEarlierCheckpointWhereTheNewestIsDamaged) {
  const TinyRuns runs;
  const auto options = [&](const std::string& dir) {
    return TrainOptions{
        .recipe = runs.recipe(Architecture::gpt2(), dir, {"train.steps=6", "checkpoint.every=2", "checkpoint.keep=0"}),
        .folders = runs.folders()};
  };
  train_on(2, options("whole"));
  train_on(2, options("run"));
  write_file(runs / "run/step_000006/rank_00001.safetensors", "damaged");
  TrainOptions again = options("run");
  again.resume = true;
  EXPECT_THAT(message_of<DataError>([&] { train_on(2, again); }),
              AllOf(HasSubstr("step_000006"), HasSubstr("is damaged"), HasSubstr("--resume-from step_000004")));
  again.resume = false;
  again.resume_from = "step_000003";
  EXPECT_THAT(message_of<UsageError>([&] { train_on(2, again); }),
              AllOf(HasSubstr("step_000003 is not a checkpoint of this run"), HasSubstr("step_000002, step_000004")));
  again.resume_from = (runs / "whole/step_000002").string();
  EXPECT_THAT(message_of<UsageError>([&] { train_on(2, again); }), HasSubstr("is not a checkpoint of this run"));
  again.resume_from = (runs / "run/step_000002/").string();
  train_on(2, again);
  EXPECT_EQ(first_difference(checkpoint_tensors(runs / "run"), checkpoint_tensors(runs / "whole")), "");
  EXPECT_EQ(log_lines(runs / "run"), log_lines(runs / "whole"));
  EXPECT_TRUE(fs::exists(runs / "run/step_000004.abandoned/manifest.json"));
  EXPECT_EQ(read_file(runs / "run/step_000006.abandoned/rank_00001.safetensors"), "damaged");
}

TEST(Resuming, KeepsTheNumberOfThreadsWhereItIsLeftOpen) {
  const TinyRuns runs;
  const auto run = [&](bool resume, const std::string& threads, int64_t stop_after) {
    train_on(1, {.recipe = runs.recipe(Architecture::gpt2(), "run", {"comm.threads_per_rank=" + threads}),
                 .folders = runs.folders(),
                 .resume = resume,
                 .stop_after = stop_after});
    return CheckpointReader(find_checkpoint(runs / "run")).info().numerics.threads_per_rank;
  };
  struct Threads {
    explicit Threads(int count) { at::set_num_threads(count); }
    ~Threads() { at::set_num_threads(1); }
  } const restored(2);
  EXPECT_EQ(run(false, "0", 1), 2);
  at::set_num_threads(1);
  EXPECT_EQ(run(true, "0", 2), 2) << "kept";
  at::set_num_threads(1);
  EXPECT_EQ(run(true, "1", 3), 1) << "the user's choice";
}

/// Another micro-batch sums in another order.
TEST(Resuming, KeepsAnAutomaticMicroBatchAndListsAnotherOne) {
  const TinyRuns runs;
  const auto options = [&](const std::string& dir, const std::string& micro_batch, bool resume, int64_t stop_after) {
    return TrainOptions{.recipe = runs.recipe(Architecture::gpt2(), dir, {"train.micro_batch=" + micro_batch}),
                        .folders = runs.folders(),
                        .resume = resume,
                        .stop_after = stop_after};
  };
  // With "auto" all 18 sequences of a rank fit.
  train_on(2, options("whole", "6", false, 4));
  train_on(2, options("run", "6", false, 2));
  train_on(2, options("run", "auto", true, 4));
  EXPECT_EQ(log_lines(runs / "run"), log_lines(runs / "whole"));
  EXPECT_EQ(first_difference(checkpoint_tensors(runs / "run"), checkpoint_tensors(runs / "whole")), "");

  const auto change = [&] { return log_lines(runs / "run").end()[-2]; };
  train_on(2, options("run", "9", true, 5));
  EXPECT_EQ(change(), R"({"step":4,"resumed":true,"changed":{"train.micro_batch":{"before":"6","now":"9"}}})");
  train_on(3, options("run", "auto", true, 6));
  EXPECT_EQ(change(), R"({"step":5,"resumed":true,"changed":{"train.micro_batch":{"before":"9","now":"12"}}})");
}

TEST(RunFiles, NameEverythingByAbsolutePaths) {
  const TinyRuns runs;
  const fs::path before = fs::current_path();
  fs::current_path(runs / ".");
  TrainOptions options{.recipe = runs.recipe(Architecture::gpt2(), "run", {"train.steps=1"}),
                       .folders = runs.folders()};
  options.recipe.checkpoint.dir = "here";
  train_on(1, options);
  fs::current_path(before);
  const Recipe kept = load_recipe(runs / "here/recipe.toml", {});
  EXPECT_EQ(kept.data.text, std::vector<std::string>{(runs / "text.txt").string()});
  EXPECT_EQ(kept.checkpoint.dir, (runs / "here").string());
  EXPECT_EQ(parse_recipe(CheckpointReader(find_checkpoint(runs / "here")).info().recipe, "").checkpoint.dir,
            (runs / "here").string());
}

TEST(RunFiles, LeadBackToTheRun) {
  const TinyRuns runs;
  TrainOptions options{.recipe = runs.recipe(Architecture::gpt2(), "run", {"train.steps=4"}),
                       .folders = runs.folders()};
  options.stop_after = 2;
  train_on(2, options);
  // The recipe in the run folder resumes the run.
  TrainOptions again{.recipe = load_recipe(runs / "run/recipe.toml", {}), .folders = runs.folders(), .resume = true};
  train_on(1, again);
  EXPECT_EQ(losses(runs / "run").size(), 4U);

  const Mesh mesh = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  const LoadedModel loaded = load_model(runs / "run", mesh);
  const auto saved = checkpoint_tensors(runs / "run");
  for (const Parameter* parameter : loaded.model->parameters()) {
    EXPECT_TRUE(at::equal(parameter->sharded(), saved.at(parameter->name()))) << parameter->name();
  }
}

TEST(Import, IsARunThatContinues) {
  const TinyRuns runs;
  train_on(1, {.recipe = runs.recipe(Architecture::llama(), "run", {"train.steps=2"}), .folders = runs.folders()});
  const Mesh alone = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  const LoadedModel loaded = load_model(runs / "run", alone);
  NamedTensors weights;
  for (const Parameter* parameter : loaded.model->parameters()) {
    weights.emplace_back(parameter->name(), parameter->sharded().detach());
  }
  write_huggingface(runs / "theirs", loaded.model->config(), weights, loaded.tokenizer, loaded.text);

  run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    import_run(read_huggingface(runs / "theirs"), runs / "imported", Mesh::create(world, {{"dp", 2}}));
  });
  TrainOptions options{.recipe = load_recipe(runs / "imported/recipe.toml",
                                             {"data.text=text.txt", "train.steps=1", "train.global_batch=4",
                                              "optimizer.lr=0", "sample.tokens=0"}),
                       .folders = runs.folders(),
                       .resume = true};
  train_on(2, options);
  EXPECT_EQ(losses(runs / "imported").size(), 1U);
  const auto trained = checkpoint_tensors(runs / "imported");
  EXPECT_TRUE(trained.contains("optimizer.exp_avg.embedding.token.weight"));
  for (const auto& [name, tensor] : weights) EXPECT_TRUE(at::equal(trained.at(name), tensor)) << name;
}

class Watcher final : public TrainObserver {
 public:
  std::vector<std::string> seen;
  std::string sample;
  void planned(const TrainPlan& plan) override {
    seen.push_back("planned " + plan.batch.to_string() + ", " + std::to_string(plan.num_parameters));
  }
  void started(const TrainStart& start) override {
    seen.push_back("started " + std::to_string(start.first_step) + "-" + std::to_string(start.last_step));
  }
  void stepped(const StepMetrics& metrics, bool is_logged) override {
    seen.push_back((is_logged ? "logged " : "step ") + std::to_string(metrics.step));
  }
  void evaluating(int64_t step) override { seen.push_back("evaluating " + std::to_string(step)); }
  void saved(const fs::path& path) override { seen.push_back("saved " + path.filename().string()); }
  void sampled(std::string_view text) override { sample += text; }
};

TEST(Observer, SeesTheRunInOrder) {
  const TinyRuns runs;
  Watcher watcher;
  const Recipe recipe = runs.recipe(Architecture::gpt2(), "run",
                                    {"train.steps=5", "train.log_every=2", "train.eval_every=3", "checkpoint.every=4",
                                     "sample.tokens=7", "sample.prompt=call"});
  run_thread_ranks(
      2,
      [&](const std::shared_ptr<Communicator>& world) {
        train({.recipe = recipe, .folders = runs.folders(), .observer = world->rank() == 0 ? &watcher : nullptr},
              world);
      },
      {.timeout = std::chrono::seconds(20)});
  EXPECT_EQ(watcher.seen,
            (std::vector<std::string>{"planned global_batch 36 = dp 2 x micro_batch 18 x accumulation 1, " +
                                          std::to_string(model_config(recipe, Tokenizer::bytes()).num_parameters()),
                                      "started 0-5", "step 1", "logged 2", "evaluating 3", "logged 3", "logged 4",
                                      "saved step_000004", "evaluating 5", "logged 5", "saved step_000005"}));
  EXPECT_THAT(watcher.sample, ::testing::StartsWith("call"));
  EXPECT_GE(watcher.sample.size(), 4U + 7U);
  EXPECT_THAT(log_lines(runs / "run").back(), AllOf(HasSubstr("val_loss"), HasSubstr("val_bits_per_byte")));
}

}  // namespace
}  // namespace caravan::testing::resume_test
