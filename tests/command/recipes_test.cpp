// The shipped recipes, each at a small size.
#include <gmock/gmock.h>

#include "tests/command/command.h"
#include "tests/needs.h"

namespace caravan::recipes_test {
namespace {

class RecipesTest : public CommandTest {
 protected:
  std::string recipe(const std::string& name) const { return CARAVAN_SOURCE_DIR "/recipes/" + name + ".toml"; }
  /// Trains by the recipe with smaller sizes; its run is path(name).
  Result run_recipe(const std::string& name, const std::vector<std::string>& overrides) const {
    testing::needs_chosen_in(text_of(recipe(name)));
    Words words{"train", recipe(name), "--ranks", "2"};
    const Words smaller = set({"train.steps=24", "train.global_batch=8", "train.eval_batches=2",
                               "optimizer.warmup_steps=2", "checkpoint.dir=" + path(name)});
    const Words more = set(overrides);
    words.insert(words.end(), smaller.begin(), smaller.end());
    words.insert(words.end(), more.begin(), more.end());
    return caravan(words);
  }
  void expect_learned(const std::string& name) const {
    const auto lines = log(name);
    EXPECT_LT(lines.back().at("val_loss").get<double>(), lines.front().at("loss").get<double>() - 0.1) << name;
  }
  static std::string text() {
    std::string all;
    for (int i = 0; i < 600; ++i) all += "ROMEO: one day " + std::to_string(i % 7) + " girls went to the sea.\n";
    return all;
  }
};

TEST_F(RecipesTest, ShakespeareLearns) {
  file("shakespeare.txt", text());
  const Result result =
      run_recipe("shakespeare", {"data.text=" + path("shakespeare.txt"), "model.layers=1", "model.width=32",
                                 "model.heads=2", "model.context=32", "sample.tokens=4"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_learned("shakespeare");
}

TEST_F(RecipesTest, TinyStoriesAreStreamed) {
  std::string lines;
  for (int i = 0; i < 400; ++i) {
    lines +=
        nlohmann::json{{"text", "Once upon a time " + std::to_string(i % 9) + " cats sat on a mat."}}.dump() + "\n";
  }
  std::filesystem::create_directories(path("tinystories"));
  file("tinystories/a.jsonl", lines);
  file("tinystories/b.jsonl", lines);
  const Result result =
      run_recipe("tinystories", {"data.text=" + path("tinystories"), "data.tokenizer={train = 300}",
                                 "data.validation_fraction=0.1", "model.layers=1", "model.width=32", "model.heads=2",
                                 "model.hidden=64", "model.context=32", "sample.tokens=4", "log.csv=true"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_learned("tinystories");
}

TEST_F(RecipesTest, LargeLayersTrainInTiles) {
  file("text.txt", text());
  const Result result =
      run_recipe("large_layers",
                 {"data.text=" + path("text.txt"), "data.tokenizer={train = 300}", "model.layers=1", "model.width=32",
                  "model.heads=2", "model.hidden=64", "model.context=32", "optimizer.lr=0.01", "sample.tokens=4"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_learned("large_layers");
}

TEST_F(RecipesTest, StateRestsOnDisk) {
  file("text.txt", text());
  const Result result =
      run_recipe("offload", {"data.text=" + path("text.txt"), "model.layers=2", "model.width=32", "model.heads=2",
                             "model.context=32", "optimizer.lr=0.01", "offload.disk_dirs=" + path("tiers"),
                             "offload.device_budget=64M", "offload.prefetch=2", "sample.tokens=4"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_learned("offload");
  EXPECT_TRUE(std::filesystem::is_empty(path("tiers")));
}

TEST_F(RecipesTest, ChunksLearn) {
  file("text.txt", text());
  const Result result = run_recipe(
      "chunks", {"data.text=" + path("text.txt"), "data.tokenizer=bytes", "model.vocabulary=0", "model.layers=3",
                 "model.width=32", "model.heads=2", "model.context=32", "train.micro_batch=2", "optimizer.lr=0.01",
                 "offload.device_budget=64M", "sample.tokens=4"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_learned("chunks");
}

TEST_F(RecipesTest, AdaptersOfSmolLm2LearnChats) {
  ASSERT_EQ(train("base", 1,
                  set({"train.steps=1", "data.tokenizer={train = 300}", "model.kind=llama", "model.kv_heads=1",
                       "model.context=64"}))
                .code,
            0);
  ASSERT_EQ(caravan({"export", path("base")}).code, 0);
  file("base/huggingface/chat_template.jinja",
       "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}");
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines += nlohmann::json{{"messages",
                             {{{"role", "user"}, {"content", "Say " + std::to_string(i)}},
                              {{"role", "assistant"}, {"content", "aye aye captain"}}}}}
                 .dump() +
             "\n";
  }
  file("chats.jsonl", lines);
  const Result result =
      run_recipe("smollm2_finetune", {"train.init_from=" + path("base/huggingface"), "model.context=64",
                                      "data.text=" + path("chats.jsonl"), "optimizer.lr=0.02", "checkpoint.every=8"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_learned("smollm2_finetune");
  EXPECT_EQ(caravan({"export", path("smollm2_finetune"), "--adapter", "--base", "SmolLM2-135M"}).code, 0);
}

}  // namespace
}  // namespace caravan::recipes_test
