// Every mistake of a user ends with its exit code and a message that names it and says what to do.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/command/command.h"
#include "tests/needs.h"

namespace caravan::bad_input_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class BadInputTest : public CommandTest {
 protected:
  static void expect_refusal(const Result& result, int code, const std::vector<std::string>& words) {
    EXPECT_EQ(result.code, code) << result.err;
    for (const std::string& word : words) EXPECT_THAT(result.err, HasSubstr(word));
    EXPECT_THAT(result.err, AllOf(::testing::StartsWith("["), HasSubstr("\n  do: "),
                                  Not(HasSubstr("Exception raised from")), Not(HasSubstr("frame #"))));
    // Printed once and alone: neither the launcher nor other ranks add a line.
    EXPECT_EQ(result.err.find("  do: "), result.err.rfind("  do: ")) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("caravan: rank")));
  }
  /// `train` of the tiny recipe with `overrides`, over 2 ranks.
  void expect_refused(const std::vector<std::string>& overrides, int code,
                      const std::vector<std::string>& words) const {
    SCOPED_TRACE(::testing::PrintToString(overrides));
    expect_refusal(train("refused", 2, set(overrides)), code, words);
    EXPECT_FALSE(std::filesystem::exists(path("refused/train.log")));
  }
};

TEST_F(BadInputTest, Text) {
  expect_refused({"data.text=" + file("empty.txt", "")}, 3, {"empty.txt: is empty: 0 bytes"});
  expect_refused({"data.text=" + file("short.txt", "a short line\n")}, 3,
                 {"a window of context 32 needs 33", "model.context"});
  expect_refused({"data.text=" + file("latin1.txt", "caf\xe9 " + std::string(400, 'x'))}, 3,
                 {"latin1.txt: is not UTF-8", "0xE9", "offset 3"});
  expect_refused({"data.text=" + path("nothere.txt")}, 3, {"nothere.txt: no such file"});
  std::filesystem::create_directory(path("pictures"));
  file("pictures/one.png", "no text");
  expect_refused({"data.text=" + path("pictures")}, 3, {"pictures: is a folder without files that end in .txt"});
  expect_refused({"data.text=" + path("*.csv")}, 3, {"*.csv: no file matches"});
  expect_refused({"data.validation_fraction=0.95"}, 2, {"data.validation_fraction: 0.95 is too large"});
  expect_refused({"train.init_from=" + path("pictures")}, 3, {"pictures: holds no complete checkpoint"});
  expect_refused({"data.text=/dev/zero"}, 3, {"/dev/zero: is not a regular file"});
  expect_refused({"data.text=/dev/zero", "data.streaming=true", "data.validation=" + path("text.txt")}, 3,
                 {"/dev/zero: is not a regular file"});
  expect_refused({"data.text=" + file("huge.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\", \"x\": 1e999}\n")}, 3,
                 {"huge.jsonl:2: has a number that is too large: '1e999'"});
  expect_refused({"data.text="}, 2, {"data.text: names no file"});
}

TEST_F(BadInputTest, Tokenizer) {
  expect_refused({"data.tokenizer=" + file("object.json", "{\"a\": 1}")}, 3,
                 {"object.json: the file has no \"model\""});
  expect_refused({"data.tokenizer=" + path("text.txt")}, 3, {"text.txt: is not JSON"});
  expect_refused({"data.tokenizer=" + file("huge.json", "{\"version\": 1e999}")}, 3,
                 {"huge.json: has a number that is too large: '1e999'"});
  expect_refused({"data.tokenizer=" + path("nothere.json")}, 3, {"nothere.json: no such file"});
  expect_refused({"data.tokenizer={train = 10}"}, 2, {"data.tokenizer: 10 is too small, must be at least 257"});
  expect_refused({"model.vocabulary=10"}, 2, {"model.vocabulary: 10 rows for a tokenizer of 256 tokens"});
}

