// A run over any number of ranks and any back-end equals the run of one process.
#include <cmath>
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::train_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Case {
  std::string name;
  int ranks;
  std::vector<std::string> overrides;
};

class Ranks : public CommandTest, public ::testing::WithParamInterface<Case> {};

/// fp32 sums in another order differ by about 1e-7 in the first of the six steps and little more in the last.
constexpr double kTolerance = 1e-5;

TEST_P(Ranks, EqualOneProcessAtEveryStep) {
  const Result one = train("one", 1);
  ASSERT_EQ(one.code, 0) << one.err;
  const Result many = train("many", GetParam().ranks, set(GetParam().overrides));
  ASSERT_EQ(many.code, 0) << many.err;
  const auto want = log("one");
  const auto got = log("many");
  ASSERT_EQ(want.size(), 6U);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    for (const char* key : {"step", "tokens", "lr"}) EXPECT_EQ(got[i].at(key), want[i].at(key)) << key;
    for (const char* key : {"loss", "grad_norm"}) {
      const double reference = want[i].at(key);
      EXPECT_NEAR(got[i].at(key), reference, kTolerance * reference) << key << " of step " << i + 1;
    }
  }
  for (const char* key : {"val_loss", "val_bits_per_byte"}) {
    const double reference = want.back().at(key);
    EXPECT_NEAR(got.back().at(key), reference, kTolerance * reference) << key;
  }
  EXPECT_LT(want.back().at("loss"), want.front().at("loss"));
  EXPECT_EQ(want.back().at("bytes_sent"), 0);
  EXPECT_EQ(got.back().at("bytes_sent") > 0, GetParam().ranks > 1);
}

INSTANTIATE_TEST_SUITE_P(
    All, Ranks,
    ::testing::Values(
        Case{"Thread2", 2, {"comm.backend=thread"}}, Case{"Thread3", 3, {"comm.backend=thread"}},
        Case{"Thread4", 4, {"comm.backend=thread"}}, Case{"Shm2", 2, {"comm.backend=shm"}},
        Case{"Shm3", 3, {"comm.backend=shm"}}, Case{"Shm4", 4, {"comm.backend=shm"}},
        Case{"Gloo2", 2, {"comm.backend=gloo"}}, Case{"OneInFour", 1, {"train.micro_batch=3"}},
        Case{"TwoInThree", 2, {"train.micro_batch=2"}}, Case{"Stages2", 2, {"mesh.pp=2", "comm.backend=shm"}},
        Case{"StagesAndShards", 4, {"mesh.pp=2", "data_parallel.technique=zero3", "pipeline.schedule=zb-h1"}},
        Case{"StagesOverThreads", 2, {"mesh.pp=2", "comm.backend=thread", "memory.recompute=stage"}},
        Case{"ManyBuckets", 2, {"data_parallel.bucket_bytes=1"}}),
    [](const auto& info) { return info.param.name; });

TEST_F(CommandTest, RanksComeFromTheMesh) {
  Words words = tiny("run", 1, set({"mesh.dp=3", "train.steps=1"}));
  words.erase(words.begin() + 1, words.begin() + 3);  // no --ranks
  const Result result = caravan(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("global_batch 12 = dp 3 x micro_batch 4 x accumulation 1 over shm"));
}

TEST_F(CommandTest, OddSizesTrain) {
  const std::vector<std::vector<std::string>> cases = {
      {"model.context=1"},
      {"train.global_batch=1", "train.steps=2"},
      {"train.steps=0"},
      {"data.text=" + file("one_kind.txt", std::string(500, 'a'))},
      {"data.text=" + file("crlf.txt", "\xef\xbb\xbfone line\r\n" + std::string(400, 'b') + "\r\n")},
      {"data.text=[\"" + path("text.txt") + "\", \"" + path("one_kind.txt") + "\"]"},
      {"data.tokenizer={train = 257}"},
      {"data.tokenizer={train = 300}", "model.vocabulary=1001"},
      {"train.seed=9223372036854775807", "model.dropout=0.5"},
      {"train.steps=9223372036854775807", "optimizer.warmup_steps=9223372036854775807"},
      {"sample.tokens=40", "model.context=1", "sample.prompt=xyz"},
      {"precision.compute=bf16", "model.kind=llama", "model.kv_heads=1", "model.tie_embeddings=false"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    Words more = set(cases[i]);
    more.insert(more.end(), {"--stop-after", "3"});
    const Result result = train("run" + std::to_string(i), 1, more);
    EXPECT_EQ(result.code, 0) << cases[i].front() << "\n" << result.err;
    for (const auto& line : log("run" + std::to_string(i))) EXPECT_TRUE(line.at("loss").is_number()) << line;
  }
}

TEST_F(CommandTest, TextsWithTooFewPairsForTheTokenizerAreNoted) {
  const auto trained = [&](const std::string& run, const char* tokenizer) {
    return train(run, 1, set({tokenizer, "train.steps=1"}));
  };
  const Result few = trained("few", "data.tokenizer={train = 60000}");
  ASSERT_EQ(few.code, 0) << few.err;
  EXPECT_THAT(few.out, ContainsRegex("data.tokenizer: the text has pairs for [0-9]+ tokens, not for 60000"));
  const Result enough = trained("enough", "data.tokenizer={train = 300}");
  ASSERT_EQ(enough.code, 0) << enough.err;
  EXPECT_THAT(enough.out, Not(HasSubstr("data.tokenizer:")));
}

/// Shards are cut at other rows on each tensor rank then, and a dump gathers them first.
TEST_F(CommandTest, DumpsTensorsThatTensorParallelismCutsUnevenly) {
  const Words odd = set({"model.kind=llama", "model.hidden=33", "model.tie_embeddings=false", "train.global_batch=4"});
  const auto dumped = [&](const std::string& name, int ranks, const Words& more) {
    Words words{"--dump", path(name + "_dump"), "--dump-steps", "0-0", "--stop-after", "1"};
    words.insert(words.end(), odd.begin(), odd.end());
    words.insert(words.end(), more.begin(), more.end());
    const Result result = train(name, ranks, words);
    EXPECT_EQ(result.code, 0) << result.err;
    return text_of(path(name + "_dump/step_0/parameters.safetensors"));
  };
  const auto one = dumped("one", 1, {});
  ASSERT_FALSE(one.empty());
  for (const char* technique : {"zero1", "zero3"}) {
    const std::string many =
        dumped(technique, 4, set({"mesh.tp=2", std::string("data_parallel.technique=") + technique}));
    EXPECT_TRUE(many == one) << technique;  // starting values have the same bits on any mesh
  }
}

TEST_F(CommandTest, DumpsTheRequestedSteps) {
  const Result result = train("run", 2, {"--dump", path("dump"), "--dump-steps", "0,3-4", "--stop-after", "5"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(std::filesystem::exists(path("dump/step_1")));
  for (const int step : {0, 3, 4}) {
    const std::string at = path("dump/step_" + std::to_string(step));
    const auto metrics = nlohmann::json::parse(text_of(at + "/metrics.json"));
    EXPECT_EQ(metrics.at("loss"), log("run").at(static_cast<size_t>(step)).at("loss"));
    EXPECT_EQ(metrics.at("grad_norm"), log("run").at(static_cast<size_t>(step)).at("grad_norm"));
    for (const char* name : {"config.json", "batch.safetensors", "parameters.safetensors", "gradients.safetensors"}) {
      EXPECT_TRUE(std::filesystem::exists(at + "/" + name)) << name;
    }
  }
}

}  // namespace
}  // namespace caravan::train_test
