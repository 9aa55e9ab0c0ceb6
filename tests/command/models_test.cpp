// export, import and generate of a trained model; tokenizer; inspect.
#include <gmock/gmock.h>
#include <regex>

#include "caravan/base/text.h"
#include "tests/command/command.h"
#include "tests/needs.h"

namespace caravan::models_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ModelsTest : public CommandTest {
 protected:
  std::string greedy(const std::string& source) const {
    const Result result =
        caravan({"generate", source, "--prompt", "The whale", "--tokens", "24", "--temperature", "0"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, StartsWith("The whale"));
    EXPECT_GT(result.out.size(), std::string("The whale").size() + 10);
    return result.out;
  }
  /// What inspect prints before the other choices, of which it may leave some out.
  static std::string facts_of(const std::string& out) {
    return out.substr(0, out.find("\ncost of changing one choice"));
  }
  /// The number after `label` in what inspect printed.
  static double number(const std::string& text, const std::string& label) {
    std::smatch found;
    const std::regex pattern(label + " +([0-9]+)");
    if (!std::regex_search(text, found, pattern)) {
      ADD_FAILURE() << label << " is not in:\n" << text;
      return -1;
    }
    return std::stod(found[1]);
  }
};

class Kinds : public ModelsTest, public ::testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(Kinds, ExportAndImportKeepEveryBit) {
  testing::needs({"ddp"});
  std::vector<std::string> overrides = GetParam();
  overrides.insert(overrides.end(), {"optimizer.lr=0.01", "train.steps=30"});
  ASSERT_EQ(train("run", 2, set(overrides)).code, 0);
  const Result exported = caravan({"export", path("run")});
  ASSERT_EQ(exported.code, 0) << exported.err;
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(path("run/huggingface/") + name)) << name;
  }
  const Result imported = caravan({"import", path("run/huggingface"), "--out", path("imported")});
  ASSERT_EQ(imported.code, 0) << imported.err;
  auto parameters = tensors(folder() / "run/step_000030");
  std::erase_if(parameters, [](const auto& entry) { return entry.first.starts_with("optimizer."); });
  EXPECT_TRUE(tensors(folder() / "imported/step_000000") == parameters);

  const std::string text = greedy(path("run"));
  EXPECT_EQ(greedy(path("run/huggingface")), text);
  EXPECT_EQ(greedy(path("imported")), text);
  EXPECT_EQ(greedy(path("run/step_000030")), text);

  const Result again = caravan({"export", path("imported"), "--out", path("again")});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(tensors(folder() / "again") == tensors(folder() / "run/huggingface"));
}

INSTANTIATE_TEST_SUITE_P(
    All, Kinds,
    ::testing::Values(std::vector<std::string>{"model.kind=gpt2"},
                      std::vector<std::string>{"model.kind=llama", "model.kv_heads=1", "model.tie_embeddings=false",
                                               "data.tokenizer={train = 300}"},
                      std::vector<std::string>{"model.kind=llama", "moe.experts=4"},
                      std::vector<std::string>{"model.kind=llama", "moe.experts=4", "moe.normalize=false",
                                               "moe.shared=24", "moe.shared_gate=true"}));

TEST_F(ModelsTest, ExportOfAModelThatTransformersLacksWritesNothing) {
  ASSERT_EQ(train("run", 1, set({"train.steps=0", "model.kind=gpt2", "moe.experts=2"})).code, 0);
  const Result refused = caravan({"export", path("run")});
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err,
              ::testing::AllOf(HasSubstr("moe.experts = 2, but gpt2 has 0"), HasSubstr("the nearest is gpt2")));
  EXPECT_FALSE(std::filesystem::exists(path("run/huggingface")));
  EXPECT_EQ(caravan({"generate", path("run"), "--tokens", "1"}).code, 0);
}