TEST_F(BadInputTest, BatchAndRanks) {
  expect_refused({"train.global_batch=13"}, 2,
                 {"global_batch 13 = dp 2 x micro_batch x accumulation", "13 / 2 is not whole", "global_batch = 14"});
  expect_refused({"train.micro_batch=4"}, 2, {"global_batch 12 = dp 2 x micro_batch 4 x accumulation", "{1, 2, 3, 6}"});
  expect_refused({"mesh.dp=5"}, 2, {"dp 5 = 5 ranks, but 2 are started", "--ranks 5"});
  expect_refused({"mesh.pp=2", "pipeline.schedule=zb-v", "pipeline.stages_per_rank=1"}, 2,
                 {"zb-v has 2 stages", "pipeline.stages_per_rank = 2"});
  expect_refused({"mesh.pp=2", "pipeline.micro_batches=5"}, 2, {"do not split into 5 micro-batches"});
  expect_refused({"mesh.pp=2", "data_parallel.technique=ddp", "pipeline.schedule=pipedream"}, 2,
                 {"optimizer.clip_norm"});
  for (const char* ranks : {"0", "-1"}) {
    expect_refusal(caravan({"train", "--ranks", ranks}), 2,
                   {std::string("--ranks: ") + ranks + " ranks cannot be started", "use 1 or more"});
  }
  const Words batch = set({"train.global_batch=100000"});
  expect_refusal(train("run", 100000, batch), 2,
                 {"ranks: 100000 on one host", "or fewer, or start them on more hosts"});
  expect_refusal(caravan({"train", "--ranks", "many"}), 2, {"--ranks"});
}

TEST_F(BadInputTest, RecipeNamesFileLineAndNearest) {
  testing::needs({"no_hook", "powersgd", "topk", "ddp", "zero2", "hsdp"});
  expect_refusal(caravan({"train", "/dev/zero"}), 2, {"/dev/zero: is not a recipe: it is longer than 4 MiB"});
  const auto recipe = [this](const std::string& text, const std::vector<std::string>& words) {
    SCOPED_TRACE(text);
    expect_refusal(caravan({"train", file("my.toml", text)}), 2, words);
  };
  recipe("[train]\nsteps = 3\nstesp = 4\n", {"train.stesp: no such key", "my.toml:3", "train.steps"});
  recipe("[tarin]\nsteps = 3\n", {"[tarin]: no such section", "my.toml:1", "[train]"});
  recipe("\n[model]\nkind = \"gpt3\"\n", {"model.kind: 'gpt3'", "my.toml:3", "'gpt2'"});
  recipe("[train]\nsteps = \"many\"\n", {"train.steps: \"many\" is not a whole number", "my.toml:2"});
  recipe("[train]\nsteps = -1\n",
         {"train.steps: -1 is too small, must be at least 0", "my.toml:2", "the default is 800"});
  recipe("[model]\nwidth = 64\nheads = 3\n", {"3 heads do not divide width 64", "my.toml:3"});
  recipe("[train\n", {"my.toml:1"});
  recipe("\xff\xfe", {"my.toml:1"});
  recipe("[precision]\ncompute = \"fp17\"\n", {"precision.compute: 'fp17'", "fp16"});
  recipe("[precision]\nloss_scale = 8\n", {"precision.loss_scale", "precision.compute = \"fp16\""});
  recipe("[data_parallel]\nhook = \"powersdg\"\n", {"data_parallel.hook: 'powersdg'", "powersgd"});
  recipe("[data_parallel]\nhook = \"topk\"\ntechnique = \"zero2\"\n",
         {"data_parallel.hook", "zero2", "\"ddp\" or \"hsdp\""});
  recipe("[data_parallel]\nhook = \"fp16\"\n", {"data_parallel.hook: 'fp16'", "use precision.reduce = \"fp16\""});
  for (const std::string& name : {folder().string(), path("nothere.toml")}) {
    expect_refusal(caravan({"train", name}), 2, {name + ": cannot be read"});
    expect_refusal(caravan({"train", "--set", "train.steps=1", name}), 2, {name + ": cannot be read"});
  }
}

TEST_F(BadInputTest, Overrides) {
  expect_refused({"train.stesp=4"}, 2, {"train.stesp: no such key", "--set train.stesp=4", "train.steps"});
  expect_refused({"steps=4"}, 2, {"is not of the form section.key=value"});
  for (const char* word : {"model.width", "foo", ""}) {
    expect_refusal(caravan({"train", "--set", word}), 2, {"is not of the form section.key=value"});
  }
  for (const char* number :
       {"99999999999999999999", "1e3", "abc", "-9223372036854775808", "[1]", "{a = 1}", "1979-05-27"}) {
    expect_refused({std::string("train.steps=") + number}, 2, {"train.steps"});
  }
  expect_refused({"optimizer.lr=nan"}, 2, {"optimizer.lr"});
  expect_refused({"optimizer.lr=inf"}, 2, {"optimizer.lr"});
  expect_refused({"model.width=99999999"}, 2, {"model.width: 99999999 is too large, must be at most 1048576"});
  expect_refused({"comm.backend=shm", "comm.algorithms=table.json"}, 2, {"shm does not use messages", "leave it out"});
  expect_refused({"comm.backend=ncl"}, 2, {"'ncl' is not one of auto, thread, shm, gloo", "nccl"});
  expect_refused({"comm.backend=nccl"}, 2,
                 {"comm.backend: \"nccl\" is not built; there are auto, thread, shm, gloo", "-DCARAVAN_NCCL=ON"});
  expect_refused({"sample.tokens=5", "sample.prompt="}, 2, {"sample.prompt: is empty"});
}

