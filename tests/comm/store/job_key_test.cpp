#include "caravan/comm/store/secret/job_key.h"

#include <cstdlib>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/ranks/rank_case.h"

namespace caravan::job_key_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

class JobKeyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"CARAVAN_JOB_ID", "CARAVAN_SECRET", "TORCHELASTIC_RUN_ID"}) unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
};

TEST_F(JobKeyTest, OfRanksComesFromTheEnvironment) {
  const JobKey open = JobKey::from_environment(4);
  EXPECT_EQ(open.id, "");
  EXPECT_EQ(open.secret, "");
  EXPECT_EQ(open.world_size, 4);
  set("CARAVAN_SECRET", "sixteen bytes it");
  set("TORCHELASTIC_RUN_ID", "elastic");
  EXPECT_EQ(JobKey::from_environment(4).secret, "sixteen bytes it");
  EXPECT_EQ(JobKey::from_environment(4).id, "elastic");
  set("CARAVAN_JOB_ID", "own");
  EXPECT_EQ(JobKey::from_environment(4).id, "own");
}

TEST_F(JobKeyTest, OfALaunchIsRandomUnlessGiven) {
  const JobKey one = JobKey::for_launch(2);
  const JobKey two = JobKey::for_launch(2);
  EXPECT_EQ(one.secret.size(), 64U);
  EXPECT_NE(one.secret, two.secret);
  EXPECT_NE(one.id, two.id);
  set("CARAVAN_SECRET", "the secret of both launchers");
  set("CARAVAN_JOB_ID", "two hosts");
  EXPECT_EQ(JobKey::for_launch(2).secret, "the secret of both launchers");
  EXPECT_EQ(JobKey::for_launch(2).id, "two hosts");
}

TEST_F(JobKeyTest, RefusesBadLengthsWithoutPrintingTheSecret) {
  for (const std::string& secret : {std::string("fifteen bytes!!"), std::string(1025, 'z')}) {
    set("CARAVAN_SECRET", secret);
    EXPECT_THAT(error_of<UsageError>([] { JobKey::from_environment(2); }),
                AllOf(HasSubstr("[environment] CARAVAN_SECRET: has " + std::to_string(secret.size())),
                      HasSubstr("16 to 1024 are needed"), HasSubstr("openssl rand -hex 32"), Not(HasSubstr(secret))));
    EXPECT_THROW(JobKey::for_launch(2), UsageError);
  }
  unsetenv("CARAVAN_SECRET");
  set("CARAVAN_JOB_ID", std::string(129, 'j'));
  EXPECT_THAT(error_of<UsageError>([] { JobKey::from_environment(2); }), HasSubstr("129 bytes, more than 128"));
}

}  // namespace
}  // namespace caravan::job_key_test
