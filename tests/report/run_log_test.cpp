#include "caravan/report/run_log.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/time.h"
#include "caravan/report/metric_files.h"
#include "tests/data/support.h"

namespace caravan::run_log_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kLog =
    R"({"step":1,"loss":3.5,"tokens":100,"bubble":[0.25,0.5],"time":"2026-03-01T09:00:00.000Z","host":"a"}
{"step":1,"resumed":true,"changed":{"optimizer.lr":{"before":"1","now":"2"}}}
{"step":2,"loss":3.25,"tokens":200,"val_loss":3,"bubble":[0.5,0.75],"time":"2026-03-01T09:30:00.000Z","host":"a"}
{"step":3,"loss":)";

TEST(Utc, ReadsBackWhatItWrites) {
  EXPECT_EQ(utc_text(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_text(1772355600.25), "2026-03-01T09:00:00.250Z");
  EXPECT_DOUBLE_EQ(parse_utc("2026-03-01T09:00:00.250Z"), 1772355600.25);
  EXPECT_DOUBLE_EQ(parse_utc("2024-02-29T23:59:59.999Z"), parse_utc("2024-03-01T00:00:00.000Z") - 0.001);
  for (const char* wrong : {"", "2026-03-01", "2026-03-01T09:00:00.250", "2026-03-01T09:00:00.250Zx"})
    EXPECT_THROW(parse_utc(wrong), DataError) << wrong;
}

TEST(RunLog, HasTheNumbersOfWholeLines) {
  const TemporaryFolder run;
  write_file(run / "train.log", kLog);
  const RunLog log = RunLog::read(run.path());
  EXPECT_THAT(log.quantities(), ElementsAre("bubble.0", "bubble.1", "loss", "step", "tokens", "val_loss"));
  EXPECT_THAT(log.series("loss").x, ElementsAre(1, 2));
  EXPECT_THAT(log.series("loss").y, ElementsAre(3.5, 3.25));
  EXPECT_THAT(log.series("loss", "tokens").x, ElementsAre(100, 200));
  EXPECT_THAT(log.series("val_loss", "time").x, ElementsAre(0.5)) << "hours since the first line";
  EXPECT_THAT(log.series("bubble.1").y, ElementsAre(0.5, 0.75));
  EXPECT_EQ(log.lines().back().host, "a");
}

TEST(RunLog, NamesErrors) {
  const TemporaryFolder run;
  const auto read = [&] { RunLog::read(run.path()); };
  EXPECT_THAT(message_of<DataError>(read), HasSubstr("has no train.log"));
  write_file(run / "train.log", "{\"step\":1,\"loss\":1}\nnonsense\n");
  EXPECT_THAT(message_of<DataError>(read), HasSubstr("train.log:2"));
  write_file(run / "train.log", "{\"loss\":1}\n");
  EXPECT_THAT(message_of<DataError>(read), HasSubstr("train.log:1"));
  write_file(run / "train.log", "{\"step\":1,\"loss\":1}\n");
  const RunLog log = RunLog::read(run.path());
  EXPECT_THAT(message_of<UsageError>([&] { log.series("los"); }), HasSubstr("the nearest is 'loss'"));
  EXPECT_THAT(message_of<UsageError>([&] { log.series("loss", "steps"); }), HasSubstr("use 'step'"));
  EXPECT_THAT(message_of<UsageError>([&] { log.series("loss", "time"); }), HasSubstr("step 1 has no time"));
}

TEST(MetricFiles, AreRebuiltFromTheLog) {
  const TemporaryFolder run;
  write_file(run / "train.log", kLog);
  write_file(run / "metrics.csv", "of an earlier part that went further\n");
  MetricFiles files(run.path(), {.csv = true, .tensorboard = true});
  files.write(parse_metrics_line(R"({"step":3,"loss":0.1,"lr":1e-05,"time":"2026-03-01T10:00:00.000Z","host":"b"})"));
  const std::string csv = read_file(run / "metrics.csv");
  EXPECT_THAT(csv, Not(HasSubstr("earlier part")));
  EXPECT_THAT(csv,
              AllOf(HasSubstr("time,host,step,loss,val_loss,"), HasSubstr("\n2026-03-01T09:30:00.000Z,a,2,3.25,3,"),
                    HasSubstr("\n2026-03-01T10:00:00.000Z,b,3,0.1,,,,1e-05,")));
  const auto lines = std::ranges::count(csv, '\n');
  EXPECT_EQ(lines, 4);
  const auto commas = std::ranges::count(csv, ',');
  EXPECT_EQ(commas % lines, 0) << "as many columns in each line";
}

TEST(MetricFiles, WithoutFormatsAreNotWritten) {
  const TemporaryFolder run;
  write_file(run / "train.log", kLog);
  const MetricFiles files(run.path(), {});
  EXPECT_FALSE(std::filesystem::exists(run / "metrics.csv"));
  EXPECT_FALSE(std::filesystem::exists(run / "tensorboard"));
}

/// Any text may be in a log: it is an error that names the line, or it is left out.
TEST(RunLog, HostileLinesAreErrors) {
  const TemporaryFolder run;
  for (const std::string& line :
       {std::string(R"({"step":"1"})"), std::string(R"({"step":1.5})"), std::string(R"({"step":[1]})"),
        std::string(R"({"step":1,"time":5})"), std::string(R"({"step":1,"time":"never"})"),
        std::string(R"({"step":1,"host":{}})"), std::string(R"({"step":1,"loss":1e999})"), std::string("[1]"),
        std::string(R"({"step":1,"a":)") + std::string(100'000, '[') + std::string(100'000, ']') + "}",
        std::string("{\"step\":1,\"a\":\"\xff\"}")}) {
    write_file(run / "train.log", "{\"step\":1,\"loss\":2}\n" + line + "\n");
    EXPECT_THAT(message_of<DataError>([&] { RunLog::read(run.path()); }), HasSubstr("train.log:2"))
        << line.substr(0, 80);
  }
}

TEST(RunLog, LinesWithoutTheAxisAreLeftOut) {
  const TemporaryFolder run;
  write_file(run / "train.log", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":3,\"tokens\":9}\n");
  EXPECT_THAT(RunLog::read(run.path()).series("loss", "tokens").y, ElementsAre(3));
}

}  // namespace
}  // namespace caravan::run_log_test
