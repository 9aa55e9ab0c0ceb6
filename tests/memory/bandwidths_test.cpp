// What doctor keeps of its measurements, and what a planner reads of it.
#include "caravan/memory/bandwidths.h"

#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/data/support.h"

namespace caravan::testing::bandwidths_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Bandwidths : public ::testing::Test {
 protected:
  Bandwidths() { ::setenv("CARAVAN_CACHE", (folder_ / "cache").c_str(), 1); }
  ~Bandwidths() override { ::unsetenv("CARAVAN_CACHE"); }

  TemporaryFolder folder_;
};

TEST_F(Bandwidths, AreAssumedUntilTheyAreMeasured) {
  const TierBandwidths assumed = read_tier_bandwidths();
  EXPECT_EQ(assumed.host, "");
  EXPECT_FALSE(assumed.is_copy_measured);
  EXPECT_GT(assumed.copy_bytes_per_second, 0);
  const auto disk = assumed.disk(folder_ / "offload");
  EXPECT_FALSE(disk.is_measured);
  EXPECT_EQ(disk.folder, folder_ / "offload");
  EXPECT_GT(disk.read_bytes_per_second, 0);
  EXPECT_GT(disk.write_bytes_per_second, 0);
}

TEST_F(Bandwidths, AreReadAsTheyWereWritten) {
  const std::filesystem::path strange = folder_ / "a \"b\"\n\\c";
  std::filesystem::create_directory(strange);
  TierBandwidths written{.host = "node \"7\"", .date = "2026-03-01T09:30:05.250Z", .copy_bytes_per_second = 12.5e9};
  written.disks = {{"/dev/shm", 7e9, 6e9, true}, {strange, 1.5e9, 0.5e9, true}};
  write_tier_bandwidths(written);
  const TierBandwidths read = read_tier_bandwidths();
  EXPECT_EQ(read.host, written.host);
  EXPECT_EQ(read.date, written.date);
  EXPECT_EQ(read.copy_bytes_per_second, 12.5e9);
  EXPECT_TRUE(read.is_copy_measured);
  ASSERT_EQ(read.disks.size(), 2U);
  EXPECT_EQ(read.disks[1].folder, strange);
  EXPECT_EQ(read.disks[1].read_bytes_per_second, 1.5e9);
  EXPECT_EQ(read.disks[1].write_bytes_per_second, 0.5e9);
  // A folder that is not measured itself, and may not exist yet, has the rates of its file system.
  EXPECT_EQ(read.disk("/dev/shm/not/there").read_bytes_per_second, 7e9);
  EXPECT_TRUE(read.disk("/dev/shm/not/there").is_measured);
  EXPECT_FALSE(read.disk("/proc").is_measured);
  written.disks.clear();
  write_tier_bandwidths(written);
  EXPECT_TRUE(read_tier_bandwidths().disks.empty());
}

TEST_F(Bandwidths, ABrokenFileIsNamed) {
  std::filesystem::create_directories(folder_ / "cache");
  const std::string host = "[host]\nname = 'a'\ndate = 'b'\ncopy_bytes_per_second = 1e9\n";
  const auto refusal = [&](const std::string& text) {
    write_file(tier_bandwidths_file(), text);
    return message_of<DataError>([] { read_tier_bandwidths(); });
  };
  EXPECT_THAT(refusal("[host\n"), AllOf(HasSubstr(tier_bandwidths_file().string()), HasSubstr("line 1")));
  EXPECT_THAT(refusal(""), AllOf(HasSubstr(tier_bandwidths_file().string()), HasSubstr("has no [host]")));
  EXPECT_THAT(refusal("host = 1"), HasSubstr("has no [host]"));
  EXPECT_THAT(refusal("[host]\nname = 'a'\ndate = 'b'\ncopy_bytes_per_second = 0"),
              HasSubstr("copy_bytes_per_second of [host] is not a positive number"));
  EXPECT_THAT(refusal("[host]\nname = 1"), HasSubstr("name of [host] is not a text"));
  EXPECT_THAT(refusal(host + "[disk]\nfolder = '/'"), HasSubstr("not a list of tables"));
  EXPECT_THAT(refusal(host + "[[disk]]\nfolder = '/'\nread_bytes_per_second = nan"),
              AllOf(HasSubstr("read_bytes_per_second of [[disk]]"), HasSubstr("caravan doctor")));
}

TEST_F(Bandwidths, MeasuringLeavesNothingBehind) {
  std::filesystem::create_directory(folder_ / "disk");
  std::vector<std::string> notes;
  const TierBandwidths::Disk disk = measure_disk(folder_ / "disk", notes);
  EXPECT_TRUE(disk.is_measured);
  EXPECT_EQ(disk.folder, folder_ / "disk");
  EXPECT_GT(disk.read_bytes_per_second, 0);
  EXPECT_GT(disk.write_bytes_per_second, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "disk"));
}

}  // namespace
}  // namespace caravan::testing::bandwidths_test
