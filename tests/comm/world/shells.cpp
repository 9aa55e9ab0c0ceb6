#include "tests/comm/world/shells.h"

#include <array>
#include <cstdio>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

namespace caravan::testing {

Ended shell(const std::string& command) {
  const std::string limited = "exec 2>&1; timeout -k 1 60 sh -c '" + command + "'";
  FILE* pipe = popen(limited.c_str(), "r");
  Ended ended;
  std::array<char, 4096> bytes;
  for (size_t got = 0; (got = fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) ended.output.append(bytes.data(), got);
  const int status = pclose(pipe);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

std::string rank_program() { return CARAVAN_TEST_WORLD_RANK; }

std::string by_hand(const Place& place, const std::string& address, int port) {
  return "RANK=" + std::to_string(place.rank) + " WORLD_SIZE=" + std::to_string(place.size) +
         " LOCAL_RANK=" + std::to_string(place.local_rank) + " LOCAL_WORLD_SIZE=" + std::to_string(place.local_size) +
         " MASTER_ADDR=" + address + " MASTER_PORT=" + std::to_string(port) + " ";
}

std::string by_hand(int rank, const std::string& address, int port, int local_size) {
  return by_hand(Place{rank, 2, local_size == 2 ? rank : 0, local_size}, address, port);
}

void expect_all_ranks(const Ended& ended, const std::string& backend, int size) {
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_THAT(ended.output, ::testing::HasSubstr("rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                                   " by " + backend + ": token 42"));
  }
}

}  // namespace caravan::testing
