// caravan plan: a table of published runs in, a table of predictions out.
#include <algorithm>
#include <array>
#include <gmock/gmock.h>
#include <regex>
#include <string>

#include "tests/command/command.h"

namespace caravan::plan_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class PlanTest : public CommandTest {};

/// The groups of a regular expression that is in a text, as numbers.
template <size_t N>
std::array<double, N> numbers(const std::string& text, const std::string& pattern) {
  std::array<double, N> found{};
  std::smatch match;
  const bool is_there = std::regex_search(text, match, std::regex(pattern));
  EXPECT_TRUE(is_there) << pattern << " in\n" << text;
  for (size_t i = 0; is_there && i < N; ++i) found[i] = std::stod(match[i + 1]);
  return found;
}

TEST_F(PlanTest, PublishedRunsArePredictedAndCompared) {
  const std::string header =
      "target_id,file,tier,framework,layers,hidden,heads,seq,hw,num_gpus,tp,micro_batch,step_s,mem_gb,oom\n";
  const std::string run = "Megatron-LM,48,6144,64,2048,a100-80,8,8,4,";
  const Result result =
      caravan({"plan", "--published",
               file("runs.csv", header + "one,papers,A," + run + "1.2,,\n" + "\"two, of them\",papers,A," + run +
                                    ",60,\n" + ",,,\n" + "much,,,Megatron-LM,96,12288,96,2048,a100-40,8,8,1,,,Y\n")});
  EXPECT_EQ(result.code, 0) << result.err;
  // MatchesRegex of gmock: a line each, the id in quotes if it needs them, no field blank.
  EXPECT_THAT(result.out, MatchesRegex("target_id,step_s,mem_gb,fits\n"
                                       "one,[0-9.]+,[0-9.]+,yes\n"
                                       "\"two, of them\",[0-9.]+,[0-9.]+,yes\n"
                                       "row 3,[0-9.]+,[0-9.]+,yes\n"
                                       "much,[0-9.]+,[0-9.]+,no\n"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("A papers"), HasSubstr("best constant")));
}

TEST_F(PlanTest, WithoutAnswersThereAreNoErrors) {
  const Result result = caravan({"plan", "--published", file("runs.csv", "layers\n12\n")});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
}

TEST_F(PlanTest, WhatCannotBeReadIsSaid) {
  const Result missing = caravan({"plan", "--published", path("none.csv")});
  EXPECT_NE(missing.code, 0);
  EXPECT_THAT(missing.err, HasSubstr("none.csv"));
  EXPECT_NE(caravan({"plan", "--published", folder()}).code, 0);
  EXPECT_THAT(caravan({"plan", "--published", file("empty.csv", "")}).err, HasSubstr("is empty"));
  EXPECT_THAT(caravan({"plan", "--published", file("other.csv", "a,b\n1,2\n")}).err,
              HasSubstr("none of the columns that describe a run"));
}

TEST_F(PlanTest, ARecipeGetsLayoutsAdviceAndATimeline) {
  const Words small{"plan",
                    "--hardware",
                    "a100-80",
                    "--per-host",
                    "2",
                    "--hosts",
                    "2",
                    "--seconds",
                    "3",
                    "--write",
                    path("best.toml"),
                    "--write-rows",
                    path("rows"),
                    "--trace",
                    path("timeline.json"),
                    "--svg",
                    path("timeline.svg"),
                    "--price",
                    "1.5",
                    "--budget",
                    "2T",
                    "--set",
                    "data.tokenizer=bytes",
                    "model.layers=2",
                    "model.width=64",
                    "model.heads=4",
                    "model.context=32",
                    "train.global_batch=8"};
  const Result result = caravan(small);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "") << "progress is for terminals";
  EXPECT_THAT(result.out, AllOf(HasSubstr("2 hosts of 2 a100-80; 4 ranks"), HasSubstr("tokens/s"), HasSubstr("MFU"),
                                HasSubstr("layouts   "), HasSubstr("- ")));
  EXPECT_THAT(result.out, AllOf(HasSubstr("cluster: 25 GB/s (200 Gb/s) a device"), HasSubstr("within 12 %"),
                                HasSubstr("goodput   "), HasSubstr("assumed: mtbf 50700 h a device"),
                                HasSubstr("price     6.00 an hour"), HasSubstr("budget    2.00 T tokens: ")));
  const auto [step, low, high] = numbers<3>(result.out, R"(best +([0-9.]+) ms \(([0-9.]+) to ([0-9.]+) ms\) a step)");
  // Printed with few digits.
  EXPECT_NEAR(step / low, 1.12, 0.03);
  EXPECT_NEAR(step / high, 0.88, 0.03);
  // What the budget costs is what so many steps of 4 devices cost, and more for failures.
  const auto [share] = numbers<1>(result.out, R"(goodput +([0-9.]+) %)");
  const auto [cost] = numbers<1>(result.out, R"(which cost ([0-9]+))");
  EXPECT_NEAR(cost, 2e12 / (8 * 32) * step / 1e3 / 3600 * 4 * 1.5 / (share / 100), 0.02 * cost);
  EXPECT_THAT(text_of(path("timeline.svg")), AllOf(HasSubstr("<svg"), HasSubstr("forward"), HasSubstr(">rank 0<")));
  const auto trace = nlohmann::json::parse(text_of(path("timeline.json")));
  const auto is_step = [](const nlohmann::json& event) { return event.at("name") == "step"; };
  EXPECT_TRUE(std::ranges::any_of(trace.at("traceEvents"), is_step)) << "as a measured trace has it, for its drawing";
  // The recipe trains as it is, on so many ranks.
  const Result inspected = caravan({"inspect", path("best.toml"), "--ranks", "4"});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_EQ(text_of(path("rows/1.toml")), text_of(path("best.toml")));
  const auto rows = static_cast<int>(numbers<1>(result.out, R"(recipes +([0-9]+) written to)")[0]);
  EXPECT_TRUE(std::filesystem::exists(path("rows/" + std::to_string(rows) + ".toml"))) << rows;
  EXPECT_GT(rows, 1);
}

