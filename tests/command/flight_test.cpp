// The reports of a failed job, and what `caravan inspect flight` prints about them.
#include <csignal>
#include <fstream>
#include <gmock/gmock.h>
#include <thread>

#include "caravan/comm/flight/report.h"
#include "tests/comm/flight/flight_files.h"
#include "tests/command/command.h"

namespace caravan::flight_test {
namespace {

using ::testing::AllOf;
using testing::FlightJob;
using ::testing::HasSubstr;
using ::testing::Not;

class FlightTest : public CommandTest {
 protected:
  Result inspect() const { return caravan({"inspect", "flight", path("flight")}); }
  void write(const FlightJob& job) const {
    std::filesystem::create_directories(path("flight"));
    for (const FlightReport& report : job.reports) write_flight_report(path("flight"), report);
  }
  static FlightJob different_calls() {
    FlightJob job(3);
    job.add_all(job.world(), 0, {});
    for (const int rank : {0, 2}) job.add(rank, job.world(), 1, {.line = 30, .state = FlightState::failed});
    job.add(1, job.world(), 1, {.verb = Verb::barrier, .what = "end", .line = 44, .state = FlightState::failed});
    return job;
  }
};

TEST_F(FlightTest, NamesTheFirstDivergence) {
  write(different_calls());
  const Result result = inspect();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("job 0123456789abcdef: 3 ranks over shm, 3 reports"),
                    HasSubstr("first divergence: operation 1 of \"world\"\n    ranks 0, 2 called all_reduce sum fp32 "
                              "[10] \"gradient\" at techniques/data/ddp.cpp:30; rank 1 called barrier \"end\" at "
                              "techniques/data/ddp.cpp:44\n")));
  EXPECT_EQ(result.err, "");
}

TEST_F(FlightTest, ReportsThatThereIsNone) {
  FlightJob job(2);
  job.add_all(job.world(), 0, {});
  write(job);
  EXPECT_THAT(inspect().out, HasSubstr("no divergence\n"));
}

TEST_F(FlightTest, MissingFilesAreAnErrorAfterWhatTheOthersSay) {
  write(different_calls());
  std::filesystem::remove(path("flight/flight-rank2.json"));
  const Result result = inspect();
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.out, HasSubstr("first divergence: operation 1 of \"world\""));
  EXPECT_THAT(result.err, HasSubstr("1 of 3 reports are missing: flight-rank2.json"));
}

TEST_F(FlightTest, RefusesReportsOfDifferentJobs) {
  EXPECT_THAT(inspect().err, AllOf(HasSubstr(path("flight")), HasSubstr("cannot be read")));
  write(different_calls());
  write_flight_report(path("flight"), FlightJob(3, "another").reports[1]);
  Result result = inspect();
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("reports of different jobs"));
  std::ofstream(path("flight/flight-rank1.json")) << "{\"format\": ";
  result = inspect();
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("flight-rank1.json"), HasSubstr("is not JSON")));
  EXPECT_EQ(caravan({"inspect", "flight"}).code, 2);
}

/// A rank of a training run is killed; rank 0 writes its report from the shared memory.
TEST_F(FlightTest, OfATrainingRunWithAKilledRank) {
  const auto child = start(tiny("run", 2, {"--set", "train.steps=100000", "comm.backend=shm"}));
  for (int i = 0; i < 2000 && !std::filesystem::exists(path("run/train.log")); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  kill(rank_process(*child, 1), SIGKILL);
  EXPECT_EQ(child->wait(), 4);
  const Result result = caravan({"inspect", "flight", path("run")});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("2 ranks over shm, 2 reports"), HasSubstr("; written by rank 0 "),
                                HasSubstr("rank 1 of the world is lost"), HasSubstr("first divergence: operation "),
                                Not(HasSubstr("no divergence"))));
}

}  // namespace
}  // namespace caravan::flight_test
