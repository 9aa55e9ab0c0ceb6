// plot, compare and report of runs, and the files that other programs read.
#include <algorithm>
#include <filesystem>
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::report_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ReportTest : public CommandTest {};

TEST_F(ReportTest, ARunIsPlottedReportedAndCompared) {
  const Result first = train(
      "one", 2, set({"mesh.pp=2", "train.steps=4", "train.eval_every=2", "log.csv=true", "log.tensorboard=true"}));
  ASSERT_EQ(first.code, 0) << first.err;
  const Result second = train("two", 1, set({"train.steps=3", "optimizer.lr=0.01"}));
  ASSERT_EQ(second.code, 0) << second.err;

  EXPECT_THAT(text_of(path("one/metrics.csv")), AllOf(HasSubstr("time,host,step,loss"), HasSubstr(",4,")));
  EXPECT_FALSE(std::filesystem::is_empty(path("one/tensorboard")));
  EXPECT_FALSE(std::filesystem::exists(path("two/metrics.csv")));

  const Result plot = caravan({"plot", path("one")});
  ASSERT_EQ(plot.code, 0) << plot.err;
  EXPECT_THAT(plot.out, AllOf(HasSubstr("loss, nats per token"), HasSubstr("b val_loss"), HasSubstr("learning rate")));
  const Result both = caravan({"plot", path("one"), path("two"), "--of", "loss,lr", "--svg", path("both.svg")});
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_THAT(text_of(path("both.svg")), AllOf(HasSubstr(">one<"), HasSubstr(">two<"), HasSubstr("</svg>")));

  const Result compared = caravan({"compare", path("one"), path("two")});
  ASSERT_EQ(compared.code, 0) << compared.err;
  EXPECT_THAT(compared.out, AllOf(HasSubstr("loss at step 3"), HasSubstr("optimizer.lr"), HasSubstr("mesh.pp")));
  EXPECT_THAT(compared.out, Not(HasSubstr("model.width"))) << "it is the same";

  const Result report = caravan({"report", path("one")});
  ASSERT_EQ(report.code, 0) << report.err;
  const std::string page = text_of(path("one/report.html"));
  EXPECT_THAT(page, AllOf(HasSubstr("matrix products"), HasSubstr("as planned by FLOPs"), HasSubstr("[model]"),
                          HasSubstr("measured peak of rank 0"), Not(HasSubstr("<h2>A step</h2>"))));

  ASSERT_EQ(train("traced", 2, {"--trace", path("trace.json")}).code, 0);
  // A predicted timeline is drawn like a measured one.
  const Result planned = caravan({"plan", "--hardware", "a100-80", "--per-host", "2", "--seconds", "1", "--trace",
                                  path("predicted.json"), path("traced/recipe.toml")});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Result drawn = caravan({"report", path("traced"), "--trace", path("predicted.json")});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_THAT(text_of(path("traced/report.html")), HasSubstr("rank 0 (predicted)"));
  ASSERT_EQ(caravan({"report", path("traced"), "--trace", path("trace.json")}).code, 0);
  EXPECT_THAT(text_of(path("traced/report.html")),
              AllOf(HasSubstr("<h2>A step</h2>"), HasSubstr("step 5, "), HasSubstr("<title>forward 0"),
                    HasSubstr("rank 1"), Not(HasSubstr("step 4, "))));
}

/// Everything written after the checkpoint from which a run resumes is gone from all of its files.
TEST_F(ReportTest, FilesOfAResumedRunHaveEachStepOnce) {
  const Words options = set({"train.steps=4", "checkpoint.every=2", "checkpoint.keep=0", "log.csv=true"});
  ASSERT_EQ(train("run", 1, options).code, 0);
  const Result resumed = caravan({"train", path("run/recipe.toml"), "--ranks", "1", "--resume-from", "step_000002"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const std::string csv = text_of(path("run/metrics.csv"));
  EXPECT_EQ(std::ranges::count(csv, '\n'), 5) << csv;
}

/// For any content of a log, every command that reads it ends with an answer or with an error that says what is wrong.
TEST_F(ReportTest, HostileLogsEndNoCommand) {
  ASSERT_EQ(train("run", 1, set({"train.steps=0"})).code, 0);
  const std::string good = R"({"step":1,"loss":2,"tokens":9,"step_ms":1,"tokens_per_second":5,"bytes_sent":1,)"
                           R"("peak_memory_bytes":1,"state_bytes":1,"predicted_memory_bytes":1})"
                           "\n";
  const auto with_experts = [](const std::string& experts) {
    return R"({"step":2,"loss":1,"experts":)" + experts + "}\n";
  };
  for (const std::string& line :
       {with_experts(R"({"copies":[[]],"balance":1,"dropped":0})"),
        with_experts(R"({"copies":[[-5,5]],"balance":1,"dropped":0})"),
        with_experts(R"({"copies":[[9223372036854775807,9223372036854775807]],"balance":1,"dropped":0})"),
        with_experts(R"({"copies":{"a":[1e300]},"balance":1,"dropped":0})"), with_experts("null"),
        with_experts(std::string(100'000, '[') + std::string(100'000, ']')),
        std::string("{\"step\":\"a\",\"loss\":1}\n"), std::string("{\"step\":1e300,\"loss\":1}\n"),
        std::string("{\"step\":9223372036854775807,\"loss\":1.7e308}\n{\"step\":-1,\"loss\":-1.7e308}\n"),
        std::string("{\"step\":2,\"loss\":1,\"tokens\":1e300,\"bytes_sent\":-1e300,\"bubble\":[\"a\"]}\n")}) {
    file("run/train.log", good + line);
    for (const Words& words : {Words{"inspect", path("run")}, Words{"plot", path("run")},
                               Words{"compare", path("run"), path("run")}, Words{"report", path("run")}}) {
      const Result result = caravan(words);
      EXPECT_TRUE(result.code == 0 || result.code == 3)
          << words.front() << " of " << line.substr(0, 80) << ": " << result.code << " " << result.err;
    }
  }
}

TEST_F(ReportTest, ErrorsAreNamed) {
  ASSERT_EQ(train("run", 1, set({"train.steps=2"})).code, 0);
  const auto refused = [&](const Words& words, int code, const std::string& part) {
    const Result result = caravan(words);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  refused({"report", path("run"), "--trace", path("run/train.log")}, 3, "is not a trace");
  for (const char* events : {"1", "{\"pid\": \"a\", \"args\": {}}", "{\"name\": \"process_name\", \"pid\": 0}"}) {
    file("bad.json", std::string("{\"traceEvents\": [") + events + "]}");
    refused({"report", path("run"), "--trace", path("bad.json")}, 3, "has an event");
  }
  refused({"plot", path("none")}, 3, "has no train.log");
  refused({"plot", path("run"), "--of", "los"}, 2, "the nearest is 'loss'");
  refused({"plot", path("run"), "--over", "stepp"}, 2, "use 'step'");
  refused({"plot", path("run"), "--svg", path("no/folder.svg")}, 5, "folder.svg");
  refused({"compare", path("run")}, 2, "runs");
  refused({"report", path("run"), "--out", ""}, 2, "must not be empty");
}

}  // namespace
}  // namespace caravan::report_test
