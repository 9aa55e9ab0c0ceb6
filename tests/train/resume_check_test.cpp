#include "caravan/train/folder/resume_check.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/recipe/recipe_key.h"
#include "tests/data/support.h"
#include "tests/needs.h"

namespace caravan::resume_check_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A run of this recipe, and the checkpoint it leaves after `steps` steps.
struct Checkpointed {
  Recipe recipe;
  CheckpointInfo info;
};

Recipe recipe_of(std::vector<std::string> set, const std::string& kind = "llama") {
  set.insert(set.begin(), "model.kind=" + kind);
  testing::needs_chosen(set);
  return parse_recipe("", "test", set);
}

ModelConfig model_of(const Recipe& recipe) {
  ModelConfig model = recipe.model;
  model.vocabulary = 512;
  return model;
}

Checkpointed checkpoint_of(const std::vector<std::string>& set, int64_t steps, const std::string& kind = "llama") {
  const Recipe recipe = recipe_of(set, kind);
  return {recipe,
          {.step = steps,
           .optimizer_steps = steps,
           .recipe = to_toml(recipe),
           .model = config_text(model_of(recipe)),
           .tokenizer_hash = "t",
           .train_hash = "1",
           .validation_hash = "2"}};
}

std::vector<ChangedKey> resume(const Checkpointed& before, const Recipe& now, const std::string& train_hash = "1",
                               const std::string& tokenizer_hash = "t") {
  const ModelConfig model = model_of(now);
  return check_resumed_run(before.info, "run/step_000005",
                           {.recipe = now,
                            .model = model,
                            .tokenizer_hash = tokenizer_hash,
                            .train_hash = train_hash,
                            .validation_hash = "2"});
}

/// Chats are whole by default, but were not in runs from before data.fill existed.
TEST(ResumeCheck, AnOldRunOfChatsHasWindows) {
  const std::vector<std::string> chats{"data.format=chat"};
  Checkpointed old = checkpoint_of(chats, 5);
  const std::string line = "fill = \"best_fit\"\n";
  old.info.recipe.erase(old.info.recipe.find(line), line.size());
  EXPECT_THAT(message_of<UsageError>([&] { resume(old, recipe_of(chats)); }),
              HasSubstr("data.fill: is \"best_fit\", but the run was trained with \"stream\""));
  EXPECT_TRUE(resume(old, recipe_of({"data.format=chat", "data.fill=stream"})).empty());
}

TEST(ResumeCheck, WhatChangesTheFunctionOrTheDataIsRefusedWithBothValues) {
  testing::needs({"adamw", "sgd"});
  const Checkpointed before = checkpoint_of({}, 5);
  EXPECT_TRUE(resume(before, before.recipe).empty());
  struct Case {
    std::string key, value, old;
  };
  for (const Case& now : {Case{"model.rope_theta", "500000.0", "10000.0"}, Case{"model.norm_epsilon", "0.01", "1e-05"},
                          Case{"model.dropout", "0.3", "0.0"}, Case{"precision.compute", "\"bf16\"", "\"fp32\""},
                          Case{"train.seed", "7", "1"}, Case{"train.global_batch", "16", "12"},
                          Case{"optimizer.kind", "\"sgd\"", "\"adamw\""}}) {
    const Recipe recipe = recipe_of({now.key + "=" + now.value});
    EXPECT_THAT(message_of<UsageError>([&] { resume(before, recipe); }),
                AllOf(HasSubstr(now.key + ": is " + now.value + ", but the run was trained with " + now.old),
                      HasSubstr("--set " + now.key)));
  }
  EXPECT_THAT(message_of<UsageError>([&] { resume(before, before.recipe, "9"); }),
              AllOf(HasSubstr("data.text: is another text"), HasSubstr("(hash 9)"), HasSubstr("(hash 1)")));
  const Recipe other_part = recipe_of({"data.validation_fraction=0.25"});
  EXPECT_THAT(message_of<UsageError>([&] { resume(before, other_part, "9"); }),
              AllOf(HasSubstr("data.validation_fraction: leaves another part of the text for training: 0.25"),
                    HasSubstr("--set data.validation_fraction")));
  Checkpointed other = before;
  other.info.validation_hash = "3";
  EXPECT_THAT(message_of<UsageError>([&] { resume(other, before.recipe); }),
              AllOf(HasSubstr("(hash 2) than the run had (hash 3)"), Not(HasSubstr("data.text: is another"))));
  EXPECT_THAT(message_of<UsageError>([&] { resume(before, recipe_of({"data.tokenizer=x.json"}), "1", "u"); }),
              HasSubstr("data.tokenizer: is another tokenizer (hash u)"));
  EXPECT_THAT(message_of<DataError>([&] { resume(before, recipe_of({"model.layers=9"})); }),
              AllOf(HasSubstr("of another model"), HasSubstr("model.layers is 4 there, 9 in this run")));
}

