#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/train/folder/run_folder.h"
#include "tests/needs.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::parameter_groups_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Keys = std::vector<std::string>;

/// The token embedding and the output layer of each attention stay as they are; biases step further.
const std::string kGroups =
    "optimizer.groups=[{parameters = [\"embedding.token.weight\", \"output.weight\"], lr_factor = 0, "
    "weight_decay = 0}, {parameters = [\"*.bias\"], lr_factor = 3, weight_decay = 0.5}]";
/// SGD: AdamW makes whole steps of gradients that are only rounding errors.
const Keys kSgd{"optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.1", "model.dropout=0", "train.steps=4"};

std::map<std::string, at::Tensor> train_with(const TinyRuns& runs, const std::string& dir, int ranks, const Keys& keys,
                                             std::optional<int64_t> stop_after = {}, bool resume = false) {
  train_on(ranks, {.recipe = runs.recipe(Architecture::gpt2(), dir, keys),
                   .folders = runs.folders(),
                   .resume = resume,
                   .stop_after = stop_after});
  return checkpoint_tensors(runs / dir);
}

/// Of a parameter; moments go on.
bool is_fixed(const std::string& name) {
  return name == "embedding.token.weight" || (name.starts_with("blocks.") && name.ends_with("output.weight"));
}

TEST(ParameterGroups, AreTheSameInAllLayouts) {
  const TinyRuns runs;
  const Keys set = together({kSgd, {kGroups}});
  const auto initial = train_with(runs, "initial", 1, together({set, {"train.steps=0"}}));
  const auto want = train_with(runs, "one", 1, set);
  const auto plain = train_with(runs, "plain", 1, kSgd);
  size_t num_fixed = 0;
  for (const auto& [name, tensor] : want) {
    if (name.starts_with("optimizer.")) continue;
    const bool is_same = at::equal(tensor, initial.at(name));
    if (name.ends_with("key.bias")) continue;  // its gradient is only rounding
    EXPECT_EQ(is_same, is_fixed(name)) << name;
    num_fixed += is_same ? 1 : 0;
    if (name.ends_with("bias")) {
      EXPECT_FALSE(at::equal(tensor, plain.at(name))) << name;
    }
  }
  EXPECT_EQ(num_fixed, 3U) << "the embedding, and the output of two layers";
  const std::vector<Keys> layouts{{"data_parallel.technique=zero1"},
                                  {"data_parallel.technique=zero2"},
                                  {"data_parallel.technique=zero3"},
                                  {"mesh.tp=2"},
                                  {"mesh.pp=2", "pipeline.micro_batches=4"},
                                  {"tiling.tiles=3", "data_parallel.technique=zero3"},
                                  {"data_parallel.technique=param_server"},
                                  {"offload.optimizer=host", "offload.gradients=host", "optimizer.clip_norm=0"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const bool clips = layouts[i].back() != "optimizer.clip_norm=0";
    const auto same = clips ? want : train_with(runs, "unclipped", 1, together({set, {"optimizer.clip_norm=0"}}));
    const auto got = train_with(runs, std::to_string(i), 2, together({set, layouts[i]}));
    const auto [apart, worst] = distance(got, same);
    EXPECT_LE(apart, 1e-4) << worst << " of " << layouts[i].front();
    for (const auto& [name, tensor] : got) {
      if (is_fixed(name)) {
        EXPECT_TRUE(at::equal(tensor, initial.at(name))) << name << " of " << layouts[i].front();
      }
    }
  }
}

TEST(ParameterGroups, ContinueAndMayChange) {
  const TinyRuns runs;
  const Keys set = together({{"train.steps=6"}, {kGroups}});
  const auto whole = train_with(runs, "whole", 2, set);
  train_with(runs, "parts", 2, set, 3);
  EXPECT_EQ(first_difference(train_with(runs, "parts", 2, set, {}, true), whole), "");
  train_with(runs, "other", 2, set, 3);
  const Keys others = together({set, {"optimizer.groups=[{parameters = \"*.bias\", lr_factor = 0.5}]"}});
  EXPECT_NE(first_difference(train_with(runs, "other", 2, others, {}, true), whole), "");
  EXPECT_THAT(read_file(runs / "other/train.log"), HasSubstr("optimizer.groups"));
}

TEST(ParameterGroups, OfAdaptersAloneAreTrained) {
  const TinyRuns runs;
  const Keys lora{"lora.rank=2", "train.steps=1"};
  const auto train = [&](const std::string& pattern) {
    const Keys groups{"optimizer.groups=[{parameters = [\"" + pattern + "\"], lr_factor = 0.5}]"};
    train_with(runs, "lora", 1, together({lora, groups}));
  };
  EXPECT_THAT(message_of<UsageError>([&] { train("embedding.*"); }),
              HasSubstr("'embedding.*' matches no trained parameter"));
  EXPECT_NO_THROW(train("*.lora.*"));
}

TEST(ParameterGroups, APatternWithoutParametersNamesTheNearest) {
  const TinyRuns runs;
  const auto refusal = [&](const std::string& pattern) {
    const Keys groups{"optimizer.groups=[{parameters = [\"*.bias\", \"" + pattern + "\"]}]"};
    return message_of<UsageError>([&] { train_with(runs, "bad", 1, groups); });
  };
  EXPECT_THAT(refusal("embeding.token.weight"),
              AllOf(HasSubstr("optimizer.groups"), HasSubstr("'embeding.token.weight' matches no trained parameter"),
                    HasSubstr("the nearest is 'embedding.token.weight'")));
  EXPECT_THAT(refusal("*.mlp.upp.weight"), HasSubstr("the nearest is '*.mlp.up.weight'"));
  EXPECT_THAT(refusal("blocks.7.*"), HasSubstr("matches no trained parameter"));
  EXPECT_FALSE(std::filesystem::exists(runs / "bad")) << "refused before the run has a folder";
}

}  // namespace
}  // namespace caravan::testing::parameter_groups_test
