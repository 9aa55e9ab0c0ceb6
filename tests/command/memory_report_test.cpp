// How the launcher distinguishes a rank that was killed for lack of memory from one that another process killed.
#include <csignal>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "apps/caravan/launch/launch_report.h"
#include "apps/caravan/launch/oom_kills.h"
#include "tests/data/support.h"

namespace caravan::memory_report_test {
namespace {

using ::testing::HasSubstr;

class KernelFiles : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root / name).parent_path());
    write_file(root / name, text);
  }

  const TemporaryFolder root;
};

TEST_F(KernelFiles, TheCounterMayBeMissing) {
  const OomKills kills(root.path().string());
  EXPECT_FALSE(kills.are_counted());
  put("proc/vmstat", "pgfault 1\n");
  EXPECT_FALSE(kills.are_counted());
  put("proc/vmstat", "pgfault 1\noom_kill 0\n");
  EXPECT_TRUE(kills.are_counted());
  EXPECT_FALSE(kills.happened());
}

TEST_F(KernelFiles, TheLimitOfAParentGroupCounts) {
  put("proc/meminfo", "MemTotal:       16384 kB\n");
  put("proc/self/cgroup", "0::/job/step\n");
  put("sys/fs/cgroup/job/memory.max", "4194304\n");
  put("sys/fs/cgroup/job/step/memory.max", "max\n");
  EXPECT_EQ(OomKills(root.path().string()).memory_limit(), 4194304);
}

TEST_F(KernelFiles, SharedPagesAreNotPrivateMemory) {
  put("proc/7/status", "Name:\tcaravan-rank\nVmRSS:\t    9000 kB\nRssAnon:\t    1000 kB\nRssShmem:\t    8000 kB\n");
  const OomKills kills(root.path().string());
  EXPECT_EQ(kills.private_memory(7), 1000 * 1024);
  EXPECT_EQ(kills.private_memory(8), 0) << "it has ended";
}

TEST(MemoryReport, WhatTheKernelDoesNotCountIsOnlyProbable) {
  const RankProcess victim{.rank = 1, .wait_status = SIGKILL, .peak_resident_bytes = int64_t{3} << 30};
  const JobFacts facts{.num_ranks = 2, .memory_ran_out = true, .is_estimated = true};
  EXPECT_EQ(job_code_of(victim, facts), 5);
  EXPECT_THAT(report(victim, {&victim}, facts),
              HasSubstr("rank 1 of 2 was killed by signal 9 (SIGKILL), probably because the host or its control group "
                        "ran out of memory (the rank used 3.0 GiB)\n"));
}

}  // namespace
}  // namespace caravan::memory_report_test