TEST_F(ModelsTest, ExportOverwritesOnlyItsOwnFolder) {
  ASSERT_EQ(train("run", 1, set({"train.steps=0"})).code, 0);
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  std::filesystem::copy(path("run/huggingface"), path("theirs"));
  const auto stale = {"generation_config.json", "chat_template.jinja", "special_tokens_map.json",
                      "model-00001-of-00002.safetensors", "model.safetensors.index.json"};
  for (const char* name : stale) file(std::string("run/huggingface/") + name, "{}");
  file("run/huggingface/mine.txt", "kept");
  for (const Words& words :
       {Words{"export", path("run")}, Words{"export", path("run/step_000000"), "--out", path("run/huggingface/")}}) {
    const Result again = caravan(words);
    ASSERT_EQ(again.code, 0) << again.err;
    for (const char* name : stale) EXPECT_FALSE(std::filesystem::exists(path("run/huggingface/") + name)) << name;
    EXPECT_TRUE(std::filesystem::exists(path("run/huggingface/mine.txt")));
  }

  const auto refused = [this](const Words& words, const std::string& what) {
    const Result result = caravan(words);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, ::testing::AllOf(HasSubstr(what), HasSubstr("name a new folder")));
  };
  file("theirs/config.json", "precious");
  refused({"export", path("theirs")}, "theirs: is a Hugging Face folder, not a run");
  refused({"export", path("run"), "--out", path("theirs/")},
          "theirs/: is a Hugging Face folder already: it holds config.json, model.safetensors, ");
  EXPECT_EQ(text_of(path("theirs/config.json")), "precious");
  refused({"export", path("run/step_000000"), "--out", path("run")}, "run: is not an empty folder: it holds ");
  std::filesystem::create_directory(path("empty"));
  EXPECT_EQ(caravan({"export", path("run"), "--out", path("empty")}).code, 0);
}

/// Also if the newest run could be exported instead.
TEST_F(ModelsTest, ExportOfARunThatIsNotThereWritesNothing) {
  std::filesystem::create_directory(path("runs"));
  ASSERT_EQ(train("runs/tiny-1", 1, set({"train.steps=0"})).code, 0);
  for (const char* name : {"typo", "runs/typo", "text.txt"}) {
    const Result result = run({"env", "-C", folder().string(), program(), "export", name});
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, ::testing::AllOf(HasSubstr(name), HasSubstr(" is not "), HasSubstr("--out FOLDER")));
  }
  EXPECT_FALSE(std::filesystem::exists(path("typo")));
  EXPECT_FALSE(std::filesystem::exists(path("runs/typo")));
}

TEST_F(ModelsTest, AnImportedModelContinuesToTrain) {
  testing::needs({"adamw"});
  ASSERT_EQ(train("run", 1).code, 0);
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  ASSERT_EQ(caravan({"import", path("run/huggingface"), "--out", path("imported")}).code, 0);
  Words words{"train", path("imported/recipe.toml"), "--ranks", "2", "--resume"};
  for (const std::string& word : set({"data.text=" + path("text.txt"), "train.steps=2", "train.global_batch=4",
                                      "sample.tokens=0", "checkpoint.every=1", "checkpoint.keep=1"})) {
    words.push_back(word);
  }
  const Result more = caravan(words);
  ASSERT_EQ(more.code, 0) << more.err;
  auto steps = log("imported");
  std::erase_if(steps, [](const auto& line) { return !line.contains("loss"); });  // notes on what has changed
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_TRUE(std::filesystem::exists(path("imported/step_000000/manifest.json"))) << "imported weights are pruned";
  EXPECT_LT(steps.front().at("loss"), log("run").front().at("loss"));
}

