/// Runs with data.task = "preference": what they start from, on any ranks, resumed, with adapters.

#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/train/model/rehearse.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::preference_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Preferences : public ::testing::Test {
 protected:
  Preferences() {
    std::filesystem::create_directory(runs_ / "words");
    std::filesystem::copy_file(fixture("families/bert_uncased.json"), runs_ / "words/tokenizer.json");
    std::string records;
    for (int i = 0; i < 90; ++i) {
      const char* prompts[] = {"the landlord", "would look over", "could"};
      const char* ends[] = {" the room", " over the room and go", ""};
      records += nlohmann::json{{"prompt", prompts[i % 3]},
                                {"chosen", std::string(" look") + ends[i % 2]},
                                {"rejected", std::string(" go") + ends[(i + 1) % 3]}}
                     .dump() +
                 "\n";
    }
    write_file(runs_ / "records.jsonl", records);
    for (const auto& [name, seed] : {std::pair{"base", 3}, {"other", 4}}) {
      train_on(1, {.recipe = with({"data.text=" + (runs_ / "text.txt").string(), "train.steps=2",
                                   "train.seed=" + std::to_string(seed)},
                                  name),
                   .folders = runs_.folders()});
    }
  }

  Recipe with(std::vector<std::string> set, const std::string& dir) const {
    set.insert(set.begin(),
               {"data.tokenizer=\"" + (runs_ / "words/tokenizer.json").string() + "\"", "model.dropout=0"});
    return runs_.recipe(Architecture::llama(), dir, set);
  }
  TrainOptions options(const std::string& dir, const std::vector<std::string>& set, bool starts = true) const {
    std::vector<std::string> all{"data.text=" + (runs_ / "records.jsonl").string(), "data.task=preference",
                                 "data.validation_fraction=0.3", "train.steps=4", "preference.beta=0.5"};
    if (starts) all.push_back("train.init_from=\"" + (runs_ / "base").string() + "\"");
    all.insert(all.end(), set.begin(), set.end());
    return {.recipe = with(all, dir), .folders = runs_.folders()};
  }
  std::vector<nlohmann::json> lines(const std::string& dir) const {
    std::vector<nlohmann::json> all;
    std::istringstream text(read_file(runs_ / dir / "train.log"));
    for (std::string line; std::getline(text, line);) {
      auto one = nlohmann::json::parse(line);
      if (one.contains("loss")) all.push_back(std::move(one));
    }
    return all;
  }

  const TinyRuns runs_;
};

TEST_F(Preferences, StartAtTheReferenceAndLearn) {
  train_on(1, options("one", {"train.steps=20", "train.eval_every=20", "log.csv=true", "log.tensorboard=true"}));
  const auto log = lines("one");
  EXPECT_NEAR(log.front()["loss"], std::log(2), 1e-6);
  EXPECT_EQ(log.front()["reward_margin"], 0);
  EXPECT_EQ(log.front()["reward_accuracy"], 0);
  EXPECT_EQ(log.front()["tokens"], 36 * 2 * 8);
  const nlohmann::json last = log.back();
  EXPECT_LT(last["loss"].get<double>(), 0.3);
  EXPECT_GT(last["reward_accuracy"].get<double>(), 0.95);
  EXPECT_NEAR(last["reward_margin"].get<double>(),
              last["reward_chosen"].get<double>() - last["reward_rejected"].get<double>(), 1e-9);
  EXPECT_LT(last["val_loss"].get<double>(), 0.3);
  EXPECT_GT(last["val_accuracy"].get<double>(), 0.95);
  EXPECT_FALSE(last.contains("val_bits_per_byte"));
  const std::string csv = read_file(runs_ / "one/metrics.csv");
  EXPECT_THAT(csv.substr(0, csv.find('\n')), HasSubstr("reward_margin,reward_accuracy,reward_chosen,reward_rejected"));
}

TEST_F(Preferences, IpoStartsAtItsOwnLoss) {
  train_on(1, options("ipo", {"preference.loss=ipo"}));
  EXPECT_NEAR(lines("ipo").front()["loss"], 1, 1e-6) << "(1 / (2 beta))^2";
  EXPECT_LT(lines("ipo").back()["loss"].get<double>(), 1);
}

