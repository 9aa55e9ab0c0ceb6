// What a run takes of the model that it starts from: its head if that says the same, its classes, its first token.
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/formats/peft/peft.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/generate/answers.h"
#include "caravan/models/model.h"
#include "caravan/train/dataset/task_dataset.h"
#include "caravan/train/model/import.h"
#include "tests/formats/small_models.h"
#include "tests/nn/tiny.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::task_sources_test {
namespace {

using ::testing::HasSubstr;

NamedTensors values_of(const ModelConfig& config) {
  const at::NoGradGuard no_grad;
  const auto model = whole_model(config, 3);
  NamedTensors values;
  for (Parameter* parameter : model->parameters()) {
    values.emplace_back(parameter->name(), parameter->sharded().detach());
  }
  return values;
}

class TaskSources : public ::testing::Test {
 protected:
  TaskSources() {
    std::filesystem::create_directory(runs_ / "bert");
    std::filesystem::copy_file(fixture("families/bert_uncased.json"), runs_ / "bert/tokenizer.json");
    write_records("records.jsonl", {"c", "a", "b"});
    write_records("others.jsonl", {"x", "y", "z"});
    write_records("numbers.jsonl", {"2", "0", "1"});
  }

  void write_records(const std::string& name, const std::vector<std::string>& labels) {
    std::string records;
    for (int i = 0; i < 90; ++i) {
      const std::string text = "the landlord " + std::string(i % 2 == 0 ? "would look" : "could go") + " over";
      records += nlohmann::json{{"text", text}, {"label", labels[i % 5 == 0 ? 0 : i % 2 == 0 ? 1 : 2]}}.dump() + "\n";
    }
    write_file(runs_ / name, records);
  }

  /// A step so small that weights stay what they were.
  TrainOptions options(const std::string& kind, const std::string& dir, std::vector<std::string> set) const {
    set.insert(set.begin(),
               {"data.tokenizer=\"" + (runs_ / "bert/tokenizer.json").string() + "\"", "model.dropout=0",
                "data.validation_fraction=0.3", "train.steps=1", "optimizer.lr=1e-12", "optimizer.warmup_steps=0"});
    Architecture arch = find_architecture(kind)->base.arch;
    arch.name = kind;
    return {.recipe = runs_.recipe(arch, dir, set), .folders = runs_.folders()};
  }
  std::vector<std::string> classify(const std::string& records) const {
    return {"data.task=classify", "data.text=" + (runs_ / records).string()};
  }
  std::string from(const std::string& dir) const { return "train.init_from=" + (runs_ / dir).string(); }

  bool is_same(const std::string& tensor, const std::string& a, const std::string& b) const {
    const auto ours = checkpoint_tensors(runs_ / a), theirs = checkpoint_tensors(runs_ / b);
    return at::allclose(ours.at(tensor), theirs.at(tensor), 1e-5, 1e-7);
  }
  std::string recipe_of(const std::string& dir) const { return read_file(runs_ / dir / "recipe.toml"); }

