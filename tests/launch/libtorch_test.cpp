#include "apps/caravan/libtorch.h"

#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

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

}  // namespace
}  // namespace caravan::app::libtorch_test