TEST_F(ModelsTest, GenerateDrawsTheSameForASeed) {
  ASSERT_EQ(train("run", 1).code, 0);
  const auto draw = [this](const char* seed) {
    const Result result = caravan({"generate", path("run"), "--prompt", "Ahab", "--tokens", "20", "--top-k", "20",
                                   "--top-p", "0.9", "--seed", seed});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(draw("1"), draw("1"));
  EXPECT_NE(draw("1"), draw("2"));
}

TEST_F(ModelsTest, GenerateReadsStandardInputOnRequest) {
  ASSERT_EQ(train("run", 1, set({"train.steps=0"})).code, 0);
  const Words words{"generate", path("run"), "--tokens", "0"};
  Words from_input = words;
  from_input.insert(from_input.end(), {"--prompt", "-"});
  EXPECT_EQ(caravan(from_input, file("prompt.txt", "two\nlines\n\n")).out, "two\nlines\n");
  EXPECT_EQ(caravan(words, path("prompt.txt")).out, "Call me Ishmael.\n");
  // A loop keeps its lines, and a pipe that never ends is not waited for.
  Words loop{"sh", "-c", "while read line; do echo \"$line\"; \"$@\"; done", "sh", program()};
  loop.insert(loop.end(), words.begin(), words.end());
  EXPECT_EQ(run(loop, path("prompt.txt")).out, "two\nCall me Ishmael.\nlines\nCall me Ishmael.\n\nCall me Ishmael.\n");
  Words pipe{"sh", "-c", "echo lost | \"$@\"", "sh", program()};
  pipe.insert(pipe.end(), words.begin(), words.end());
  const Result ignored = run(pipe);
  EXPECT_EQ(ignored.out, "Call me Ishmael.\n");
  EXPECT_THAT(ignored.err, HasSubstr("--prompt - reads the prompt from it"));
}

/// What a model's folder says about its text survives import, training and export, and generate obeys it.
TEST_F(ModelsTest, TextSettingsOfAnImportedModelAreKeptAndUsed) {
  ASSERT_EQ(train("run", 1, set({"train.steps=30", "optimizer.lr=0.01"})).code, 0);
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  const std::string theirs = path("run/huggingface");
  const std::string text = greedy(theirs).substr(std::string("The whale").size());
  const int end = static_cast<unsigned char>(text[4]);
  const size_t first = text.find(text[4]);
  auto config = nlohmann::json::parse(text_of(theirs + "/config.json"));
  EXPECT_TRUE(config.at("eos_token_id").is_null());
  config["eos_token_id"] = {254, 255};
  config["bos_token_id"] = 65;
  config["pad_token_id"] = 66;
  file("run/huggingface/config.json", config.dump());
  const std::string generation =
      R"({"do_sample": false, "num_beams": 4, "eos_token_id": [255, )" + std::to_string(end) + "]}";
  file("run/huggingface/generation_config.json", generation);
  file("run/huggingface/chat_template.jinja", "{{ messages }}");

  ASSERT_EQ(caravan({"import", theirs, "--out", path("imported")}).code, 0);
  Words on{"train", path("imported/recipe.toml"), "--ranks", "2", "--resume"};
  for (const std::string& word : set({"data.text=" + path("text.txt"), "train.steps=1", "train.global_batch=2",
                                      "optimizer.lr=0", "optimizer.warmup_steps=0", "sample.tokens=0"})) {
    on.push_back(word);
  }
  const Result trained = caravan(on);
  ASSERT_EQ(trained.code, 0) << trained.err;
  ASSERT_EQ(caravan({"export", path("imported")}).code, 0);
  const std::string out = path("imported/huggingface");
  const auto exported = nlohmann::json::parse(text_of(out + "/config.json"));
  for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id"}) EXPECT_EQ(exported.at(key), config.at(key));
  EXPECT_EQ(text_of(out + "/generation_config.json"), generation);
  EXPECT_EQ(text_of(out + "/chat_template.jinja"), "{{ messages }}");

  for (const std::string& source : {theirs, path("imported"), out}) {
    const Words words{"generate", source, "--raw", "--prompt", "The whale", "--tokens", "24"};
    const Result result = caravan(words);
    EXPECT_EQ(result.out, "The whale" + text.substr(0, first) + "\n") << source;
    EXPECT_THAT(result.err, HasSubstr("not used from generation_config.json: num_beams = 4"));
    Words drawn = words;
    drawn.insert(drawn.end(), {"--temperature", "5"});
    EXPECT_NE(caravan(drawn).out, result.out) << "the command line comes first";
  }
}

TEST_F(ModelsTest, GenerateAndImportRefuse) {
  ASSERT_EQ(train("run", 1, set({"train.steps=0"})).code, 0);
  const auto refused = [this](const Words& words, int code, const std::string& word) {
    const Result result = caravan(words);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, ::testing::AllOf(HasSubstr(word), HasSubstr("do: ")));
  };
  const std::string source = path("run");
  refused({"generate", source, "--temperature", "-1"}, 2, "temperature: -1 is out of range");
  refused({"generate", source, "--top-p", "0"}, 2, "top_p: 0 is out of range");
  refused({"generate", source, "--tokens", "-1"}, 2, "--tokens: -1 is negative");
  refused({"generate", source, "--prompt", ""}, 2, "prompt: is empty");
  refused({"generate", source, "--prompt", "\xff"}, 3, "is not UTF-8");
  refused({"import", path("nothere")}, 3, "nothere/config.json");
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  file("run/huggingface/config.json", R"({"model_type": "roberta"})");
  refused({"import", path("run/huggingface")}, 3,
          "model_type: is 'roberta'; the supported types are gpt2, llama, mistral, ");
  std::filesystem::remove(path("run/tokenizer.json"));
  refused({"generate", source}, 3, "run/tokenizer.json: cannot be opened");
}