  TinyRuns runs_;
};

TEST_F(TaskSources, TheSameClassesKeepTheHeadAndItsOrder) {
  train_on(1, options("llama", "first", together({classify("records.jsonl"), {R"(data.classes=["b", "c", "a"])"}})));
  train_on(2, options("llama", "second", together({classify("records.jsonl"), {from("first")}})));
  EXPECT_THAT(recipe_of("second"), HasSubstr(R"(classes = ["b", "c", "a"])"));
  EXPECT_TRUE(is_same("head.weight", "second", "first"));
  const std::string config = CheckpointReader(find_checkpoint(runs_ / "second")).info().model;
  EXPECT_EQ(parse_special_tokens(config, "manifest").classes, (std::vector<std::string>{"b", "c", "a"}));

  train_on(1, options("llama", "third", together({classify("others.jsonl"), {from("first"), "train.seed=8"}})));
  EXPECT_THAT(recipe_of("third"), HasSubstr(R"(classes = ["x", "y", "z"])"));
  EXPECT_FALSE(is_same("head.weight", "third", "first")) << "as many classes, but others";
  EXPECT_TRUE(is_same("embedding.token.weight", "third", "first"));
  EXPECT_TRUE(is_same("head.norm.weight", "third", "first"));

  // Classes without names are known by their numbers; records may have such names, too.
  write_records("labels.jsonl", {"LABEL_2", "LABEL_0", "LABEL_1"});
  train_on(1, options("llama", "unnamed", classify("labels.jsonl")));
  for (const std::string records : {"labels.jsonl", "numbers.jsonl"}) {
    const std::string name = "of-" + records;
    TrainOptions run = options("llama", name, together({classify(records), {from("unnamed"), "train.seed=8"}}));
    train_on(1, run);
    EXPECT_TRUE(is_same("head.weight", name, "unnamed")) << records;
    run.recipe.train.steps = 2;
    run.resume = true;
    run.recipe.train.init_from.clear();
    EXPECT_NO_THROW(train_on(1, run)) << records;
  }
}

TEST_F(TaskSources, OfAnotherTaskTheHeadIsNew) {
  const std::string text = "data.text=" + (runs_ / "text.txt").string();
  train_on(1, options("bert", "masked", {"data.task=masked", text, "train.seed=5"}));
  train_on(2, options("bert", "classes", together({classify("records.jsonl"), {from("masked")}})));
  EXPECT_TRUE(is_same("embedding.token.weight", "classes", "masked"));
  EXPECT_FALSE(is_same("head.transform.weight", "classes", "masked")) << "a pooler, which tokens do not have";
  // Initial values of another seed.
  train_on(1, options("bert", "again", {"data.task=masked", text, from("classes"), "train.seed=8"}));
  EXPECT_FALSE(is_same("head.transform.weight", "again", "classes"));
  train_on(1, options("bert", "others", together({classify("others.jsonl"), {from("classes"), "train.seed=9"}})));
  EXPECT_TRUE(is_same("head.transform.weight", "others", "classes"));
  EXPECT_FALSE(is_same("head.weight", "others", "classes"));
}

TEST_F(TaskSources, ClassesThatTheRecipeNames) {
  const auto run = [&](const std::string& set) {
    return options("llama", "run", together({classify("records.jsonl"), {set}}));
  };
  const auto dataset = [&](const std::string& set) { return open_dataset(run(set).recipe.data, runs_.folders()); };
  EXPECT_EQ(dataset(R"(data.classes=["c", "b", "a", "d"])").class_names,
            (std::vector<std::string>{"c", "b", "a", "d"}));
  EXPECT_THAT(message_of<DataError>([&] { dataset(R"(data.classes=["c", "b"])"); }),
              HasSubstr("its label a is none of the 2 classes"));
  EXPECT_THAT(message_of<UsageError>([&] { run(R"(data.classes=["c", "c"])"); }), HasSubstr("names a class twice"));
  EXPECT_THAT(message_of<UsageError>([&] { run("data.classes=c"); }), HasSubstr("two or more"));
  EXPECT_EQ(run(R"(data.classes=["c", "b", "a", "d"])").recipe.model.classes, 4);
  EXPECT_EQ(run("data.classes=[]").recipe.model.classes, 2) << "until the data tells";
  EXPECT_THAT(message_of<UsageError>([&] { train_on(1, run("model.classes=5")); }),
              HasSubstr("is 5, but the data has 3 classes"));
}

/// A head of classes belongs to no base model: it is trained with the adapters, and saved with them.
TEST_F(TaskSources, AdaptersOfClassesTrainTheirHead) {
  const std::string text = "data.text=" + (runs_ / "text.txt").string();
  train_on(1, options("bert", "masked", {"data.task=masked", text}));
  const std::vector<std::string> lora{from("masked"), "lora.rank=2", "optimizer.lr=0.01", "train.steps=2"};
  train_on(2, options("bert", "adapted", together({classify("records.jsonl"), lora})));
  train_on(1, options("bert", "untrained", together({classify("records.jsonl"), {from("masked")}})));
  EXPECT_TRUE(is_same("embedding.token.weight", "adapted", "masked"));
  EXPECT_FALSE(is_same("head.weight", "adapted", "untrained"));
  EXPECT_FALSE(is_same("head.transform.weight", "adapted", "untrained"));
  const auto tensors = checkpoint_tensors(runs_ / "adapted");
  const auto has_moments = [&](const std::string& name) {
    return std::ranges::any_of(tensors, [&](const auto& one) {
      return one.first.starts_with("optimizer") && one.first.find(name) != std::string::npos;
    });
  };
  EXPECT_TRUE(has_moments("head.weight"));
  EXPECT_FALSE(has_moments("embedding.token.weight"));
}

/// Folders of base models, as those of sentence-transformers: embeddings, and a start for classifiers.
TEST_F(TaskSources, OfABaseModelTheHeadIsNew) {
  const Tokenizer tokenizer = Tokenizer::load(runs_ / "bert/tokenizer.json");
  ModelConfig config = small_model(
      *find_architecture("bert"),
      {.layers = 2, .width = 16, .heads = 4, .context = 8, .vocabulary = tokenizer.vocab_size(), .hidden = 24});
  const std::filesystem::path folder = runs_ / "base";
  write_huggingface(folder, config, values_of(config), tokenizer, {});
  nlohmann::json json = nlohmann::json::parse(read_file(folder / "config.json"));
  json["architectures"] = {"BertModel"};
  write_file(folder / "config.json", json.dump());
  config.classes = 3;
  const NamedTensors values = values_of(config);
  NamedTensors theirs = to_huggingface(config, values);
  std::erase_if(theirs, [](const auto& tensor) { return tensor.first.starts_with("classifier"); });
  for (auto& [name, tensor] : theirs) name = name.substr(name.find('.') + 1);  // without "bert."
  write_tensors(folder / "model.safetensors", theirs, {{"format", "pt"}});

  run_thread_ranks(1, [&](const auto& world) {
    LanguageModel loaded = load(folder, Mesh::create(world, {{"dp", 1}}));
    EXPECT_FALSE(loaded.has_head());
    const TextInput input{.text = "the landlord"};
    EXPECT_EQ(embed(loaded, input).size(), 16U);
    EXPECT_THAT(message_of<UsageError>([&] { fill_mask(loaded, {.text = "the [MASK]"}); }),
                HasSubstr("is a base model, without a head"));
  });
  EXPECT_THAT(message_of<DataError>([&] { read_huggingface(folder); }), HasSubstr("is a base model, without a head"));
  train_on(2, options("bert", "classes", together({classify("records.jsonl"), {from("base")}})));
  const auto trained = checkpoint_tensors(runs_ / "classes");
  for (const auto& [name, tensor] : values) {
    if (name == "head.weight" || name == "head.bias") continue;
    EXPECT_TRUE(at::allclose(trained.at(name), tensor, 1e-5, 1e-7)) << name;
  }
}

/// What transformers saves of other tasks: the head there is not the run's, whatever its names.
TEST_F(TaskSources, FoldersOfOtherTasksGiveAllButTheirHead) {
  const Tokenizer tokenizer = Tokenizer::load(runs_ / "bert/tokenizer.json");
  for (const char* kind : {"bert", "llama", "gpt2"}) {
    for (const int64_t classes : {0, 3}) {
      ModelConfig config{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = tokenizer.vocab_size()};
      set_architecture(config, *find_architecture(kind));
      config.tie_embeddings = std::string(kind) != "llama";
      config.classes = classes;
      const std::string name = fmt::format("{}-{}", kind, classes);
      const NamedTensors values = values_of(config);
      write_huggingface(runs_ / name, config, values, tokenizer, {.tokens = {.classes = {"p", "q", "r"}}, .files = {}});
      const std::string task = config.arch.is_causal ? "data.task=next" : "data.task=masked";
      const std::vector<std::string> others{task, "data.text=" + (runs_ / "text.txt").string()};
      const std::vector<std::string> usual{from(name),
                                           "train.steps=1",
                                           "train.global_batch=12",
                                           "optimizer.lr=1e-12",
                                           "optimizer.warmup_steps=0",
                                           "train.eval_every=0",
                                           "sample.tokens=0",
                                           "data.validation_fraction=0.3",
                                           "checkpoint.dir=" + (runs_ / (name + "-run")).string()};
      const Recipe recipe =
          parse_recipe("", "test", together({usual, classes == 0 ? classify("records.jsonl") : others}));
      const TrainOptions run{.recipe = recipe, .folders = runs_.folders()};
      train_on(2, run);
      const auto trained = checkpoint_tensors(runs_ / (name + "-run"));
      for (const auto& [parameter, tensor] : values) {
        if (!config.is_of_head(parameter)) {
          EXPECT_TRUE(at::allclose(trained.at(parameter), tensor, 1e-5, 1e-7)) << name << ' ' << parameter;
        }
      }
    }
  }
}

/// Adapters and the head that was trained with them come back from PEFT's format.
TEST_F(TaskSources, AHeadIsReadWithItsAdapters) {
  const std::string text = "data.text=" + (runs_ / "text.txt").string();
  train_on(1, options("bert", "masked", {"data.task=masked", text}));
  const std::vector<std::string> lora{from("masked"), "lora.rank=2", "optimizer.lr=0.01", "train.steps=2"};
  train_on(1, options("bert", "adapted", together({classify("records.jsonl"), lora})));
  const auto adapted = checkpoint_tensors(runs_ / "adapted");
  const CheckpointReader reader(find_checkpoint(runs_ / "adapted"));
  const ModelConfig config = parse_config_text(reader.info().model, "manifest");
  NamedTensors all;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) {
    all.emplace_back(parameter->name(), adapted.at(parameter->name()));
  }
  write_peft(runs_ / "peft", config, all, "masked");
  EXPECT_EQ(peft_classes(runs_ / "peft", without_adapters(config)), 3);
  const std::vector<std::string> adapter{from("masked"), "lora.adapter=" + (runs_ / "peft").string()};
  train_on(2, options("bert", "again", together({classify("records.jsonl"), adapter})));
  const auto again = checkpoint_tensors(runs_ / "again");
  for (const auto& [name, tensor] : all) {
    EXPECT_TRUE(at::allclose(again.at(name), tensor, 1e-5, 1e-7)) << name;
  }
  EXPECT_THAT(
      message_of<DataError>([&] {
        train_on(1, options("bert", "none",
                            together({classify("records.jsonl"), adapter, {R"(data.classes=["a", "b", "c", "d"])"}})));
      }),
      HasSubstr("use adapters of a model with as many classes"));
}

