#include "caravan/base/system/memory_limit.h"

#include <gtest/gtest.h>

#include "tests/data/support.h"

namespace caravan::memory_limit_test {
namespace {

constexpr int64_t kKiB = 1024;

/// A "/" of files as the kernel shows them.
class UsableMemory : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root / name).parent_path());
    write_file(root / name, text);
  }
  UsableMemory() { put("proc/meminfo", "MemFree:         1 kB\nMemTotal:       16384 kB\nMemAvailable:    5 kB\n"); }
  int64_t bytes() const { return usable_memory_bytes(root.path()); }

  const TemporaryFolder root;
};

TEST_F(UsableMemory, WithoutALimitIsTheInstalledMemory) {
  EXPECT_EQ(bytes(), 16384 * kKiB);
  put("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(bytes(), 16384 * kKiB);
  put("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(bytes(), 16384 * kKiB);
}

TEST_F(UsableMemory, TakesTheLowestLimitOfVersion2Groups) {
  put("proc/self/cgroup", "0::/job/step\n");
  put("sys/fs/cgroup/job/step/memory.max", "max\n");
  put("sys/fs/cgroup/job/memory.max", "4194304\n");
  EXPECT_EQ(bytes(), 4096 * kKiB);
  put("sys/fs/cgroup/job/step/memory.max", "2097152\n");
  EXPECT_EQ(bytes(), 2048 * kKiB);
  put("sys/fs/cgroup/job/step/memory.max", "99999999999\n");
  EXPECT_EQ(bytes(), 4096 * kKiB);
}

TEST_F(UsableMemory, TakesTheLimitOfTheMountInsideAContainer) {
  put("proc/self/cgroup", "0::/outside/of/this/namespace\n");
  put("sys/fs/cgroup/memory.max", "1048576\n");
  EXPECT_EQ(bytes(), 1024 * kKiB);
}

TEST_F(UsableMemory, ReadsTheSeparateHierarchyOfVersion1) {
  put("proc/self/cgroup", "11:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/\n");
  put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "3145728\n");
  EXPECT_EQ(bytes(), 3072 * kKiB);
  put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(bytes(), 16384 * kKiB);
  put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "99999999999999999999\n");
  EXPECT_EQ(bytes(), 16384 * kKiB);
}

TEST_F(UsableMemory, IsUnknownWithoutFiles) { EXPECT_EQ(usable_memory_bytes(root / "nothing"), 0); }

TEST(UsableMemoryHere, IsKnown) { EXPECT_GT(usable_memory_bytes(), 0); }

}  // namespace
}  // namespace caravan::memory_limit_test