TEST_F(ModelsTest, TokenizerRoundTrips) {
  const Result made =
      caravan({"tokenizer", "train", path("text.txt"), "--vocabulary", "400", "--out", path("tokens.json")});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("400 tokens"));
  const std::string text = "Call me Ishmael.\n  na\xc3\xafve \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x90\x8b, 1851\n";
  for (const std::string& tokenizer : {std::string("bytes"), path("tokens.json")}) {
    const Result encoded = caravan({"tokenizer", "encode", tokenizer, text});
    ASSERT_EQ(encoded.code, 0) << encoded.err;
    const auto ids = std::count(encoded.out.begin(), encoded.out.end(), ' ') + 1;
    EXPECT_LE(static_cast<size_t>(ids), text.size());
    EXPECT_EQ(static_cast<size_t>(ids) == text.size(), tokenizer == "bytes");
    EXPECT_EQ(caravan({"tokenizer", "encode", tokenizer}, file("in.txt", text)).out, encoded.out);
    const Result decoded = caravan({"tokenizer", "decode", tokenizer}, file("ids.txt", encoded.out));
    EXPECT_EQ(decoded.out, text + "\n") << decoded.err;
  }
  for (const auto& [ids, code] :
       {std::pair{"1 2 x", 2}, std::pair{"1.5", 2}, std::pair{"99999", 3}, std::pair{"-5", 3}}) {
    const Result refused = caravan({"tokenizer", "decode", path("tokens.json"), ids});
    EXPECT_EQ(refused.code, code) << ids << "\n" << refused.err;
  }
  EXPECT_EQ(caravan({"tokenizer", "train", path("text.txt"), "--vocabulary", "5", "--out", path("x.json")}).code, 2);
  EXPECT_EQ(caravan({"tokenizer", "encode", "bytes", "\xff"}).code, 3);
  EXPECT_EQ(caravan({"tokenizer", "encode", path("nothere"), "x"}).code, 3);
  EXPECT_FALSE(std::filesystem::exists(path("x.json")));
}

TEST_F(ModelsTest, InspectPredictsTheRun) {
  testing::needs({"ddp"});
  for (const int ranks : {2, 3}) {
    const std::string run = "run" + std::to_string(ranks);
    Words words = tiny(run, ranks, set({"train.micro_batch=2"}));
    const Result trained = caravan(words);
    ASSERT_EQ(trained.code, 0) << trained.err;
    words.front() = "inspect";
    const Result inspected = caravan(words);
    ASSERT_EQ(inspected.code, 0) << inspected.err;
    const std::string equation = "global_batch 12 = dp " + std::to_string(ranks) + " x micro_batch 2 x accumulation " +
                                 std::to_string(6 / ranks);
    EXPECT_THAT(inspected.out, HasSubstr(equation));
    EXPECT_THAT(trained.out, HasSubstr(equation));
    for (const std::string& out : {trained.out, inspected.out}) {
      EXPECT_THAT(out, HasSubstr("\nnote      optimizer.warmup_steps is 50, and the run has 6 steps"));
    }
    const auto line = log(run).back();
    EXPECT_EQ(number(inspected.out, "tokens of the run"), line.at("tokens").get<double>());
    EXPECT_EQ(number(inspected.out, "bytes sent"), line.at("bytes_sent").get<double>());
    const double peak = line.at("peak_memory_bytes").get<double>();
    EXPECT_GE(number(inspected.out, "in all"), peak);
    EXPECT_LE(number(inspected.out, "in all"), 1.1 * peak);
    EXPECT_EQ(line.at("predicted_memory_bytes").get<double>(), number(inspected.out, "in all"));
    EXPECT_THAT(inspected.out, StartsWith("fits: "));
    EXPECT_THAT(inspected.out, HasSubstr(" per rank at most, rank 0 in "));
    const double flops = line.at("model_flops_per_second").get<double>() / line.at("tokens_per_second").get<double>();
    EXPECT_NEAR(number(inspected.out, "per token"), flops, 1);
    const size_t parameters = [&] {
      size_t bytes = 0;
      for (const auto& [name, value] : tensors(folder() / run / "step_000006")) {
        if (!name.starts_with("optimizer.")) bytes += value.size();
      }
      return bytes / 4;
    }();
    EXPECT_EQ(number(inspected.out, "  parameters"), static_cast<double>(parameters));
    // The recipe that it prints gives the same report.
    words.emplace_back("--recipe");
    const Result printed = caravan(words);
    EXPECT_THAT(printed.out, HasSubstr("\n[train]\n"));
    const Result reread = caravan({"inspect", file("printed.toml", printed.out), "--ranks", std::to_string(ranks)});
    EXPECT_EQ(facts_of(reread.out), facts_of(inspected.out)) << reread.err;
  }
}