/// A run keeps its classes and the end of its prompts when it is resumed, and its tokenizer's special tokens.
TEST_F(TaskSources, ResumeKeepsWhatTheRunHasLearned) {
  const auto config_of = [&](const std::string& dir) {
    return parse_special_tokens(CheckpointReader(find_checkpoint(runs_ / dir)).info().model, dir);
  };
  write_file(runs_ / "bert/tokenizer_config.json", R"({"eos_token": "[SEP]", "mask_token": "[MASK]"})");
  std::string pairs;
  for (int i = 0; i < 90; ++i)
    pairs += R"({"source": "the landlord", "target": "the room"})"
             "\n";
  write_file(runs_ / "pairs.jsonl", pairs);
  const std::vector<std::string> set{"data.task=pairs", "data.text=" + (runs_ / "pairs.jsonl").string()};
  TrainOptions run = options("llama", "pairs", together({set, {"train.steps=2", "checkpoint.every=1"}}));
  run.stop_after = 1;
  train_on(1, run);
  EXPECT_THAT(read_file(runs_ / "pairs/tokenizer_config.json"), HasSubstr("[MASK]"));
  const SpecialTokens before = config_of("pairs");
  EXPECT_TRUE(before.prompt_end.has_value());
  run.stop_after.reset();
  run.resume = true;
  train_on(2, run);
  EXPECT_EQ(config_of("pairs"), before);

  const std::vector<std::string> classes{R"(data.classes=["c", "b", "a"])", "train.steps=2", "checkpoint.every=1"};
  TrainOptions first = options("llama", "classes", together({classify("records.jsonl"), classes}));
  first.stop_after = 1;
  train_on(1, first);
  TrainOptions second = options("llama", "classes", together({classify("records.jsonl"), classes}));
  second.resume = true;
  second.recipe.data.task.classes = {"a", "b", "c"};
  EXPECT_THAT(message_of<UsageError>([&] { train_on(1, second); }), HasSubstr("data."));
}

/// Targets begin with the token that the model's config.json names, not with the pad token.
TEST_F(TaskSources, TheFirstTokenOfTargetsIsTheModels) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  const ModelConfig config = small_model(
      *find_architecture("t5"), {.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 256, .hidden = 24});
  write_huggingface(runs_ / "t5", config, values_of(config), tokenizer,
                    {.tokens = {.pad = 5, .decoder_start = 9}, .files = {}});
  Recipe recipe;
  recipe.model = config;
  EXPECT_EQ(row_settings(recipe).decoder_start, std::nullopt);
  recipe.train.init_from = (runs_ / "t5").string();
  EXPECT_EQ(row_settings(recipe).decoder_start, 9);
  const std::filesystem::path checkpoint = runs_ / "run/step_000000";
  run_thread_ranks(1, [&](const auto& world) {
    import_run(read_huggingface(runs_ / "t5"), runs_ / "run", Mesh::create(world, {{"dp", 1}}));
  });
  recipe.train.init_from.clear();
  EXPECT_EQ(row_settings(recipe, checkpoint).decoder_start, 9);
}

}  // namespace
}  // namespace caravan::testing::task_sources_test
