#include <array>
#include <csignal>
#include <thread>
#include <unistd.h>

#include "caravan/base/error.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing::stop_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// The process IDs of all ranks.
std::vector<int32_t> processes_of(Communicator& world) {
  const auto own = static_cast<int32_t>(getpid());
  std::vector<int32_t> all(static_cast<size_t>(world.size()));
  world.all_gather({&own, 1, Dtype::int32}, {all.data(), world.size(), Dtype::int32, {}});
  return all;
}

char state_of(int32_t process) {
  std::array<char, 256> text{};
  FILE* file = std::fopen(("/proc/" + std::to_string(process) + "/stat").c_str(), "r");
  if (file == nullptr) return 0;
  [[maybe_unused]] const size_t got = std::fread(text.data(), 1, text.size() - 1, file);
  std::fclose(file);
  const std::string all = text.data();
  return all[all.rfind(')') + 2];
}

void wait_until_stopped(int32_t process) {
  for (int i = 0; i < 20'000 && state_of(process) != 'T'; ++i) std::this_thread::sleep_for(milliseconds(1));
}

TEST(Stop, AStoppedRankIsStalledNotLost) {
  run_process_ranks(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        const std::vector<int32_t> processes = processes_of(*world);
        world->barrier("before the stop");
        if (world->rank() == 1) raise(SIGSTOP);  // continued below, after the others have timed out
        const std::string error = error_of<CommError>([&] { world->barrier("after the stop"); });
        EXPECT_THAT(error, HasSubstr("after the stop"));
        if (world->rank() == 1) return;
        EXPECT_THAT(error, Not(HasSubstr("is lost")));
        // The rank that times out first tells the others.
        EXPECT_THAT(error,
                    AllOf(HasSubstr("rank 1"), HasSubstr("did not join within 0.7 s"),
                          HasSubstr("rank 1 is stalled: its process " + std::to_string(processes[1]) + " is stopped"),
                          HasSubstr("\"before the stop\"")));
        std::this_thread::sleep_for(milliseconds(500));  // until the others have checked its state
        if (world->rank() == 0) kill(processes[1], SIGCONT);
      },
      CommOptions{.timeout = milliseconds(700)});
}

/// Each rank in turn is stopped in the middle of large operations and continued before the time-out.
TEST(Stop, ARankThatContinuesInTimeIsNotAnError) {
  run_process_ranks(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        const std::vector<int32_t> processes = processes_of(*world);
        std::vector<float> data(300'000);
        const Buffer buffer{data.data(), 300'000, Dtype::fp32, {}};
        for (int victim = 0; victim < world->size(); ++victim) {
          std::jthread helper;
          if (world->rank() == (victim + 1) % world->size()) {
            helper = std::jthread([number = processes[static_cast<size_t>(victim)]] {
              std::this_thread::sleep_for(milliseconds(5));
              kill(number, SIGSTOP);
              wait_until_stopped(number);
              std::this_thread::sleep_for(milliseconds(200));
              kill(number, SIGCONT);
            });
          }
          for (int i = 0; i < 100; ++i) {
            for (float& value : data) value = static_cast<float>(world->rank() + 1);
            world->all_reduce(buffer, buffer, ReduceOp::sum, "through the stop");
            ASSERT_EQ(data[0], 6.0F);
            ASSERT_EQ(data[299'999], 6.0F);
          }
        }
      },
      CommOptions{.timeout = seconds(25)});
}

/// A rank that computes or sleeps longer than several checks of the processes is not reported.
TEST(Stop, ASlowRankIsNotAccused) {
  run_process_ranks(
      2,
      [](const std::shared_ptr<Communicator>& world) {
        world->barrier();
        if (world->rank() == 1) std::this_thread::sleep_for(milliseconds(800));
        world->barrier("slow");
      },
      CommOptions{.timeout = seconds(25)});
}

/// A rank that misses the time-out is reported as late, not as stalled or lost.
TEST(Stop, ALateRankIsLateNotStalledNorLost) {
  run_process_ranks(
      2,
      [](const std::shared_ptr<Communicator>& world) {
        world->barrier("both");
        if (world->rank() == 1) std::this_thread::sleep_for(milliseconds(900));
        const std::string error = error_of<CommError>([&] { world->barrier("late"); });
        if (world->rank() == 1) return;
        EXPECT_THAT(error, AllOf(HasSubstr("rank 1 of 2 did not join within 0.3 s"), HasSubstr("\"both\""),
                                 Not(HasSubstr("stalled")), Not(HasSubstr("is lost"))));
      },
      CommOptions{.timeout = milliseconds(300)});
}

}  // namespace
}  // namespace caravan::testing::stop_test
