#include "caravan/train/metrics.h"

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
                                "planned_state_bytes",
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

TEST(MetricsLog, ResumeDropsWhatIsBehindTheCheckpointAndAHalfLine) {
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

TEST(MetricsLog, NoFolderIsAnError) {
  const TemporaryFolder run;
  EXPECT_NE(message_of<Error>([&] { MetricsLog(run / "none", 0); }), "");
}

}  // namespace
}  // namespace caravan::metrics_test