TEST(ResumeCheck, AModelWithOtherExpertsIsAnotherModel) {
  Checkpointed before = checkpoint_of({}, 5);
  ModelConfig model = model_of(before.recipe);
  model.arch.qkv_bias = true;
  model.moe = {.experts = 4, .shared_hidden = 8, .shared_gate = true};
  before.info.model = config_text(model);
  EXPECT_THAT(message_of<DataError>([&] { resume(before, before.recipe); }),
              AllOf(HasSubstr("of another model"), HasSubstr("model.qkv_bias is true there, false in this run")));
}

/// The user changed data.text, so that is what the error names.
TEST(ResumeCheck, ATokenizerTrainedOnAnotherTextIsBlamedOnTheText) {
  const Checkpointed before = checkpoint_of({"data.text=old.txt", "data.tokenizer={train = 300}"}, 5);
  const Recipe now = recipe_of({"data.text=new.txt", "data.tokenizer={train = 300}"});
  EXPECT_THAT(message_of<UsageError>([&] { resume(before, now, "9", "u"); }),
              AllOf(HasSubstr("data.text: differs from the text that the run's tokenizer was trained on "
                              "(data.tokenizer = {train = 300}): new.txt, then old.txt"),
                    HasSubstr("--set data.text=new.txt"), HasSubstr("do: use the same data.text")));
}

TEST(ResumeCheck, PermittedChangesAreListed) {
  const Checkpointed before = checkpoint_of({}, 5);
  const auto changed =
      resume(before, recipe_of({"optimizer.lr=0.5", "train.steps=900", "comm.timeout_s=7", "checkpoint.dir=elsewhere",
                                "data.text=elsewhere.txt", "train.micro_batch=3"}));
  ASSERT_EQ(changed.size(), 3U);
  EXPECT_EQ(changed[0].name, "train.steps");
  EXPECT_EQ(changed[0].before, "800");
  EXPECT_EQ(changed[0].now, "900");
  EXPECT_EQ(changed[1].name, "train.micro_batch");
  EXPECT_EQ(changed[2].name, "optimizer.lr");
}

/// A file may give thousands of points.
TEST(ResumeCheck, AChangedListIsShownByTheEntryThatDiffers) {
  testing::needs({"piecewise"});
  std::string points = "[[3, 1.0]";
  for (int step = 4; step < 3000; ++step) points += ", [" + std::to_string(step) + ", 0.5]";
  const auto with = [&](const std::string& end) {
    return std::vector<std::string>{"optimizer.schedule=piecewise", "optimizer.points=" + points + end};
  };
  const Checkpointed before = checkpoint_of(with(", [3000, 0.5]]"), 5);
  const auto changed = resume(before, recipe_of(with(", [3000, 0.25], [3001, 0.0]]")));
  ASSERT_EQ(changed.size(), 1U);
  EXPECT_EQ(changed[0].to_string(),
            "optimizer.points is a list of 2999 entries, number 2998 being [3000, 0.25], before the resume it was a "
            "list of 2998 entries, number 2998 being [3000, 0.5]");
}

/// 0 stands for the default of the architecture; giving that number explicitly is not a change.
TEST(ResumeCheck, AnExplicitDefaultIsNotAChange) {
  const Checkpointed before = checkpoint_of({"model.width=64", "model.heads=4"}, 5, "gpt2");
  EXPECT_TRUE(
      resume(before, recipe_of({"model.width=64", "model.heads=4", "model.hidden=256", "model.vocabulary=512"}, "gpt2"))
          .empty());
}

/// Imported weights have no history, but they compute a function.
TEST(ResumeCheck, WithoutAStepOfTrainingOnlyTheFunctionIsFixed) {
  const Checkpointed before = checkpoint_of({}, 0);
  const Recipe other = recipe_of({"train.seed=7", "model.dropout=0.1", "precision.compute=bf16", "optimizer.lr=1"});
  EXPECT_TRUE(resume(before, other, "9").empty()) << "there is no run yet that could have changed";
  EXPECT_THAT(message_of<UsageError>([&] { resume(before, recipe_of({"model.rope_theta=5e5"})); }),
              HasSubstr("model.rope_theta"));
}

/// Checkpoints of the first version do not record their data.
TEST(ResumeCheck, UnknownDataIsNotCompared) {
  Checkpointed before = checkpoint_of({}, 5);
  before.info.train_hash = before.info.validation_hash = "";
  EXPECT_TRUE(resume(before, before.recipe, "9").empty());
}

}  // namespace
}  // namespace caravan::resume_check_test
