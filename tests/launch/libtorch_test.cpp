#include "apps/caravan/launch/libtorch.h"

#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/ranks/rank_case.h"

namespace caravan::app::libtorch_test {
namespace {

TEST(RequireLibtorch, SaysWhereItWasAndWhatToSet) {
  if (::dlopen("libtorch_cpu.so", RTLD_LAZY) != nullptr) GTEST_SKIP() << "LD_LIBRARY_PATH names a libtorch";
  const std::string error = caravan::testing::error_of<UsageError>([] { require_libtorch("/nowhere/torch/lib"); });
  EXPECT_THAT(error, ::testing::HasSubstr("/nowhere/torch/lib"));
  EXPECT_THAT(error, ::testing::HasSubstr("LD_LIBRARY_PATH"));
}

TEST(RequireLibtorch, AcceptsTheFolderThatHoldsIt) {
  const std::filesystem::path folder = ::testing::TempDir() + "caravan_libtorch_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libtorch_cpu.so") << "";
  EXPECT_NO_THROW(require_libtorch(folder));
  std::filesystem::remove_all(folder);
}

TEST(RequireLibtorch, RefusesAnAddressSpaceWithoutRoomForIt) {
  const std::filesystem::path folder = ::testing::TempDir() + "caravan_libtorch_limit_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libtorch_cpu.so") << "";
  std::filesystem::resize_file(folder / "libtorch_cpu.so", uint64_t{1} << 42);  // sparse
  EXPECT_NO_THROW(require_libtorch(folder)) << "without a limit";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit low{rlim_t{1} << 42, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &low), 0);
  const std::string error = caravan::testing::error_of<ResourceError>([&] { require_libtorch(folder); });
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_THAT(error, ::testing::AllOf(::testing::HasSubstr("libtorch alone takes about 4.0 TiB"),
                                      ::testing::HasSubstr("ulimit -v")));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace caravan::app::libtorch_test
