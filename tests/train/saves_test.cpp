// Which states a run saves, and what a resumed run repeats.
#include <atomic>
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/formats/checkpoint/publish.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::saves_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> checkpoints(const fs::path& run) {
  std::vector<std::string> names;
  for (const fs::path& checkpoint : list_checkpoints(run)) names.push_back(checkpoint.filename().string());
  return names;
}

class Saves : public ::testing::Test {
 protected:
  TrainOptions options(const std::string& dir, std::vector<std::string> set, bool resume = false,
                       std::optional<int64_t> stop_after = std::nullopt) const {
    return {.recipe = runs_.recipe(Architecture::gpt2(), dir, set),
            .folders = runs_.folders(),
            .resume = resume,
            .stop_after = stop_after};
  }

  const TinyRuns runs_;
};

/// The loss of a step is that before its update, so the last update may leave a state that is not finite without
/// notice. With a rate of 1e30 the validation loss tells; with one of 1e300 the weights themselves are infinite.
TEST_F(Saves, AStateThatIsNotFiniteIsNeitherSavedNorReplacesAnother) {
  struct Case {
    std::string rate;
    int64_t last_good;
    std::optional<int64_t> stop_after;
    std::string subject;
  };
  const std::vector<Case> cases{{"1e30", 5, std::nullopt, "validation loss: is not finite after step 6 (nan)"},
                                {"1e300", 4, 5, ".weight: is not finite after step 5"}};
  for (const int ranks : {1, 2, 3}) {
    for (const char* async : {"false", "true"}) {
      for (const Case& one : cases) {
        const std::string dir = std::to_string(ranks) + async + one.rate;
        std::vector<std::string> set{"train.steps=6",
                                     "checkpoint.every=2",
                                     "checkpoint.keep=1",
                                     "checkpoint.async=" + std::string(async),
                                     "checkpoint.keep_best=true",
                                     "optimizer.schedule=constant",
                                     "data_parallel.technique=" + std::string(ranks == 3 ? "zero3" : "ddp")};
        const std::string newest = "step_00000" + std::to_string(one.last_good);
        train_on(ranks, options(dir, set, false, one.last_good));
        const auto before = checkpoint_tensors(runs_ / dir);
        set.push_back("optimizer.lr=" + one.rate);
        std::atomic<int> num_refused{0};
        run_thread_ranks(
            ranks,
            [&](const auto& world) {
              const std::string message =
                  message_of<NumericsError>([&] { train(options(dir, set, true, one.stop_after), world); });
              EXPECT_THAT(message, AllOf(HasSubstr(one.subject), HasSubstr("the newest checkpoint is " + newest)));
              ++num_refused;
            },
            {.timeout = std::chrono::seconds(20)});
        EXPECT_EQ(num_refused, ranks);
        EXPECT_EQ(checkpoints(runs_ / dir), std::vector<std::string>{newest}) << dir;
        EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / dir), before), "");
        EXPECT_FALSE(fs::exists(fs::symlink_status(runs_ / dir / "best")));
      }
    }
  }
}

TEST_F(Saves, WithoutACheckpointTheMessageSaysSo) {
  const auto diverging = options("run", {"train.steps=1", "optimizer.lr=1e300", "optimizer.warmup_steps=0"});
  EXPECT_THAT(message_of<NumericsError>([&] { train_on(2, diverging); }), HasSubstr("there is no checkpoint"));
  EXPECT_TRUE(checkpoints(runs_ / "run").empty());
}

/// Asks for a stop, as a signal does, once `when` has been seen.
class Stopper final : public TrainObserver {
 public:
  explicit Stopper(std::string when) : when_(std::move(when)) {}
  bool is_asked = false;
  void evaluating(int64_t step) override { see("evaluating " + std::to_string(step)); }
  void sampled(std::string_view) override {
    if (++num_pieces_ > 3) see("sampling");
  }
  void stepped(const StepMetrics& metrics, bool) override {
    num_pieces_ = 0;
    see("step " + std::to_string(metrics.step));
  }

 private:
  void see(const std::string& what) { is_asked |= what == when_; }
  std::string when_;
  int num_pieces_ = 0;
};

void train_until(int ranks, TrainOptions options, const std::string& when) {
  std::atomic<int> num_stopped{0};
  run_thread_ranks(ranks,
                   [&](const auto& world) {
                     TrainOptions own = options;
                     Stopper stopper(when);
                     own.observer = &stopper;
                     // Only rank 0 sees a sample.
                     const bool asks = world->rank() == ranks - 1 || when == "sampling";
                     own.stop_requested = [&] { return stopper.is_asked && asks; };
                     EXPECT_THROW(train(own, world), Interrupted);
                     ++num_stopped;
                   },
                   {.timeout = std::chrono::seconds(20)});
  EXPECT_EQ(num_stopped, ranks);
}

std::vector<double> validations(const fs::path& run) {
  std::vector<double> all;
  for (const std::string& line : log_lines(run)) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("val_loss")) all.push_back(json["val_loss"].get<double>());
  }
  return all;
}

const std::vector<std::string> kEvaluated{"train.steps=10",     "train.eval_every=4",
                                          "checkpoint.every=4", "checkpoint.keep_best=true",
                                          "checkpoint.keep=0",  "log.csv=true"};