TEST_F(Preferences, AreTheSameOnAnyRanks) {
  const std::vector<std::string> set{"train.eval_every=2", "preference.label_smoothing=0.1"};
  train_on(1, options("one", set));
  const nlohmann::json one = lines("one").back();
  const auto tensors = checkpoint_tensors(runs_ / "one");
  for (const auto& [ranks, arrangement] : std::vector<std::pair<int, std::vector<std::string>>>{
           {1, {"train.micro_batch=1"}},
           {2, {"mesh.dp=2", "train.micro_batch=1"}},
           {3, {"mesh.dp=3", "train.micro_batch=4"}},
           {2, {"mesh.tp=2", "train.micro_batch=9"}},
           {2, {"mesh.pp=2", "train.micro_batch=6"}},
           {4, {"mesh.dp=2", "mesh.tp=2", "tensor_parallel.sequence=true"}},
           {4, {"mesh.dp=2", "mesh.pp=2", "train.micro_batch=3", "memory.recompute=full"}},
           {2, {"data_parallel.technique=zero3", "train.micro_batch=6"}},
           {2, {"data_parallel.technique=param_server"}},
           {3, {"train.balance=measured", "train.micro_batch=6"}},
           {2, {"tiling.tiles=3"}},
           {2, {"offload.optimizer=host", "offload.parameters=host", "offload.gradients=host"}},
           {2, {"data_parallel.technique=zero3", "memory.recompute=full", "train.micro_batch=6"}}}) {
    SCOPED_TRACE(::testing::PrintToString(arrangement));
    train_on(ranks, options("many", together({set, arrangement})));
    const nlohmann::json many = lines("many").back();
    for (const char* key : {"loss", "val_loss", "reward_margin", "reward_chosen", "reward_rejected"}) {
      EXPECT_NEAR(many[key].get<double>(), one[key].get<double>(), 1e-4) << key;  // fp32, other sums
    }
    for (const char* key : {"reward_accuracy", "val_accuracy", "tokens"}) EXPECT_EQ(many[key], one[key]) << key;
    const auto [worst, name] = distance(checkpoint_tensors(runs_ / "many"), tensors);
    EXPECT_LT(worst, 1e-3) << name;  // four steps of AdamW
    std::filesystem::remove_all(runs_ / "many");
  }
}

/// In 16 bits the reference model rounds as the model that is trained.
TEST_F(Preferences, AreComparedInTheirOwnPrecision) {
  for (const std::string precision : {"bf16", "fp16"}) {
    for (const std::string adapters : {"lora.rank=0", "lora.rank=2"}) {
      train_on(2, options("run", {"precision.compute=" + precision, adapters, "train.steps=6"}));
      EXPECT_EQ(lines("run").front()["reward_margin"], 0) << precision << ' ' << adapters;
      EXPECT_NEAR(lines("run").front()["loss"].get<double>(), std::log(2), 1e-6) << precision;
      EXPECT_LT(lines("run").back()["loss"].get<double>(), std::log(2)) << precision << ' ' << adapters;
      std::filesystem::remove_all(runs_ / "run");
    }
  }
}

/// The last stage of a V is on the first rank, that of the reference model on the last one.
TEST_F(Preferences, TheReferenceHasItsOwnStages) {
  const std::vector<std::string> deep{"model.layers=4"};
  train_on(1,
           {.recipe = with({"data.text=" + (runs_ / "text.txt").string(), "train.steps=1", "model.layers=4"}, "deep"),
            .folders = runs_.folders()});
  const std::vector<std::string> set{"model.layers=4", "train.init_from=\"" + (runs_ / "deep").string() + "\""};
  train_on(1, options("one", set, false));
  train_on(2, options("many", together({set, {"mesh.pp=2", "train.micro_batch=6", "pipeline.schedule=zb-v"}}), false));
  EXPECT_EQ(lines("many").front()["reward_margin"], 0);
  EXPECT_NEAR(lines("many").back()["loss"].get<double>(), lines("one").back()["loss"].get<double>(), 1e-4);
}

TEST_F(Preferences, ResumeToTheSameBits) {
  for (const std::string adapters : {"lora.rank=0", "lora.rank=2"}) {
    const std::vector<std::string> set{adapters, "train.steps=6", "checkpoint.every=2"};
    train_on(2, options("whole", set));
    TrainOptions first = options("parts", set);
    first.stop_after = 4;
    train_on(2, first);
    // As the run's own recipe.toml has it: the reference is that of the start.
    TrainOptions second{.recipe = load_recipe(runs_ / "parts/recipe.toml", {}), .folders = runs_.folders()};
    EXPECT_EQ(second.recipe.train.init_from, "");
    EXPECT_EQ(second.recipe.data.task.preference.reference.empty(), adapters != "lora.rank=0");
    second.resume = true;
    train_on(2, second);
    EXPECT_EQ(log_lines(runs_ / "parts"), log_lines(runs_ / "whole"));
    EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / "parts"), checkpoint_tensors(runs_ / "whole")), "");
    for (const char* dir : {"parts", "whole"}) std::filesystem::remove_all(runs_ / dir);
  }
}

TEST_F(Preferences, AMissingReferenceIsNamed) {
  const std::vector<std::string> set{"train.steps=4", "checkpoint.every=2"};
  TrainOptions first = options("parts", set);
  first.stop_after = 2;
  train_on(1, first);
  TrainOptions second{.recipe = load_recipe(runs_ / "parts/recipe.toml", {}), .folders = runs_.folders()};
  second.resume = true;
  std::filesystem::rename(runs_ / "base", runs_ / "moved");
  EXPECT_THAT(message_of<DataError>([&] { train_on(1, second); }), HasSubstr((runs_ / "base").string()));
  second.recipe.data.task.preference.reference = (runs_ / "moved").string();
  train_on(1, second);
  EXPECT_EQ(lines("parts").size(), 4U);
  EXPECT_THAT(message_of<UsageError>([&] { train_on(1, options("new", set, false)); }),
              AllOf(HasSubstr("preference.reference"), HasSubstr("set train.init_from")));
}

