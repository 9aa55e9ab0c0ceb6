#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/step/batch.h"
#include "caravan/train/folder/run_state.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::parity_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Parity : public ::testing::TestWithParam<Architecture> {
 protected:
  const TinyRuns runs_;
};

INSTANTIATE_TEST_SUITE_P(Models, Parity, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

struct Split {
  int ranks;
  int accumulation;
  std::string text() const { return std::to_string(ranks) + "x" + std::to_string(accumulation); }
};
const std::vector<Split> kSplits{{1, 1}, {1, 3}, {2, 1}, {2, 3}, {3, 1}, {3, 3}, {4, 1}, {4, 3}};

/// For every split, a rank trains on its rows of the batch of a single rank.
TEST_P(Parity, RowsOfTheBatchMatchOneRank) {
  const Recipe recipe = runs_.recipe(GetParam(), "run");
  const Dataset data = open_dataset(recipe.data, runs_.folders());
  const TrainWindows windows = data.train_windows(8, 3);
  const TrainBatch whole = make_batch(windows, 72, 36);
  EXPECT_EQ(whole.num_targets, 36 * 8);
  EXPECT_TRUE(at::equal(whole.ids.narrow(1, 1, 7), whole.labels.narrow(1, 0, 7)));
  for (const int64_t rows : {9, 12, 18}) {
    for (int64_t first = 0; first < 36; first += rows) {
      const TrainBatch part = make_batch(windows, 72 + first, rows);
      EXPECT_TRUE(at::equal(part.ids, whole.ids.narrow(0, first, rows)));
      EXPECT_TRUE(at::equal(part.labels, whole.labels.narrow(0, first, rows)));
    }
  }
}

/// Weights and batches are bit-equal; gradients, norm and loss agree within 1e-5, since fp32 sums have another order.
/// The second step starts from weights updated by SGD: AdamW would turn a gradient of pure rounding error into a full
/// step.
TEST_P(Parity, TwoStepsMatchOneRank) {
  const auto dump = [&](const Split& split) {
    const fs::path folder = runs_ / ("dump" + split.text());
    train_on(split.ranks,
             {.recipe = runs_.recipe(GetParam(), "step" + split.text(),
                                     {"train.steps=2", "optimizer.kind=sgd", "optimizer.lr=0.5",
                                      "optimizer.clip_norm=0.5", micro_batch(split.ranks, split.accumulation)}),
              .folders = runs_.folders(),
              .dump_dir = folder,
              .dump_steps = {0, 1}});
    return folder;
  };
  const auto number = [](const fs::path& file, const char* key) {
    return nlohmann::json::parse(read_file(file)).at(key).get<double>();
  };
  const fs::path want = dump(kSplits.front());
  for (const Split& split : kSplits) {
    SCOPED_TRACE(split.text());
    if (split.text() == "1x1") continue;
    const fs::path got = dump(split);
    EXPECT_EQ(read_file(got / "step_0/config.json"), read_file(want / "step_0/config.json"));
    EXPECT_EQ(read_file(got / "step_0/parameters.safetensors"), read_file(want / "step_0/parameters.safetensors"));
    for (const char* step : {"step_0", "step_1"}) {
      EXPECT_EQ(read_file(got / step / "batch.safetensors"), read_file(want / step / "batch.safetensors"));
      const auto [apart, worst] =
          distance(tensors_of(got / step / "gradients.safetensors"), tensors_of(want / step / "gradients.safetensors"));
      EXPECT_LE(apart, 1e-5) << worst;
      for (const char* key : {"loss", "grad_norm"}) {
        EXPECT_NEAR(number(got / step / "metrics.json", key) / number(want / step / "metrics.json", key), 1, 1e-5);
      }
    }
  }
}

/// Within 1e-4 at every step: rounding errors grow over 50 steps.
TEST_P(Parity, FiftyStepsOfSgdMatchOneRank) {
  const auto run = [&](const Split& split) {
    train_on(split.ranks, {.recipe = runs_.recipe(GetParam(), "sgd" + split.text(),
                                                  {"train.steps=50", "optimizer.kind=sgd", "optimizer.momentum=0.9",
                                                   "optimizer.lr=0.1", micro_batch(split.ranks, split.accumulation)}),
                           .folders = runs_.folders()});
    return losses(runs_ / ("sgd" + split.text()));
  };
  const std::vector<double> want = run(kSplits.front());
  ASSERT_EQ(want.size(), 50U);
  EXPECT_LT(want.back(), 0.8 * want.front());  // it learns
  for (const Split& split : kSplits) {
    if (split.text() == "1x1") continue;
    const std::vector<double> got = run(split);
    ASSERT_EQ(got.size(), want.size());
    for (size_t step = 0; step < want.size(); ++step) {
      EXPECT_NEAR(got[step] / want[step], 1, 1e-4) << split.text() << ", step " << step;
    }
  }
}

/// bf16 has 8 significant bits: activations are off by up to 0.4 %, and the loss, a mean of logarithms, by less.
TEST_P(Parity, Bf16IsNearFp32) {
  const auto run = [&](const std::string& compute, int ranks) {
    const std::string dir = compute + std::to_string(ranks);
    train_on(ranks, {.recipe = runs_.recipe(GetParam(), dir, {"precision.compute=" + compute, "train.steps=15"}),
                     .folders = runs_.folders()});
    return losses(runs_ / dir);
  };
  const std::vector<double> want = run("fp32", 1);
  const std::vector<double> one = run("bf16", 1);
  const std::vector<double> two = run("bf16", 2);
  EXPECT_NE(one, want);
  for (size_t step = 0; step < want.size(); ++step) {
    EXPECT_NEAR(one[step] / want[step], 1, 0.01) << step;
    EXPECT_NEAR(two[step] / want[step], 1, 0.01) << step;
  }
}

/// Recomputed values have the same bits, dropout included.
TEST_P(Parity, RecomputeChangesNoLoss) {
  int num_runs = 0;
  const auto run = [&](const std::string& recompute) {
    const std::string dir = "recompute" + std::to_string(num_runs++);
    train_on(2, {.recipe = runs_.recipe(GetParam(), dir,
                                        {"memory.recompute=" + recompute, "model.dropout=0.1", "train.steps=5"}),
                 .folders = runs_.folders()});
    return losses(runs_ / dir);
  };
  const std::vector<double> want = run("none");
  ASSERT_EQ(want.size(), 5U);
  for (const char* recompute : {"full", "selective", "[\"blocks.1\", \"blocks.0.mlp\"]"}) {
    EXPECT_EQ(run(recompute), want) << recompute;
  }
}

TEST_P(Parity, TheDumpHasHuggingFaceNamesAndGradientsBeforeClipping) {
  const fs::path dump = runs_ / "dump";
  train_on(2, {.recipe = runs_.recipe(GetParam(), "run", {"train.steps=3", "optimizer.clip_norm=1e-3"}),
               .folders = runs_.folders(),
               .dump_dir = dump,
               .dump_steps = {2}});
  EXPECT_FALSE(fs::exists(dump / "step_0"));
  const auto batch = tensors_of(dump / "step_2/batch.safetensors");
  ASSERT_EQ(batch.size(), 2U);
  EXPECT_EQ(batch.at("input_ids").sizes(), (std::vector<int64_t>{36, 8}));
  EXPECT_EQ(batch.at("labels").scalar_type(), at::kLong);
  EXPECT_TRUE(at::equal(batch.at("input_ids").narrow(1, 1, 7), batch.at("labels").narrow(1, 0, 7)));
  const auto parameters = tensors_of(dump / "step_2/parameters.safetensors");
  const auto gradients = tensors_of(dump / "step_2/gradients.safetensors");
  const bool is_gpt2 = GetParam() == Architecture::gpt2();
  EXPECT_EQ(
      parameters.at(is_gpt2 ? "transformer.h.1.attn.c_attn.weight" : "model.layers.1.self_attn.k_proj.weight").sizes(),
      (is_gpt2 ? std::vector<int64_t>{16, 48} : std::vector<int64_t>{8, 16}));
  EXPECT_EQ(parameters.contains("lm_head.weight"), !is_gpt2);
  double squares = 0;
  for (const auto& [name, parameter] : parameters) {
    ASSERT_EQ(gradients.at(name).sizes(), parameter.sizes()) << name;
    squares += gradients.at(name).to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_EQ(gradients.size(), parameters.size());
  const auto metrics = nlohmann::json::parse(read_file(dump / "step_2/metrics.json"));
  EXPECT_EQ(metrics.at("step"), 2);
  EXPECT_GT(metrics.at("grad_norm").get<double>(), 0.01);  // far above the clip norm of 1e-3
  EXPECT_NEAR(std::sqrt(squares) / metrics.at("grad_norm").get<double>(), 1, 1e-6);
  EXPECT_EQ(metrics.at("loss").get<double>(), losses(runs_ / "run").back());
}

TEST(Dump, AStepOutsideTheRunIsAnError) {
  const TinyRuns runs;
  EXPECT_THAT(message_of<UsageError>([&] {
                train_on(2, {.recipe = runs.recipe(Architecture::gpt2(), "run", {"train.steps=3"}),
                             .folders = runs.folders(),
                             .dump_dir = runs / "dump",
                             .dump_steps = {0, 3}});
              }),
              HasSubstr("choose steps from 0 to 2"));
}

TEST(Dump, OfAModelThatTransformersLacksIsAnError) {
  const TinyRuns runs;
  Recipe recipe = runs.recipe(Architecture::llama(), "run", {"train.steps=3"});
  recipe.model.moe = {.experts = 4, .gates = Gates::sigmoid};
  EXPECT_THAT(message_of<UsageError>([&] {
                train_on(1,
                         {.recipe = recipe, .folders = runs.folders(), .dump_dir = runs / "dump", .dump_steps = {0}});
              }),
              HasSubstr("moe.gates"));
  EXPECT_FALSE(fs::exists(runs / "dump"));
}

}  // namespace
}  // namespace caravan::testing::parity_test