TEST_F(Saves, AnInterruptedEvaluationIsRepeatedOnResume) {
  for (const int ranks : {1, 2, 3}) {
    const std::string n = std::to_string(ranks);
    train_on(ranks, options("whole" + n, kEvaluated));
    const std::vector<double> want = validations(runs_ / ("whole" + n));
    ASSERT_EQ(want.size(), 3U);
    for (const std::string step : {"4", "8", "10"}) {
      const std::string dir = "stopped" + n + "at" + step;
      train_until(ranks, options(dir, kEvaluated), "evaluating " + step);
      EXPECT_LT(validations(runs_ / dir).size(), 3U);
      // A stop during the evaluation that is made up for leaves it due.
      train_until(ranks, options(dir, kEvaluated, true), "evaluating " + step);
      train_on(ranks, options(dir, kEvaluated, true));
      EXPECT_EQ(log_lines(runs_ / dir), log_lines(runs_ / ("whole" + n)));
      EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / dir), checkpoint_tensors(runs_ / ("whole" + n))), "");
      EXPECT_EQ(best_checkpoint_step(runs_ / dir), best_checkpoint_step(runs_ / ("whole" + n))) << dir;
      const std::string csv = read_file(runs_ / dir / "metrics.csv");
      for (const double loss : want) EXPECT_THAT(csv, HasSubstr(nlohmann::json(loss).dump())) << dir;
    }
    EXPECT_EQ(best_checkpoint_step(runs_ / ("stopped" + n + "at10")), 10) << "the made-up evaluation is the best";
  }
}

TEST_F(Saves, AnInterruptedEvaluationIsRepeatedOnOtherRanks) {
  train_on(2, options("whole", kEvaluated));
  const std::vector<double> want = validations(runs_ / "whole");
  for (const auto& [ranks, later] : std::vector<std::pair<int, int>>{{2, 1}, {2, 3}, {1, 2}}) {
    const std::string dir = std::to_string(ranks) + "to" + std::to_string(later);
    train_until(ranks, options(dir, kEvaluated), "evaluating 10");
    train_on(later, options(dir, kEvaluated, true));
    const std::vector<double> got = validations(runs_ / dir);
    ASSERT_EQ(got.size(), want.size()) << dir;
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4) << dir;  // sums of other order
  }
}

/// For every way to step: what an evaluation reads must exist before the first step.
TEST_F(Saves, AnInterruptedEvaluationIsRepeatedUnderEveryTechnique) {
  const std::vector<std::vector<std::string>> techniques{
      {"data_parallel.technique=zero3"},
      {"mesh.tp=2"},
      {"mesh.pp=2"},
      {"mesh.pp=2", "pipeline.schedule=pipedream-2bw", "pipeline.drain=4", "optimizer.clip_norm=0",
       "model.tie_embeddings=false"},
      {"data_parallel.technique=param_server", "data_parallel.mode=async", "optimizer.kind=sgd"},
      {"precision.compute=bf16"},
      {"moe.experts=2", "moe.balance=batch"}};
  for (size_t i = 0; i < techniques.size(); ++i) {
    std::vector<std::string> set = kEvaluated;
    set.insert(set.end(), techniques[i].begin(), techniques[i].end());
    const std::string n = std::to_string(i);
    const bool is_exact = techniques[i].front() != "data_parallel.technique=param_server";
    train_until(2, options("stopped" + n, set), "evaluating 4");
    const size_t before = validations(runs_ / ("stopped" + n)).size();
    train_on(2, options("stopped" + n, set, true));
    EXPECT_EQ(before, 0U) << techniques[i].front();
    EXPECT_EQ(validations(runs_ / ("stopped" + n)).size(), 3U) << techniques[i].front();
    if (!is_exact) continue;
    train_on(2, options("whole" + n, set));
    EXPECT_EQ(validations(runs_ / ("stopped" + n)), validations(runs_ / ("whole" + n))) << techniques[i].front();
  }
}

TEST_F(Saves, AnInterruptedSampleIsRepeatedOnResume) {
  const std::vector<std::string> set{"train.steps=6", "train.log_every=1", "sample.every=4", "sample.tokens=40",
                                     "sample.prompt=call"};
  train_on(2, options("whole", set));
  const std::string want = read_file(runs_ / "whole/samples.jsonl");
  EXPECT_EQ(std::ranges::count(want, '\n'), 2);
  for (const std::string when : {"step 4", "sampling"}) {
    train_until(2, options(when, set), when);
    train_on(2, options(when, set, true));
    EXPECT_EQ(read_file(runs_ / when / "samples.jsonl"), want) << when;
    EXPECT_EQ(log_lines(runs_ / when), log_lines(runs_ / "whole")) << when;
    train_on(2, options(when, set, true));  // complete: nothing is due
    EXPECT_EQ(read_file(runs_ / when / "samples.jsonl"), want) << when;
  }
}

/// What rank 0 finds wrong with the run folder, every rank throws.
TEST_F(Saves, AnUnsuitableFolderIsAnErrorOnEveryRank) {
  train_on(2, options("run", {"train.steps=1"}));
  write_file(runs_ / "run/plain", "a file");
  std::vector<std::pair<TrainOptions, std::string>> cases{
      {options("run", {"train.steps=1"}), "holds a run already"},
      {options("none", {"train.steps=1"}, true), "holds no checkpoint to resume from"}};
  TrainOptions traced = options("traced", {"train.steps=4"});
  traced.trace_file = runs_ / "run/plain/trace.json";
  cases.emplace_back(traced, "Not a directory");
  for (const auto& [given, part] : cases) {
    std::atomic<int> num_told{0};
    run_thread_ranks(3,
                     [&, &given = given, &part = part](const auto& world) {
                       try {
                         train(given, world);
                       } catch (const Error& error) {
                         EXPECT_THAT(error.what(), HasSubstr(part)) << world->rank();
                         EXPECT_TRUE(error.exit_code() == 2 || error.exit_code() == 5) << error.what();
                         ++num_told;
                       }
                     },
                     {.timeout = std::chrono::seconds(20)});
    EXPECT_EQ(num_told, 3) << part;
  }
}

}  // namespace
}  // namespace caravan::testing::saves_test
