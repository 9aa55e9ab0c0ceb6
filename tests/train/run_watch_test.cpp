#include "caravan/train/watch/run_watch.h"

#include <cmath>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/data/support.h"

namespace caravan::testing::run_watch_test {
namespace {

using ::testing::HasSubstr;

StepMetrics line(int64_t step, double loss, double grad_norm = 1) {
  return {.step = step, .loss = loss, .grad_norm = grad_norm, .step_ms = 10, .comm_ms = 1};
}

StepMetrics watched(RunWatch& watch, StepMetrics metrics, const RunWatch::StepTimes& times = {.wall_ms = 10}) {
  watch.stepped(metrics, times);
  return metrics;
}

TEST(RunWatch, NamesSpikes) {
  run_thread_ranks(1, [](const auto& world) {
    const Mesh mesh = Mesh::create(world, {{"dp", 1}});
    for (const bool names : {true, false}) {
      RunWatch watch(mesh, names);
      for (int64_t step = 1; step <= 30; ++step) {
        const double on = static_cast<double>(step);
        EXPECT_EQ(watched(watch, line(step, 4 + 0.01 * std::fmod(on, 5), 1 + 0.1 * std::fmod(on, 4))).spike, "");
      }
      const std::string loss = watched(watch, line(31, 9)).spike, norm = watched(watch, line(32, 4, 80)).spike;
      EXPECT_THAT(loss, names ? HasSubstr("loss 9") : HasSubstr(""));
      EXPECT_THAT(norm, names ? HasSubstr("gradient norm 80") : HasSubstr(""));
      EXPECT_EQ(loss.empty(), !names);
      EXPECT_EQ(norm.empty(), !names);
    }
  });
}

TEST(RunWatch, ARunThatGoesOnHasTheSpikesOfAnUninterruptedOne) {
  const TemporaryFolder folder;
  run_thread_ranks(1, [&](const auto& world) {
    const Mesh mesh = Mesh::create(world, {{"dp", 1}});
    RunWatch whole(mesh, true), second(mesh, true), forgetful(mesh, true);
    std::string log = "{\"step\":1,\"resumed\":true}\nno line\n{\"step\":1,\"loss\":null,\"grad_norm\":1}\n";
    for (int64_t step = 1; step <= 25; ++step) {
      StepMetrics metrics = line(step, 4 + 0.01 * std::fmod(static_cast<double>(step), 5));
      whole.stepped(metrics, {.wall_ms = 10});
      log += metrics.to_json() + "\n";
    }
    std::ofstream(folder / "train.log") << log;
    second.resume(folder / "train.log");
    const std::string spike = watched(whole, line(26, 9)).spike;
    EXPECT_THAT(spike, HasSubstr("loss 9"));
    EXPECT_EQ(watched(second, line(26, 9)).spike, spike);
    EXPECT_EQ(watched(forgetful, line(26, 9)).spike, "");
  });
}

TEST(RunWatch, NamesTheRankThatOthersWaitFor) {
  run_thread_ranks(3, [](const auto& world) {
    const Mesh mesh = Mesh::create(world, {{"dp", 3}});
    RunWatch watch(mesh, true);
    std::string news;
    for (int64_t step = 1; step <= 6 * RunWatch::kSteps; ++step) {
      const bool is_late = step > 5 * RunWatch::kSteps;
      const double data_ms = mesh.rank() == 2 && is_late ? 40 : 1;
      news += watched(watch, line(step, 4), {.wall_ms = is_late ? 52.0 : 12.0, .data_ms = data_ms}).slowdown;
    }
    EXPECT_THAT(news, HasSubstr("a step takes 52.0 ms, 12.0 before: the data of rank 2 take 40.0 ms"));
  });
}

}  // namespace
}  // namespace caravan::testing::run_watch_test
