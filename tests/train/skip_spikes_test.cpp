#include <gmock/gmock.h>
#include <sstream>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/train/train.h"
#include "tests/needs.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::skip_spikes_test {
namespace {

using ::testing::HasSubstr;
using Keys = std::vector<std::string>;

/// The losses of a run that hardly learns vary about a mean: some are a standard deviation above it.
const Keys kKeys{"train.steps=34", "optimizer.skip_spikes=1", "optimizer.lr=1e-7"};

/// The warnings of rank 0.
class Listener final : public TrainObserver {
 public:
  void warned(std::string_view text) override { warnings.emplace_back(text); }
  std::vector<std::string> warnings;
};

TrainOptions options_of(const TinyRuns& runs, const std::string& dir, const Keys& keys) {
  return {.recipe = runs.recipe(Architecture::gpt2(), dir, keys), .folders = runs.folders()};
}

/// "skipped_spikes" of each step.
std::vector<int64_t> skipped(const std::filesystem::path& run) {
  std::istringstream text(read_file(run / "train.log"));
  std::vector<int64_t> counts;
  for (std::string line; std::getline(text, line);) {
    counts.push_back(nlohmann::json::parse(line).at("skipped_spikes").get<int64_t>());
  }
  return counts;
}

/// Parameters and moments of the checkpoint after this step.
std::map<std::string, at::Tensor> tensors_after(const std::filesystem::path& run, size_t step) {
  CheckpointReader reader(run / fmt::format("step_{:06}", step));
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (name == "guard.spikes") continue;
    at::Tensor out = at::empty(tensor.shape);
    reader.read(name, {std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape}, out);
    all[name] = out;
  }
  return all;
}

TEST(SkipSpikes, AStepThatIsSkippedChangesNothing) {
  const TinyRuns runs;
  Listener listener;
  TrainOptions options = options_of(runs, "run", together({kKeys, {"checkpoint.every=1", "checkpoint.keep=0"}}));
  options.observer = &listener;
  train_on(1, options);
  const std::vector<int64_t> counts = skipped(runs / "run");
  ASSERT_EQ(counts.size(), 34U);
  ASSERT_GT(counts.back(), 0) << "the test needs a run with a spike";
  ASSERT_LT(counts.back(), 14);
  ASSERT_EQ(listener.warnings.size(), static_cast<size_t>(counts.back()));
  int64_t before = 0;
  size_t warning = 0;
  for (size_t i = 1; i < counts.size(); ++i) {
    const bool is_skipped = counts[i] > before;
    before = counts[i];
    const auto a = tensors_after(runs / "run", i), b = tensors_after(runs / "run", i + 1);
    EXPECT_EQ(first_difference(a, b).empty(), is_skipped) << "step " << i + 1;
    if (!is_skipped) continue;
    EXPECT_THAT(listener.warnings[warning++],
                ::testing::AllOf(HasSubstr("step " + std::to_string(i + 1) + " is skipped: "),
                                 HasSubstr("standard deviations above the mean")));
  }
}

/// A resumed run has the numbers of the steps before, so it decides the same; on other ranks too.
TEST(SkipSpikes, AResumedRunDecidesTheSame) {
  const TinyRuns runs;
  for (const Keys& layout : {Keys{}, Keys{"data_parallel.technique=zero3", "precision.compute=fp16"}}) {
    const std::string n = std::to_string(layout.size());
    const Keys keys = together({kKeys, layout});
    train_on(2, options_of(runs, "whole" + n, keys));
    TrainOptions first = options_of(runs, "parts" + n, keys);
    first.stop_after = 15;
    train_on(2, first);
    TrainOptions second = options_of(runs, "parts" + n, keys);
    second.resume = true;
    train_on(2, second);
    EXPECT_EQ(log_lines(runs / ("parts" + n)), log_lines(runs / ("whole" + n)));
    EXPECT_EQ(first_difference(checkpoint_tensors(runs / ("parts" + n)), checkpoint_tensors(runs / ("whole" + n))), "");
    EXPECT_GT(skipped(runs / ("whole" + n)).back(), 0);
    EXPECT_TRUE(checkpoint_tensors(runs / ("whole" + n)).contains("guard.spikes"));
  }
}

TEST(SkipSpikes, MayBeSwitchedOnAndOff) {
  const TinyRuns runs;
  for (const auto& [before, after] : {std::pair("0", "4"), std::pair("4", "0")}) {
    const std::string dir = std::string("run") + before;
    TrainOptions first = options_of(runs, dir, {"train.steps=6", std::string("optimizer.skip_spikes=") + before});
    first.stop_after = 3;
    train_on(1, first);
    TrainOptions second = options_of(runs, dir, {"train.steps=6", std::string("optimizer.skip_spikes=") + after});
    second.resume = true;
    train_on(3, second);
    EXPECT_EQ(losses(runs / dir).size(), 6U);
  }
}

TEST(SkipSpikes, NeedsOneLossOfAllRanks) {
  const TinyRuns runs;
  for (const char* key : {"data_parallel.technique=diloco", "data_parallel.hook=topk"}) {
    EXPECT_THAT(message_of<UsageError>([&] {
                  train_on(2, options_of(runs, "run", {key, "optimizer.skip_spikes=6"}));
                }),
                HasSubstr("optimizer.skip_spikes"));
  }
}

/// Groups of offloaded gradients must not step before the decision.
TEST(SkipSpikes, WithOffloadedGradients) {
  const TinyRuns runs;
  const Keys keys = together({kKeys, {"optimizer.clip_norm=0"}});
  train_on(1, options_of(runs, "here", keys));
  train_on(1, options_of(runs, "away", together({keys, {"offload.optimizer=host", "offload.gradients=host"}})));
  EXPECT_GT(skipped(runs / "here").back(), 0);
  EXPECT_EQ(number_lines(runs / "away"), number_lines(runs / "here"));
  EXPECT_EQ(first_difference(checkpoint_tensors(runs / "away"), checkpoint_tensors(runs / "here")), "");
}

}  // namespace
}  // namespace caravan::testing::skip_spikes_test