TEST_F(ModelsTest, InspectPricesExperts) {
  const Result result =
      caravan({"inspect", "--ranks", "4", "--set", "moe.experts=8", "mesh.ep=2", "moe.balance=batch", "model.width=64",
               "model.heads=4", "model.context=128", "train.global_batch=8", "train.micro_batch=2"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nnote      experts are rehearsed with equal loads, 4 of 8 on each rank; "
                                    "if tokens choose those of one rank as often as they can, it needs "));
  // 4 layers, 2 micro-batches, each counted first: copies of 128 tokens go there and back, two of each, and so do their
  // gradients; half of them stay. Counts of 8 experts in int64 go with each forward.
  const int64_t copies = 4 * 2 * (3 * 2 * 128 * 2 * 64 * 4 / 2 + 2 * 8 * 8 / 2);
  EXPECT_THAT(result.out, ::testing::ContainsRegex("ep +all_to_all +[0-9]+ +" + std::to_string(copies) + " "));
  const Result dense = caravan({"inspect", "--ranks", "4", "--set", "train.global_batch=8"});
  ASSERT_EQ(dense.code, 0) << dense.err;
  EXPECT_EQ(dense.out.find("experts"), std::string::npos);
}

/// Communication within a host takes no link time, and the cost of changing one choice is that of the changed recipe.
TEST_F(ModelsTest, InspectPrintsTimesAndNeighbours) {
  testing::needs({"ddp"});
  Words words = tiny("run", 4, set({"mesh.tp=2", "train.micro_batch=3"}));
  words.front() = "inspect";
  words.insert(words.end(), {"--link", "1", "--per-host", "2"});
  const Result result = caravan(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::ContainsRegex("time of tp +in one host"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("time of dp +[0-9.]+ s"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("at 1 Gbit/s +[0-9.]+ s"));
  EXPECT_THAT(result.out, HasSubstr("caravan plan predicts a step"));
  const auto row = [](const std::string& out, const std::string& choice) {
    const size_t begin = out.find("  " + choice + " ");
    const std::string line = begin == std::string::npos ? "" : out.substr(begin, out.find('\n', begin) - begin);
    const size_t values = line.find_first_not_of(' ', 2 + choice.size());
    return values == std::string::npos ? "" : line.substr(values);
  };
  const std::vector<Words> choices{
      {"data_parallel.technique=zero1"}, {"memory.recompute=full"}, {"mesh.tp=1", "mesh.dp=4"}};
  for (const Words& changes : choices) {
    const std::string choice = join(changes);
    Words keys{"mesh.tp=2", "train.micro_batch=3"};
    keys.insert(keys.end(), changes.begin(), changes.end());
    Words other = tiny("run", 4, set(keys));
    other.front() = "inspect";
    other.insert(other.end(), {"--link", "1", "--per-host", "2"});
    const Result own = caravan(other);
    ASSERT_EQ(own.code, 0) << own.err;
    EXPECT_NE(row(result.out, choice), "") << result.out;
    EXPECT_EQ(row(result.out, choice), row(own.out, "this recipe")) << choice;
  }
}

TEST_F(ModelsTest, InspectTakesNumbersOfHardware) {
  for (const char* option : {"--link", "--memory"}) {
    for (const char* value : {"nan", "-NaN", "0", "2e6", "much"}) {
      const Result result = caravan({"inspect", option, value});
      EXPECT_EQ(result.code, 2) << option << " " << value;
      EXPECT_THAT(result.err, HasSubstr(option));
      EXPECT_THAT(result.err, HasSubstr(value));
    }
  }
}

TEST_F(ModelsTest, InspectReadsRunsAndCheckpoints) {
  ASSERT_EQ(train("run", 2, set({"checkpoint.every=3", "model.kind=llama"})).code, 0);
  const Result run = caravan({"inspect", path("run")});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("steps       6 of 6, loss "));
  EXPECT_THAT(run.out, HasSubstr("model       llama, 2 layers of width 64, "));
  EXPECT_THAT(run.out, HasSubstr("checkpoints 2\n  step_000006  step 6, "));
  EXPECT_THAT(run.out, HasSubstr("  step_000003  step 3, "));
  EXPECT_THAT(run.out, ::testing::EndsWith("\n" + text_of(path("run/recipe.toml"))));
  const Result checkpoint = caravan({"inspect", path("run/step_000003")});
  ASSERT_EQ(checkpoint.code, 0) << checkpoint.err;
  EXPECT_THAT(checkpoint.out, HasSubstr("contents    step 3, "));
  EXPECT_THAT(checkpoint.out, HasSubstr("kind = \"llama\""));

  std::filesystem::remove(path("run/step_000006/rank_00000.safetensors"));
  const Result damaged = caravan({"inspect", path("run")});
  EXPECT_EQ(damaged.code, 0) << damaged.err;
  EXPECT_THAT(damaged.out, HasSubstr("  step_000006  DAMAGED: "));
  EXPECT_THAT(damaged.out, HasSubstr("  step_000003  step 3, "));
  const Result other = caravan({"inspect", folder().string()});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("is neither a run folder nor a checkpoint"));
  const Result options = caravan({"inspect", path("run"), "--ranks", "2"});
  EXPECT_EQ(options.code, 2);
  EXPECT_THAT(options.err, HasSubstr("do: inspect " + path("run/recipe.toml")));
}

