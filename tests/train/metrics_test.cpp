#include "caravan/train/folder/metrics.h"

#include <algorithm>
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "tests/data/support.h"

namespace caravan::metrics_test {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> keys(const StepMetrics& metrics) {
  std::vector<std::string> keys;
  const ordered_json line = ordered_json::parse(metrics.to_json());
  for (const auto& [key, value] : line.items()) keys.push_back(key);
  return keys;
}

TEST(StepMetrics, HaveTheKeysOfTheLog) {
  StepMetrics metrics{.step = 3, .loss = 0.1, .tokens = int64_t{1} << 60};
  std::vector<std::string> want{"step",
                                "loss",
                                "grad_norm",
                                "lr",
                                "tokens",
                                "step_ms",
                                "tokens_per_second",
                                "comm_ms",
                                "bytes_sent",
                                "peak_memory_bytes",
                                "state_bytes",
                                "predicted_memory_bytes",
                                "predicted_resident_bytes",
                                "model_flops_per_second"};
  EXPECT_EQ(keys(metrics), want);
  metrics.val_loss = 2.5;
  metrics.val_bits_per_byte = 1.25;
  want.insert(want.end(), {"val_loss", "val_bits_per_byte"});
  EXPECT_EQ(keys(metrics), want);
  const auto line = ordered_json::parse(metrics.to_json());
  EXPECT_EQ(line["step"], 3);
  EXPECT_EQ(line["loss"].get<double>(), 0.1);  // printed with the fewest digits that parse to the same value
  EXPECT_EQ(line["tokens"].get<int64_t>(), int64_t{1} << 60);
  EXPECT_EQ(metrics.to_json().find('\n'), std::string::npos);
}

std::string line(int64_t step) { return StepMetrics{.step = step}.to_json() + "\n"; }

TEST(MetricsLog, EachLineIsThereWhenWritten) {
  const TemporaryFolder run;
  MetricsLog log(run.path(), 0);
  log.write({.step = 1});
  EXPECT_EQ(read_file(run / "train.log"), line(1));
  log.write({.step = 2});
  EXPECT_EQ(read_file(run / "train.log"), line(1) + line(2));
}

TEST(MetricsLog, ResumeDropsLinesAfterTheCheckpointAndAPartialLine) {
  const TemporaryFolder run;
  write_file(run / "train.log", line(1) + line(2) + "not JSON\n" + line(3) + line(4).substr(0, 20));
  {
    MetricsLog log(run.path(), 2);
    EXPECT_EQ(read_file(run / "train.log"), line(1) + line(2));
    log.write({.step = 3, .loss = 7});
  }
  // A truncated line of a step that is kept.
  write_file(run / "train.log", line(1) + line(2).substr(0, 30));
  MetricsLog log(run.path(), 9);
  EXPECT_EQ(read_file(run / "train.log"), line(1));
  log.write({.step = 2});
  EXPECT_EQ(read_file(run / "train.log"), line(1) + line(2));
}

TEST(MetricsLog, AMissingFolderIsAnError) {
  const TemporaryFolder run;
  EXPECT_NE(message_of<Error>([&] { MetricsLog(run / "none", 0); }), "");
}

/// The line is as if the evaluation had not been interrupted.
TEST(MetricsLog, AnEvaluationIsAddedToItsLine) {
  StepMetrics evaluated{.step = 2, .loss = 0.1, .tokens = 64};
  evaluated.drain = SyncReport{.clocks = {2, 3}};
  evaluated.time = "2026-03-01T09:00:00.000Z";
  evaluated.host = "a";
  const StepMetrics interrupted = evaluated;
  evaluated.val_loss = 1.0 / 3;
  evaluated.val_bits_per_byte = 0.7;

  const TemporaryFolder run;
  write_file(run / "train.log", line(1) + interrupted.to_json() + "\n");
  MetricsLog log(run.path(), 2);
  log.write_changes(2, {{"optimizer.lr", "1", "2"}});
  EXPECT_FALSE(log.last_validation());
  log.add_evaluation(evaluated);
  EXPECT_EQ(log.last_validation(), evaluated.val_loss);
  log.write({.step = 3});
  const std::string text = read_file(run / "train.log");
  EXPECT_TRUE(text.starts_with(line(1) + evaluated.to_json() + "\n")) << text;
  EXPECT_TRUE(text.ends_with("\n" + line(3))) << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 4);
}

/// The line may have been lost with the host's power, for example.
TEST(MetricsLog, AnEvaluationWithoutALineGetsOne) {
  const TemporaryFolder run;
  MetricsLog log(run.path(), 5);
  log.add_evaluation({.step = 5, .val_loss = 0.5, .val_bits_per_byte = 0.25});
  EXPECT_EQ(read_file(run / "train.log"), R"({"step":5,"val_loss":0.5,"val_bits_per_byte":0.25})"
                                          "\n");
  EXPECT_EQ(log.last_validation(), 0.5);
  EXPECT_FALSE(log.has_last_sample());
  log.write_sample(5, "text");
  EXPECT_TRUE(log.has_last_sample());
}

TEST(ExpertLoad, OfLayersWithoutCopiesIsEven) {
  const ExpertLoad load{.copies = {{}, {0, 0}, {INT64_MAX, INT64_MAX, 0}}};
  EXPECT_EQ(load.extremes(0), (std::pair<double, double>{1, 1}));
  EXPECT_EQ(load.extremes(1), (std::pair<double, double>{1, 1}));
  EXPECT_NEAR(load.extremes(2).second, 1.5, 1e-12);  // the sum does not fit into an int64
}

}  // namespace
}  // namespace caravan::metrics_test