TEST_F(BadInputTest, SizesThatNoMemoryHolds) {
  testing::needs({"adamw"});
  expect_refused({"model.width=1048576"}, 5, {"[train] memory: a rank needs about", "model.width"});
  expect_refused({"model.width=1048576", "train.micro_batch=1"}, 5, {"[train] memory: a rank needs about", "but has"});
  expect_refused({"model.context=16777216"}, 3, {"needs 16777217"});
}

TEST_F(BadInputTest, CommandLine) {
  expect_refusal(caravan({"trian"}), 2, {"trian", "'train'"});
  expect_refusal(caravan({"train", "--rank", "2"}), 2, {"--rank:", "'--ranks'"});
  expect_refusal(caravan({"tokenizer", "enkode"}), 2, {"enkode", "'encode'"});
  expect_refusal(caravan({}), 2, {"--help"});
  expect_refusal(caravan({"train", "--stop-after", "0"}), 2, {"--stop-after: 0"});
  expect_refusal(caravan({"train", "--dump-steps", "1"}), 2, {"--dump DIR"});
  for (const char* option : {"--dump", "--resume-from", "--trace"}) {
    expect_refusal(caravan({"train", option, ""}), 2, {option, "must not be empty"});
  }
  expect_refusal(caravan({"train", "--dump", path("d"), "--dump-steps", "0,a"}), 2,
                 {"'a' is neither a step nor a range of steps"});
  expect_refusal(caravan({"train", "--dump", path("d"), "--dump-steps", "3-1"}), 2, {"ends before it begins", "1-3"});
  expect_refusal(caravan({"train", "--dump", path("d"), "--dump-steps", "0-99999999999"}), 2, {"more than 1000 steps"});
  for (const char* steps : {"-1", "1-", "1-2-3", "", ","}) {
    EXPECT_EQ(caravan({"train", "--dump", path("d"), "--dump-steps", steps}).code, 2) << steps;
  }
  expect_refusal(caravan({"train", "--trace-steps", "1"}), 2, {"--trace FILE"});
  for (const char* steps : {"0-2", "3,4", "5-3", "x", "1-1001"}) {
    expect_refusal(caravan({"train", "--trace", path("t"), "--trace-steps", steps}), 2,
                   {"--trace-steps: '" + std::string(steps)});
  }
  expect_refusal(train("run", 2, {"--trace", path("t"), "--trace-steps", "5-7"}), 2,
                 {"steps 5-7 are not all part of this run", "from 1 to 6"});
  expect_refusal(caravan({"generate", "--temp", "0.5"}), 2, {"--temp:", "'--temperature'"});
  expect_refusal(caravan({"generate", "--temp=0.5"}), 2, {"--temp:", "'--temperature'"});
  expect_refusal(train("run", 2, {"--dump", path("d"), "--dump-steps", "0,7"}), 2,
                 {"step 7 is not part of this run", "from 0 to 5"});
  expect_refusal(caravan({"generate", path("nothere")}), 3, {"nothere: is not there"});
  expect_refusal(caravan({"generate", "--seed", "-1"}), 2, {"--seed"});
  expect_refusal(caravan({"train", "--ranks", "two"}), 2,
                 {"--ranks: 'two' is not a valid number", "see caravan train --help"});
}

TEST_F(BadInputTest, RunFolders) {
  expect_refusal(train("run", 1, {"--resume"}), 2, {"holds no checkpoint to resume from", "checkpoint.dir"});
  ASSERT_EQ(train("run", 1).code, 0);
  expect_refusal(train("run", 1), 2, {"holds a run already", "--resume"});
  expect_refusal(
      caravan({"train", path("run"), "--resume"}), 2,
      {"run: is the folder of a run, not a recipe", "do: use train " + path("run/recipe.toml") + " --resume"});
  EXPECT_EQ(log("run").size(), 6U);
  expect_refusal(run({"env", "-C", folder().string(), program(), "train", "--ranks", "2", "--resume"}), 2,
                 {"runs/default-N", "leave --resume out"});
}