/// inspect is what a user runs first to see whether a recipe works.
TEST_F(ModelsTest, InspectRefusesWhatTrainRefuses) {
  const std::vector<std::vector<std::string>> cases = {
      {"data.text=" + path("nothere.txt")},
      {"data.text=" + file("empty.txt", "")},
      {"data.text=" + file("latin1.txt", "caf\xe9 " + std::string(400, 'x'))},
      {"data.tokenizer=" + path("nothere.json")},
      {"model.vocabulary=10"},
      {"train.global_batch=13"},
      {"mesh.dp=5"},
      {"comm.backend=shm", "comm.algorithms=table.json"},
      {"comm.backend=nccl"},
      {"model.width=1048576", "train.micro_batch=1"},
  };
  for (const auto& overrides : cases) {
    Words words = tiny("refused", 2, set(overrides));
    const Result trained = caravan(words);
    words.front() = "inspect";
    const Result inspected = caravan(words);
    EXPECT_NE(trained.code, 0) << overrides.front();
    EXPECT_EQ(inspected.code, trained.code) << overrides.front() << "\n" << inspected.err << inspected.out;
    EXPECT_EQ(inspected.out, "");
  }
  // More ranks than this host may start are fine: they may be on other hosts.
  EXPECT_EQ(caravan({"inspect", "--ranks", "5000", "--set", "train.global_batch=5000"}).code, 0);
}

TEST_F(ModelsTest, InspectWarnsAsTrainDoesOfActivationsThatMayNotFit) {
  Words words = tiny("none", 2, set({"model.layers=100", "train.global_batch=1048576", "train.micro_batch=0"}));
  words.front() = "inspect";
  const Result result = caravan(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::StartsWith("does not fit: "));
  EXPECT_THAT(result.out, HasSubstr("\nnote      memory: lower train.micro_batch, or set it to \"auto\"\n"));
}

TEST_F(ModelsTest, InspectHoldsHugeNumbers) {
  const Result huge =
      caravan({"inspect", "--ranks", "1", "--set", "train.steps=1000000000000000000", "train.global_batch=1048576"});
  ASSERT_EQ(huge.code, 0) << huge.err;
  EXPECT_GT(number(huge.out, "tokens of the run"), 1e26);
  EXPECT_EQ(huge.out.find(" -"), std::string::npos) << huge.out;
}

}  // namespace
}  // namespace caravan::models_test