TEST_F(PlanTest, AModelThatFitsNowhereSaysByHowMuch) {
  const Result result =
      caravan({"plan", "--hardware", "p100", "--seconds", "2", "--set", "data.tokenizer=bytes", "model.layers=2",
               "model.width=65536", "model.heads=64", "model.context=16", "train.global_batch=1"});
  EXPECT_EQ(result.code, 5) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("does not fit"), HasSubstr("fits 1 rank: "), HasSubstr("more than the")));
}

TEST_F(PlanTest, WithoutALegalLayoutTheNearestSizesAreNamed) {
  const Result result = caravan({"plan", "--hardware", "a100-80", "--per-host", "7", "--set", "data.tokenizer=bytes",
                                 "model.layers=4", "train.global_batch=8"});
  EXPECT_EQ(result.code, 5) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("no layout is legal on 7 ranks"), HasSubstr("use 6 or 8 ranks")));
}

TEST_F(PlanTest, HardwareThatIsNotKnownIsRefused) {
  const auto refused = [&](Words words) {
    words.insert(words.begin(), "plan");
    const Result result = caravan(words);
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refused({}), AllOf(HasSubstr("--hardware"), HasSubstr("doctor"), HasSubstr("a100-80")));
  EXPECT_THAT(refused({"--hardware", "a100-90"}), HasSubstr("a100-80"));
  EXPECT_THAT(refused({"--hardware", "a100-80", "--ranks", "2"}), HasSubstr("2 ranks do not fit 1 device"));
  EXPECT_THAT(refused({"--hardware", "a100-80", "--hosts", "2", "--link", "fast"}), HasSubstr("fast"));
  EXPECT_THAT(refused({"--hardware", "rtx-4090", "--hosts", "2"}), HasSubstr("link"));
  const std::string file = this->file("mine.toml", "[[host]]\ndevice = \"a100-80\"\n");
  EXPECT_THAT(refused({"--hardware", file, "--hosts", "2"}), HasSubstr("presets"));
  EXPECT_THAT(refused({"--hardware", file, "--hosts", "1"}), HasSubstr("presets"));
  EXPECT_THAT(refused({"--hardware", file, "--price", "2"}), HasSubstr("price_per_hour"));
  EXPECT_THAT(refused({"--hardware", file, "--budget", "1T"}),
              AllOf(HasSubstr("price_per_hour"), HasSubstr("--price")));
  EXPECT_THAT(refused({"--hardware", "a100-80", "--budget", "1T"}),
              AllOf(HasSubstr("price_per_hour"), HasSubstr("--price")));
  EXPECT_THAT(refused({"--hardware", "a100-80", "--price", "2", "--budget", "many"}),
              AllOf(HasSubstr("'many' is not a number of tokens"), HasSubstr("300G")));
  EXPECT_THAT(refused({"--hardware", "a100-80", "--price", "0", "--budget", "1T"}), HasSubstr("--price"));
  EXPECT_THAT(refused({"--hardware", "a100-80", "--per-host", "8", "--link", "200Gbps"}), HasSubstr("one host"));
  EXPECT_THAT(refused({"--hardware", "gb200", "--per-host", "4", "--hosts", "2", "--link", "200Gbps"}),
              HasSubstr("nvlink of gb200 connects all hosts"));
  EXPECT_THAT(refused({"--published", file, "--ranks", "2"}), HasSubstr("excludes"));
  EXPECT_THAT(refused({"--hardware", "a100-80", "--write", file}), HasSubstr("exists"));
  EXPECT_THAT(refused({"--hardware", "a100-80", "--write-rows", file}), HasSubstr("exists"));
  EXPECT_THAT(refused({"--hardware", "a100-80", "--ranks", "0"}), HasSubstr("--ranks"));
}

}  // namespace
}  // namespace caravan::plan_test