TEST_F(BadInputTest, CheckpointOfAnotherModel) {
  testing::needs({"adamw", "sgd"});
  ASSERT_EQ(train("run", 1, {"--stop-after", "3"}).code, 0);
  const auto resume = [this](const std::vector<std::string>& overrides, int code,
                             const std::vector<std::string>& words) {
    Words more = set(overrides);
    more.emplace_back("--resume");
    expect_refusal(train("run", 2, more), code, words);
  };
  resume({"model.width=32"}, 3, {"step_000003: is of another model", "model.width is 64 there, 32 in this run"});
  resume({"model.kind=llama"}, 3, {"is of another model", "model.kind is gpt2 there, llama in this run"});
  resume({"data.tokenizer={train = 300}"}, 3, {"is of another model"});
  resume({"train.seed=9"}, 2, {"train.seed: is 9, but the run was trained with 1"});
  resume({"optimizer.kind=sgd"}, 2, {"optimizer.kind: is \"sgd\", but the run was trained with \"adamw\""});
  EXPECT_EQ(log("run").size(), 3U);
}

TEST_F(BadInputTest, DamagedCheckpoint) {
  ASSERT_EQ(train("run", 2, set({"checkpoint.every=3"})).code, 0);
  const std::string shard = path("run/step_000006/rank_00000.safetensors");
  const std::string whole = text_of(shard);
  const auto expect_damage = [&](const std::string& bytes, const std::string& word) {
    file("run/step_000006/rank_00000.safetensors", bytes);
    Words more = set({"train.steps=8"});
    more.emplace_back("--resume");
    expect_refusal(train("run", 2, more), 3, {"step_000006", word, "train --resume-from step_000003"});
    expect_refusal(caravan({"generate", path("run")}), 3, {"step_000006", word});
  };
  expect_damage(whole.substr(0, 1000), "has 1000 bytes");
  expect_damage("", "has 0 bytes");
  std::string altered = whole;
  altered[altered.size() / 2] ^= 1;
  expect_damage(altered, "hash");
  std::filesystem::remove(shard);
  expect_refusal(train("run", 2, {"--resume"}), 3, {"cannot be found"});
  file("run/step_000006/rank_00000.safetensors", whole);
  file("run/step_000006/manifest.json", "{");
  expect_refusal(train("run", 2, {"--resume"}), 3, {"manifest.json", "is not JSON"});
}

TEST_F(BadInputTest, DamagedTokenCacheIsRebuilt) {
  ASSERT_EQ(train("first", 1).code, 0);
  int damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("cache"))) {
    std::string bytes = text_of(entry.path());
    bytes[bytes.size() / 2] ^= 1;
    file("cache/" + entry.path().filename().string(), damaged++ % 2 == 0 ? bytes : bytes.substr(0, bytes.size() / 2));
  }
  ASSERT_EQ(damaged, 2);  // training and validation
  const Result again = train("again", 2);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_NEAR(log("again").back().at("val_loss").get<double>(), log("first").back().at("val_loss").get<double>(), 1e-5);
}

TEST_F(BadInputTest, NonFiniteNumbers) {
  testing::needs({"ddp"});
  ASSERT_EQ(train("run", 2, {"--stop-after", "3"}).code, 0);
  const auto before = tensors(folder() / "run/step_000003");
  Words more = set({"optimizer.lr=1e30", "train.steps=9"});
  more.emplace_back("--resume");
  const Result result = train("run", 2, more);
  expect_refusal(result, 6,
                 {"gradient of ", ".weight: is not finite at step ", "rank ", "the last checkpoint is untouched"});
  EXPECT_THAT(result.err, Not(HasSubstr("-nan")));
  EXPECT_TRUE(tensors(folder() / "run/step_000003") == before);
  EXPECT_FALSE(std::filesystem::exists(path("run/step_000009")));
}

TEST_F(BadInputTest, APortInUse) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  Words words{"env",
              "RANK=0",
              "WORLD_SIZE=2",
              "LOCAL_RANK=0",
              "LOCAL_WORLD_SIZE=2",
              "MASTER_ADDR=127.0.0.1",
              "MASTER_PORT=" + port,
              program()};
  Words arguments = tiny("run", 2);
  words.insert(words.end(), arguments.begin(), arguments.end());
  expect_refusal(run(words), 2, {"port " + port + " is in use", "MASTER_PORT"});
  close(listener);
  words[1] = "RANK=2";
  expect_refusal(run(words), 2, {"RANK: 2 is out of range"});
  words = {"env", "RANK=0", "WORLD_SIZE=2", program(), "train"};
  expect_refusal(run(words), 2, {"is not set, but RANK is"});
}

}  // namespace
}  // namespace caravan::bad_input_test
