// Goodput against a run that fails at random, checkpoint by checkpoint, and against all intervals.
#include "caravan/plan/goodput.h"

#include <cmath>
#include <gmock/gmock.h>
#include <random>

#include <gtest/gtest.h>

#include "caravan/plan/time_range.h"

namespace caravan::testing::goodput_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Lives through `num_checkpoints` intervals: the share of its time that is steps which are kept.
double lived_share(const FailingRun& run, int64_t steps, int num_checkpoints) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> until_failure(1 / run.mtbf);
  const double interval = static_cast<double>(steps) * run.step, segment = interval + run.stops;
  double time = 0;
  for (int done = 0; done < num_checkpoints;) {
    double left = until_failure(random);
    if (left >= segment) {
      time += segment;
      ++done;
      continue;
    }
    time += left;
    for (left = until_failure(random); left < run.restart; left = until_failure(random)) time += left;
    time += run.restart;
  }
  return interval * num_checkpoints / time;
}

TEST(Goodput, IsTheShareOfARunThatFailsAtRandom) {
  const FailingRun runs[] = {{.step = 10, .stops = 60, .writes = 60, .mtbf = 4 * 3600, .restart = 900},
                             {.step = 10, .stops = 300, .writes = 300, .mtbf = 3600, .restart = 1200},
                             {.step = 30, .stops = 1, .writes = 1, .mtbf = 86400, .restart = 60}};
  for (const FailingRun& run : runs) {
    const Goodput found = goodput_of(run);
    EXPECT_NEAR(found.share, lived_share(run, found.steps, 200'000), 0.005) << run.mtbf;
    EXPECT_EQ(found.interval, static_cast<double>(found.steps) * run.step);
  }
}

TEST(Goodput, HasTheBestInterval) {
  const FailingRun run{.step = 20, .stops = 45, .writes = 45, .mtbf = 3 * 3600, .restart = 600};
  const auto share_at = [&](int64_t steps) {
    const double interval = static_cast<double>(steps) * run.step;
    return interval / (run.mtbf * std::exp(run.restart / run.mtbf) * (std::exp((interval + run.stops) / run.mtbf) - 1));
  };
  int64_t best = 1;
  for (int64_t steps = 1; steps < 1000; ++steps) best = share_at(steps) > share_at(best) ? steps : best;
  const Goodput found = goodput_of(run);
  EXPECT_NEAR(static_cast<double>(found.steps), static_cast<double>(best), 1);
  EXPECT_NEAR(found.share, share_at(best), 1e-4);
  // Young's first order, where failures are rare.
  const Goodput rare = goodput_of({.step = 0.1, .stops = 45, .writes = 45, .mtbf = 1e7, .restart = 600});
  EXPECT_NEAR(rare.interval / std::sqrt(2 * 45 * 1e7), 1, 0.01);
}

TEST(Goodput, CheckpointsInTheBackgroundStopLessAndAreLostWhileTheyAreWritten) {
  const FailingRun stops{.step = 1, .stops = 120, .writes = 120, .mtbf = 7200, .restart = 300};
  FailingRun behind = stops;
  behind.stops = 2;
  const Goodput found = goodput_of(behind);
  EXPECT_GT(found.share, goodput_of(stops).share);
  EXPECT_GE(found.interval, 118) << "one is written before the next begins";
  EXPECT_NEAR(found.lost, 300 + 118 + (found.interval + 2) / 2, 1e-9);
  EXPECT_THAT(to_text(found), HasSubstr("in the background"));
}

TEST(Goodput, IsZeroWhereNoCheckpointIsReached) {
  EXPECT_LT(goodput_of({.step = 1, .stops = 1e6, .writes = 1e6, .mtbf = 60, .restart = 60}).share, 1e-9);
}

TEST(Goodput, SaysWhatItAssumesOfAccelerators) {
  Hardware hardware = preset_hardware({.device = "h100-80", .per_host = 8, .hosts = 2048});
  const CheckpointSize size{.rank_bytes = 300'000'000, .total_bytes = 4'860'000'000'000};  // 405 B parameters
  const auto found = goodput_on(hardware, 16384, size, 10, /*is_async=*/false);
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->mtbf, 54 * 86400 / 419.0, 10) << "Llama 3";
  EXPECT_NEAR(found->writes, 2.4, 1e-9) << "8 ranks at 1 GB/s";
  EXPECT_GT(found->share, 0.9) << "as Llama 3 reports";
  EXPECT_THAT(found->assumed, ElementsAre("mtbf 50700 h a device", "storage_rate 1 GB/s a host", "restart 10 min"));
  hardware.devices[0].mtbf_seconds = 3600 * 10'000;
  hardware.hosts[0].storage_bytes_per_second = 2e9;
  hardware.restart_seconds = 60;
  const auto said = goodput_on(hardware, 1000, size, 10, false);
  EXPECT_THAT(said->assumed, ElementsAre());
  EXPECT_NEAR(said->mtbf, 36000, 1e-6);
  EXPECT_NEAR(said->writes, 1.2, 1e-9);
  EXPECT_NEAR(said->lost, 60 + 1.2 + (said->interval + 1.2) / 2, 1e-9);
  hardware.devices[0].mtbf_seconds = 0, hardware.restart_seconds = 0;
  hardware.hosts[0].storage_bytes_per_second = 0;
  hardware.devices[0].is_processor = true;
  EXPECT_FALSE(goodput_on(hardware, 8, size, 10, false)) << "nothing is usual for processors";
  hardware.devices[0].mtbf_seconds = 3600 * 10'000;
  EXPECT_TRUE(goodput_on(hardware, 8, size, 10, false));
}

TEST(Goodput, IsALineOfText) {
  const Goodput goodput{
      .share = 0.941, .steps = 276, .interval = 2280, .lost = 1860, .stops = 12, .writes = 12, .mtbf = 181440};
  EXPECT_EQ(to_text(goodput),
            "94.1 %: a checkpoint each 276 steps (38 min) takes 12 s; a failure each 2.1 days costs 31 min");
  EXPECT_EQ(duration_range_text(17.04 * 86400, 21.4 * 86400), "17 to 21 days");
  EXPECT_EQ(duration_range_text(80, 100), "80 s to 1.7 min");
  EXPECT_EQ(duration_text(0.25), "250 ms");
  EXPECT_EQ(duration_text(1.2e-5), "0.012 ms");
  EXPECT_EQ(duration_text(5.24), "5.2 s");
  EXPECT_EQ(duration_text(5400), "1.5 h");
  EXPECT_EQ(duration_text(86400 * 800.0), "2.2 years");
}

TEST(TimeRange, ContainsWhatHasTheErrorOfThePrediction) {
  const TimeRange range = time_range(8.26, 0.12);
  EXPECT_NEAR(8.26 / range.low - 1, 0.12, 1e-12);
  EXPECT_NEAR(8.26 / range.high - 1, -0.12, 1e-12);
  EXPECT_EQ(range.to_text(), "7.37 to 9.39 s");
  EXPECT_EQ(time_range(0.2, 0.3).to_text(), "154 to 286 ms");
  EXPECT_EQ(time_range(1, 0.25).to_text(), "800 to 1333 ms");
}

TEST(TimeRange, IsThatOfTheLeastKnownDevice) {
  Hardware hardware = preset_hardware({.device = "a100-80"});
  EXPECT_EQ(time_error_of(hardware, 1), 0.12) << "the ninth decile of published runs";
  hardware.devices.push_back(*preset_device("t4"));
  hardware.hosts.push_back({.device = "t4"});
  EXPECT_EQ(time_error_of(hardware, 1), 0.12);
  EXPECT_EQ(time_error_of(hardware, 2), preset_device("t4")->time_error);
  EXPECT_GT(preset_device("t4")->time_error, preset_device("b200")->time_error) << "products of B200 are measured";
  EXPECT_GT(preset_device("b200")->time_error, 0.12);
}

}  // namespace
}  // namespace caravan::testing::goodput_test
