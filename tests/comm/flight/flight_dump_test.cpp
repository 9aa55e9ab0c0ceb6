#include <array>
#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <numeric>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/flight/compare.h"
#include "caravan/comm/flight/dump.h"
#include "tests/ranks/rank_case.h"

namespace caravan::flight_dump_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FlightDump : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/caravan_flight_XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Runs `body` on three ranks that dump their flights into the folder; every rank must end with a CommError.
  void fail_on_all(const std::function<void(Communicator& world)>& body) {
    run_thread_ranks(3,
                     [&](const std::shared_ptr<Communicator>& world) {
                       dump_flights_on_failure(*world, folder_);
                       EXPECT_THROW(body(*world), CommError) << "rank " << world->rank();
                     },
                     {.timeout = std::chrono::milliseconds(500)});
  }

  fs::path folder_;
};

void all_reduce(Communicator& comm, int64_t count, std::string_view what) {
  std::vector<float> data(static_cast<size_t>(count));
  const Buffer buffer{data.data(), count, Dtype::fp32, {}};
  comm.all_reduce(buffer, buffer, ReduceOp::sum, what);
}

TEST_F(FlightDump, DifferentCallsAreFound) {
  std::ofstream(folder_ / "flight-rank9.json") << "of an earlier job";
  fail_on_all([](Communicator& world) {
    all_reduce(world, 10, "both");
    all_reduce(world, world.rank() == 1 ? 11 : 10, "sizes");
  });
  const FlightReports found = read_flight_reports(folder_);
  ASSERT_EQ(found.reports.size(), 3U);
  EXPECT_TRUE(found.missing.empty());
  for (const FlightReport& report : found.reports) {
    EXPECT_EQ(report.backend, "thread");
    EXPECT_EQ(report.written_by, report.rank);
    EXPECT_THAT(report.reason, HasSubstr("sizes"));
  }
  const auto findings = compare_flights(found.reports);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].kind, Divergence::different_calls);
  EXPECT_EQ(findings[0].sequence, 2U) << "after the broadcast of the dump and the first all_reduce";
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_THAT(findings[0].text,
              AllOf(HasSubstr("ranks 0, 2 called all_reduce sum fp32 [10] \"sizes\" at "),
                    HasSubstr("rank 1 called all_reduce sum fp32 [11]"), HasSubstr("flight_dump_test.cpp:")));
}

TEST_F(FlightDump, ARankThatWaitsElsewhereIsFound) {
  fail_on_all([](Communicator& world) {
    const std::array<std::array<int, 3>, 1> all{{{0, 1, 2}}};
    const auto whole = world.split(all[0], "whole");
    if (world.rank() == 2) return all_reduce(*whole, 4, "elsewhere");
    all_reduce(world, 4, "here");
  });
  const auto findings = compare_flights(read_flight_reports(folder_).reports);
  ASSERT_EQ(findings.size(), 2U);
  for (const FlightFinding& finding : findings) EXPECT_EQ(finding.kind, Divergence::not_begun);
  const auto& here = findings[0].group == "whole" ? findings[1] : findings[0];
  const auto& elsewhere = findings[0].group == "whole" ? findings[0] : findings[1];
  EXPECT_THAT(here.ranks, ElementsAre(2));
  EXPECT_THAT(here.text, HasSubstr("\"elsewhere\""));
  EXPECT_THAT(elsewhere.ranks, ElementsAre(0, 1));
  EXPECT_THAT(elsewhere.text, HasSubstr("\"here\""));
}

TEST_F(FlightDump, NothingIsWrittenWhenNothingFails) {
  run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    dump_flights_on_failure(*world, folder_);
    all_reduce(*world, 10, "fine");
  });
  EXPECT_TRUE(fs::is_empty(folder_));
}

/// Rank 1 stops in the middle and writes nothing more; rank 0 can read its log.
TEST_F(FlightDump, OtherRanksLogsAreWrittenForThem) {
  run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    dump_flights_on_failure(*world, folder_);
    all_reduce(*world, 10, "last");
    if (world->rank() == 1) return world->recorder()->on_failure({});
    EXPECT_THROW(all_reduce(*world, 10, "alone"), CommError);
  });
  const FlightReports found = read_flight_reports(folder_);
  ASSERT_EQ(found.reports.size(), 2U);
  EXPECT_EQ(found.reports[1].written_by, 0);
  const auto findings = compare_flights(found.reports);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_THAT(findings[0].text, AllOf(HasSubstr("\"alone\""), HasSubstr("rank 1 came back from all_reduce"),
                                      HasSubstr("as rank 0 saw it")));
}

/// The folder no longer exists: the failure is reported nevertheless.
TEST_F(FlightDump, AFailedWriteDoesNotHideTheError) {
  fail_on_all([&](Communicator& world) {
    all_reduce(world, 10, "both");
    if (world.rank() == 0) fs::remove_all(folder_);
    world.barrier();
    all_reduce(world, world.rank() == 1 ? 11 : 10, "sizes");
  });
  EXPECT_FALSE(fs::exists(folder_));
}

}  // namespace
}  // namespace caravan::flight_dump_test