/// Without its adapters the model is the one that they were added to.
TEST_F(Preferences, AdaptersAreComparedWithTheWeightsUnderThem) {
  for (const std::vector<std::string>& arrangement :
       std::vector<std::vector<std::string>>{{"mesh.dp=2"},
                                             {"mesh.tp=2"},
                                             {"mesh.pp=2", "train.micro_batch=6"},
                                             {"data_parallel.technique=zero3"},
                                             {"mesh.dp=2", "lora.dora=true"}}) {
    SCOPED_TRACE(::testing::PrintToString(arrangement));
    const std::vector<std::string> set =
        together({{"lora.rank=2", "lora.targets=[\"*\"]", "train.eval_every=2"}, arrangement});
    train_on(2, options("own", set));
    train_on(2, options("folder", together({set, {"preference.reference=\"" + (runs_ / "base").string() + "\""}})));
    const nlohmann::json own = lines("own").back(), folder = lines("folder").back();
    for (const char* key : {"loss", "val_loss", "reward_margin"}) {
      EXPECT_NEAR(own[key].get<double>(), folder[key].get<double>(), 1e-5) << key;
    }
    EXPECT_LT(own["loss"].get<double>(), std::log(2));
    for (const char* dir : {"own", "folder"}) std::filesystem::remove_all(runs_ / dir);
  }
}

TEST_F(Preferences, TheReferenceMayBeAnotherModel) {
  train_on(1, options("one", {"preference.reference=\"" + (runs_ / "other").string() + "\""}));
  const nlohmann::json first = lines("one").front();
  EXPECT_NE(first["reward_margin"], 0);
  EXPECT_GT(std::abs(first["loss"].get<double>() - std::log(2)), 1e-5);
  train_on(2, options("two", {"preference.reference=\"" + (runs_ / "other").string() + "\"", "mesh.tp=2"}));
  EXPECT_NEAR(lines("two").front()["loss"].get<double>(), first["loss"].get<double>(), 1e-5);
  TrainOptions refused = options("three", {"preference.reference=\"" + (runs_ / "bytes").string() + "\""});
  train_on(1, {.recipe = runs_.recipe(Architecture::llama(), "bytes", {"train.steps=1"}), .folders = runs_.folders()});
  EXPECT_THAT(message_of<UsageError>([&] { train_on(1, refused); }), HasSubstr("has another tokenizer"));
}

/// Workers that do not wait for each other run a reference in a folder, but not the model of the step without adapters.
TEST_F(Preferences, RanksThatDoNotStepTogether) {
  const std::vector<std::string> apart{"data_parallel.technique=diloco"};
  train_on(2, options("one", together({apart, {"train.steps=8"}})));
  EXPECT_TRUE(lines("one").back().contains("reward_margin"));
  train_on(2, options("servers", {"data_parallel.technique=param_server", "data_parallel.mode=async",
                                  "optimizer.clip_norm=0", "train.steps=8"}));
  EXPECT_LT(lines("servers").back()["loss"].get<double>(), std::log(2));
  EXPECT_THAT(message_of<UsageError>([&] {
                train_on(2, options("two", together({apart, {"lora.rank=2"}})));
              }),
              AllOf(HasSubstr("diloco"), HasSubstr("set preference.reference")));
}

/// The rehearsal of a run has its reference model too.
TEST_F(Preferences, MemoryOfTheReferenceIsPredicted) {
  const auto peak_of = [&](const std::vector<std::string>& set, bool starts = true) {
    Recipe recipe = options("none", set, starts).recipe;
    recipe.train.micro_batch = 6;
    return rehearse(recipe, 30522, 2, 0).peak;
  };
  const MemoryBytes with = peak_of({"mesh.tp=2"});
  const MemoryBytes adapters = peak_of({"mesh.tp=2", "lora.rank=2"});
  EXPECT_GT(with[MemoryKind::parameters], 1.9 * adapters[MemoryKind::parameters]);
  for (const auto& [ranks, arrangement] :
       std::vector<std::pair<int, std::vector<std::string>>>{{1, {"train.micro_batch=6"}},
                                                             {2, {"mesh.tp=2", "train.micro_batch=6"}},
                                                             {2, {"mesh.pp=2", "train.micro_batch=6"}}}) {
    train_on(ranks, options("many", together({{"train.steps=2"}, arrangement})));
    const nlohmann::json line = lines("many").back();
    const auto predicted = line["predicted_memory_bytes"].get<double>();
    EXPECT_NEAR(line["peak_memory_bytes"].get<double>() / predicted, 1, 0.03) << arrangement.front();
    std::filesystem::remove_all(runs_ / "many");
  }
}

}  // namespace
}  // namespace caravan::testing::preference_test
