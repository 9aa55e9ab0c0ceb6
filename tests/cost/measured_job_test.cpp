// The hardware of a job as its ranks measure it, and the cache of that. What is measured is not compared with anything
// here: bench/plan_accuracy.py does that.
#include "caravan/cost/measured_job.h"

#include <chrono>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/data/support.h"

namespace caravan::testing::measured_job_test {
namespace {

namespace fs = std::filesystem;

class MeasuredJobTest : public ::testing::Test {
 protected:
  /// The hosts of the ranks, a letter each.
  JobHardware measure(const std::string& hosts, const std::string& choices = "") const {
    JobHardware of_rank_0;
    run_thread_ranks(static_cast<int>(hosts.size()), [&](const std::shared_ptr<Communicator>& world) {
      const JobPlace place{.host = hosts.substr(static_cast<size_t>(world->rank()), 1), .choices = choices};
      JobHardware one = job_hardware(*world, place, folder_.path() / "cache", {.dtypes = {"fp32"}, .seconds = 0.2});
      if (world->rank() == 0) of_rank_0 = std::move(one);
    });
    return of_rank_0;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(folder_.path() / "cache")) all.push_back(entry.path());
    return all;
  }

  TemporaryFolder folder_;
};

TEST_F(MeasuredJobTest, HostsAreLinkedByAnOuterLevel) {
  const JobHardware job = measure("aabb");
  EXPECT_GT(job.measured_seconds, 0);
  const Hardware& hardware = job.hardware;
  EXPECT_EQ(hardware.num_devices(), 4);
  EXPECT_TRUE(hardware.is_uniform());
  ASSERT_EQ(hardware.hosts.size(), 1U);  // of one kind
  EXPECT_EQ(hardware.hosts.front().count, 2);
  EXPECT_EQ(hardware.hosts.front().devices, 2);
  EXPECT_TRUE(hardware.device_of(3).is_processor);
  EXPECT_GT(hardware.device_of(3).product("fp32")->flops, 0);
  EXPECT_EQ(hardware.level_of({0, 1}).name, "host");
  EXPECT_EQ(hardware.level_of({1, 2}).name, "network");
  for (const LinkLevel& level : hardware.levels) {
    EXPECT_GT(level.bytes_per_second, 0) << level.name;
    EXPECT_GT(level.latency_seconds, 0) << level.name;
  }
}

TEST_F(MeasuredJobTest, AMeasurementIsKeptForADay) {
  const Hardware first = measure("aa").hardware;
  EXPECT_EQ(first.num_devices(), 2);
  ASSERT_EQ(files().size(), 1U);
  const JobHardware found = measure("aa");
  EXPECT_EQ(found.measured_seconds, 0);
  EXPECT_GE(found.age_seconds, 0);
  EXPECT_EQ(found.hardware, first);
  EXPECT_GT(measure("aa", "another library").measured_seconds, 0);
  EXPECT_GT(measure("a").measured_seconds, 0);
  EXPECT_EQ(files().size(), 3U);
  for (const fs::path& file : files()) fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(25));
  EXPECT_GT(measure("a").measured_seconds, 0);
  for (const fs::path& file : files()) std::ofstream(file) << "name = 3";
  EXPECT_GT(measure("a").measured_seconds, 0);
  EXPECT_EQ(measure("a").measured_seconds, 0);
}

TEST_F(MeasuredJobTest, UnequalHostsAreRefused) {
  EXPECT_THROW(measure("aab"), UsageError);
  EXPECT_THROW(measure("abab"), UsageError);
  EXPECT_FALSE(fs::exists(folder_.path() / "cache"));
}

}  // namespace
}  // namespace caravan::testing::measured_job_test
