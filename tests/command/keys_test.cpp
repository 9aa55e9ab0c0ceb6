// Keys that change what a run prints or learns: each case fails if the key has no effect.
#include <gmock/gmock.h>

#include "tests/command/command.h"
#include "tests/needs.h"

namespace caravan::keys_test {
namespace {

using ::testing::HasSubstr;

class KeysTest : public CommandTest {
 protected:
  /// The output of a run of one rank with these settings.
  std::string output(const std::string& name, const Words& overrides) const {
    const Result result = train(name, 1, set(overrides));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }

  /// The text that a run prints after training, with `overrides` for the sampling.
  std::string sample(const std::string& name, Words overrides) const {
    overrides.insert(overrides.end(), {"train.steps=1", "sample.tokens=20"});
    const std::string out = output(name, overrides);
    const size_t begin = out.rfind("--- sample ---");
    EXPECT_NE(begin, std::string::npos) << out;
    return out.substr(begin);
  }

  std::vector<double> losses(const std::string& name, Words overrides) const {
    overrides.insert(overrides.end(), {"train.steps=3", "optimizer.warmup_steps=0"});
    output(name, overrides);
    std::vector<double> all;
    for (const auto& line : log(name)) all.push_back(line.at("loss"));
    EXPECT_EQ(all.size(), 3U);
    return all;
  }
};

TEST_F(KeysTest, Sampling) {
  const std::string likeliest = sample("greedy", {"sample.temperature=0"});
  EXPECT_NE(sample("hot", {"sample.temperature=2.5", "sample.top_k=0"}), likeliest);
  EXPECT_EQ(sample("one", {"sample.temperature=2.5", "sample.top_k=1"}), likeliest);
  EXPECT_EQ(sample("top", {"sample.temperature=2.5", "sample.top_k=0", "sample.top_p=0.000001"}), likeliest);
}

TEST_F(KeysTest, SamplesDuringTraining) {
  const auto num_samples = [&](const std::string& name, const std::string& every) {
    const std::string out = output(name, {"train.steps=4", "sample.tokens=2", "sample.every=" + every});
    int count = 0;
    for (size_t at = out.find("--- sample ---"); at != std::string::npos; at = out.find("--- sample ---", at + 1)) {
      ++count;
    }
    return count;
  };
  EXPECT_EQ(num_samples("end", "0"), 1);
  EXPECT_EQ(num_samples("each", "1"), 4);
  EXPECT_EQ(num_samples("third", "3"), 2);
}

TEST_F(KeysTest, Adam) {
  testing::needs({"adamw"});
  const std::vector<double> usual = losses("usual", {});
  // The first update is the gradient over its root mean square, for any beta1.
  const std::vector<double> short_memory = losses("beta1", {"optimizer.beta1=0.5"});
  EXPECT_EQ(short_memory[1], usual[1]);
  EXPECT_NE(short_memory[2], usual[2]);
  // An epsilon far above the gradients makes the updates small.
  const std::vector<double> damped = losses("epsilon", {"optimizer.epsilon=1"});
  EXPECT_EQ(damped[0], usual[0]);
  EXPECT_NE(damped[1], usual[1]);
}

TEST_F(KeysTest, AFixedLossScale) {
  const std::string out = output("run", {"precision.compute=fp16", "precision.loss_scale=8"});
  EXPECT_THAT(out, HasSubstr("scale 8, skipped 0"));
  for (const auto& line : log("run")) EXPECT_EQ(line.at("loss_scale"), 8);
}

TEST_F(KeysTest, StagesOfGivenSizes) {
  const Result result = train("run", 2, set({"mesh.pp=2", "model.layers=4", "train.steps=1", "pipeline.cut=[3, 1]"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("embedding to blocks.2 | blocks.3 to head"));
}

}  // namespace
}  // namespace caravan::keys_test
