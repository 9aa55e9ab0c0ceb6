#include "caravan/comm/store/rendezvous.h"

#include <cstdlib>
#include <gmock/gmock.h>
#include <map>

#include <gtest/gtest.h>

#include "caravan/base/error.h"

namespace caravan::rendezvous_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Exactly these variables of the job are set.
void set_environment(const std::map<std::string, std::string>& variables) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                           "TORCHELASTIC_USE_AGENT_STORE", "CARAVAN_STORE_PORT", "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}) {
    const auto found = variables.find(name);
    if (found == variables.end()) {
      unsetenv(name);
    } else {
      setenv(name, found->second.c_str(), 1);
    }
  }
}

const std::map<std::string, std::string> kComplete = {{"RANK", "5"},
                                                      {"WORLD_SIZE", "8"},
                                                      {"LOCAL_RANK", "1"},
                                                      {"LOCAL_WORLD_SIZE", "4"},
                                                      {"MASTER_ADDR", "node-0"},
                                                      {"MASTER_PORT", "29500"}};

TEST(RankInfo, WithoutRankItIsAWorldOfOne) {
  set_environment({{"WORLD_SIZE", "nonsense"}});
  const RankInfo info = RankInfo::from_environment();
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.world_size, 1);
}

TEST(RankInfo, ReadsEveryVariable) {
  set_environment(kComplete);
  RankInfo info = RankInfo::from_environment();
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 4);
  EXPECT_EQ(info.master_addr, "node-0");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_FALSE(info.agent_store);
  EXPECT_FALSE(info.store_is_served);
  auto variables = kComplete;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  set_environment(variables);
  EXPECT_TRUE(RankInfo::from_environment().agent_store);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables["CARAVAN_STORE_PORT"] = "4000";
  set_environment(variables);
  info = RankInfo::from_environment();
  EXPECT_FALSE(info.agent_store);
  EXPECT_TRUE(info.store_is_served);
  EXPECT_EQ(info.master_port, 4000);
}

TEST(RankInfo, ReadsTheVariablesOfMpirun) {
  const std::map<std::string, std::string> openmpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                                                      {"OMPI_COMM_WORLD_SIZE", "8"},
                                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  const std::map<std::string, std::string> mpich = {
      {"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};
  for (const auto& variables : {openmpi, mpich}) {
    set_environment(variables);
    const RankInfo info = RankInfo::from_environment();
    EXPECT_TRUE(info.by_mpirun);
    EXPECT_EQ(info.rank, 5);
    EXPECT_EQ(info.world_size, 8);
    EXPECT_EQ(info.local_rank, 1);
    EXPECT_EQ(info.local_world_size, 4);
  }
  auto both = kComplete;  // a launcher of ranks, itself started by mpirun
  both.insert(openmpi.begin(), openmpi.end());
  set_environment(both);
  EXPECT_FALSE(RankInfo::from_environment().by_mpirun);
  set_environment({{"PMI_RANK", "5"}});
  EXPECT_THAT([] { RankInfo::from_environment(); },
              ThrowsMessage<UsageError>(HasSubstr("PMI_SIZE: is not set, but the rank of an mpirun is")));
}

TEST(RankInfo, AWorldOfOneNeedsNoMaster) {
  set_environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
  EXPECT_EQ(RankInfo::from_environment().world_size, 1);
}

TEST(RankInfo, NamesTheMissingVariable) {
  for (const auto& [name, value] : kComplete) {
    if (name == "RANK") continue;
    for (const bool empty : {false, true}) {
      auto variables = kComplete;
      variables.erase(name);
      if (empty) variables[name] = "";
      set_environment(variables);
      EXPECT_THAT([] { RankInfo::from_environment(); },
                  ThrowsMessage<UsageError>(
                      AllOf(HasSubstr("[environment] " + name), HasSubstr(empty ? "is empty" : "is not set"))));
    }
  }
}

TEST(RankInfo, NamesTheVariableThatIsNotANumberOrOutOfRange) {
  const struct {
    const char* name;
    const char* value;
    const char* fact;
    const char* action;
  } cases[] = {
      {"RANK", "8", "8 is out of range", "0 .. 7"},
      {"RANK", "-1", "-1 is out of range", "0 .. 7"},
      {"RANK", "two", "\"two\" is not a whole number", "0 .. 7"},
      {"RANK", "1.5", "\"1.5\" is not", "0 .. 7"},
      {"WORLD_SIZE", "0", "0 is out of range", "1 .. "},
      {"WORLD_SIZE", "99999999999999999999", "out of range", "1 .. "},
      {"LOCAL_WORLD_SIZE", "9", "9 is out of range", "1 .. 8"},
      {"LOCAL_RANK", "4", "4 is out of range", "0 .. 3"},
      {"MASTER_PORT", "65536", "65536 is out of range", "1 .. 65535"},
      {"MASTER_PORT", "0", "0 is out of range", "1 .. 65535"},
      {"MASTER_PORT", " 80", "\" 80\" is not", "1 .. 65535"},
      {"CARAVAN_STORE_PORT", "maybe", "\"maybe\" is not a whole number", "1 .. 65535"},
      {"TORCHELASTIC_USE_AGENT_STORE", "maybe", "\"maybe\" is not a boolean", "1 or 0"},
  };
  for (const auto& wrong : cases) {
    auto variables = kComplete;
    variables[wrong.name] = wrong.value;
    set_environment(variables);
    EXPECT_THAT([] { RankInfo::from_environment(); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("[environment] " + std::string(wrong.name)),
                                                HasSubstr(wrong.fact), HasSubstr(wrong.action))));
  }
}

TEST(RankInfo, TwoLaunchersAreRefused) {
  auto variables = kComplete;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "1";
  variables["CARAVAN_STORE_PORT"] = "4000";
  set_environment(variables);
  EXPECT_THAT([] { RankInfo::from_environment(); }, ThrowsMessage<UsageError>(HasSubstr("two launchers")));
}

}  // namespace
}  // namespace caravan::rendezvous_test
