#include <cstdlib>
#include <cstring>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/comm/flight/report.h"
#include "tests/comm/flight/flight_files.h"
#include "tests/ranks/rank_case.h"

namespace caravan::flight_report_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using testing::FlightJob;
using ::testing::HasSubstr;

class FlightFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/caravan_flight_XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static FlightJob job_of_three(const std::string& id = "job") {
    FlightJob job(3, id);
    job.add_all(job.world(), 0, {.verb = Verb::reduce, .what = "a \"quoted\" \\ name", .begin_ms = 12, .root = 1});
    job.add(1, job.world(), 1, {.state = FlightState::started, .begin_ms = 30});
    return job;
  }
  void write(const FlightJob& job) const {
    for (const FlightReport& report : job.reports) write_flight_report(folder_, report);
  }

  fs::path folder_;
};

void expect_equal(const FlightReport& a, const FlightReport& b) {
  EXPECT_EQ(a.job, b.job);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.world_size, b.world_size);
  EXPECT_EQ(a.written_by, b.written_by);
  EXPECT_EQ(a.backend, b.backend);
  EXPECT_EQ(a.host, b.host);
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.written_ns, b.written_ns);
  EXPECT_EQ(a.written_unix_ns, b.written_unix_ns);
  ASSERT_EQ(a.entries.size(), b.entries.size());
  for (size_t i = 0; i < a.entries.size(); ++i) {
    EXPECT_EQ(to_string(a.entries[i].call), to_string(b.entries[i].call));
    EXPECT_EQ(std::memcmp(&a.entries[i].call, &b.entries[i].call, sizeof(Descriptor)), 0);
    EXPECT_EQ(std::memcmp(&a.entries[i].group, &b.entries[i].group, sizeof(FlightGroup)), 0);
    EXPECT_EQ(a.entries[i].number, b.entries[i].number);
    EXPECT_EQ(a.entries[i].begin_ns, b.entries[i].begin_ns);
    EXPECT_EQ(a.entries[i].end_ns, b.entries[i].end_ns);
    EXPECT_EQ(a.entries[i].state, b.entries[i].state);
  }
}

TEST_F(FlightFolder, ReadsBackWhatWasWritten) {
  FlightJob job = job_of_three();
  job.reports[0].entries[0].group.identity = 0xfedcba9876543210;
  write(job);
  const FlightReports read = read_flight_reports(folder_);
  ASSERT_EQ(read.reports.size(), 3U);
  EXPECT_TRUE(read.missing.empty());
  for (size_t rank = 0; rank < 3; ++rank) expect_equal(read.reports[rank], job.reports[rank]);
}

/// Every verb, a split, and names that are cut within a character.
TEST_F(FlightFolder, HoldsEveryKindOfCall) {
  FlightJob job(1);
  for (int verb = 0; verb <= kNumVerbs; ++verb) {
    job.add(0, job.world(), static_cast<uint64_t>(verb), {.verb = static_cast<Verb>(verb), .root = 0});
  }
  expect_equal(flight_report_from_json(to_json(job.reports[0]), "file"), job.reports[0]);
  job.reports[0].entries[0].call.what = {"caf\xc3"};
  EXPECT_THAT(flight_report_from_json(to_json(job.reports[0]), "file").entries[0].call.what.data(), HasSubstr("caf"));
}

TEST_F(FlightFolder, ARanksOwnReportReplacesAnothers) {
  FlightJob job = job_of_three();
  FlightReport& dead = job.reports[2];
  dead.written_by = 0;
  dead.reason = "as rank 0 saw it";
  write_flight_report(folder_, dead);
  dead.reason = "as rank 0 saw it later";
  write_flight_report(folder_, dead);
  const auto reason = [&] { return read_flight_reports(folder_).reports.front().reason; };
  EXPECT_EQ(reason(), "as rank 0 saw it");
  dead.written_by = 2;
  dead.reason = "its own";
  write_flight_report(folder_, dead);
  EXPECT_EQ(reason(), "its own");
  dead.written_by = 1;
  dead.reason = "as rank 1 saw it";
  write_flight_report(folder_, dead);
  EXPECT_EQ(reason(), "its own");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "something was left beside it";
}

TEST_F(FlightFolder, NamesTheMissing) {
  write(job_of_three());
  fs::remove(flight_file(folder_, 1));
  const FlightReports read = read_flight_reports(folder_);
  EXPECT_EQ(read.reports.size(), 2U);
  EXPECT_THAT(read.missing, ElementsAre(1));
  std::ofstream(folder_ / "flight-rankx.json") << "not one of ours";
  EXPECT_EQ(read_flight_reports(folder_).reports.size(), 2U);
}

TEST_F(FlightFolder, WithoutReportsIsRefused) {
  EXPECT_THAT(error_of<DataError>([&] { read_flight_reports(folder_); }),
              AllOf(HasSubstr(folder_.string()), HasSubstr("holds no flight-rank<r>.json")));
  EXPECT_THAT(error_of<DataError>([&] { read_flight_reports(folder_ / "none"); }), HasSubstr("No such file"));
}

TEST_F(FlightFolder, ReportsOfDifferentJobsAreRefused) {
  write(job_of_three("first"));
  write_flight_report(folder_, job_of_three("second").reports[2]);
  EXPECT_THAT(error_of<DataError>([&] { read_flight_reports(folder_); }),
              AllOf(HasSubstr("rank 0 is of job \"first\""), HasSubstr("rank 2 of job \"second\"")));
}

TEST_F(FlightFolder, AFileUnderAnotherRanksNameIsRefused) {
  write(job_of_three());
  fs::rename(flight_file(folder_, 2), flight_file(folder_, 0));
  EXPECT_THAT(error_of<DataError>([&] { read_flight_reports(folder_); }),
              AllOf(HasSubstr("flight-rank0.json"), HasSubstr("is the report of rank 2")));
}

TEST_F(FlightFolder, BrokenFilesAreNamedWithThePlace) {
  const std::string good = to_json(job_of_three().reports[1]);
  const auto refusal_of = [](const std::string& text) {
    return error_of<DataError>([&] { flight_report_from_json(text, "dir/flight-rank1.json"); });
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_THAT(refusal_of(good.substr(0, good.size() / 2)),
              AllOf(HasSubstr("dir/flight-rank1.json"), HasSubstr("is not JSON: it breaks at byte")));
  EXPECT_THAT(refusal_of(""), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal_of("[]"), HasSubstr("it is not an object"));
  EXPECT_THAT(refusal_of(with("caravan flight 1", "caravan flight 9")), HasSubstr("\"format\" is not"));
  EXPECT_THAT(refusal_of(with("\"rank\": 1", "\"rank\": 3")), HasSubstr("\"rank\" is 3, not 0 to 2"));
  EXPECT_THAT(refusal_of(with("\"backend\": \"shm\"", "\"backend\": 7")), HasSubstr("\"backend\" is not a string"));
  EXPECT_THAT(refusal_of(with("\"operations\"", "\"operation\"")), HasSubstr("\"operations\" is not a list"));
  EXPECT_THAT(refusal_of(with("\"verb\":\"reduce\"", "\"verb\":\"lessen\"")),
              HasSubstr("operation 0: \"verb\" is \"lessen\""));
  EXPECT_THAT(refusal_of(with("\"sequence\":1", "\"sequence\":\"1\"")),
              HasSubstr("operation 1: \"sequence\" is not an integer"));
  EXPECT_THAT(refusal_of(with("\"number\":2", "\"number\":1")), HasSubstr("operation 1: it is out of order"));
  EXPECT_THAT(refusal_of(with("\"group_rank\":1", "\"group_rank\":-1")), HasSubstr("\"group_rank\" is -1"));
  EXPECT_THAT(refusal_of(with("\"count\":10,", "")), HasSubstr("\"count\" is missing"));
}

TEST_F(FlightFolder, CannotBeWritten) {
  EXPECT_THROW(write_flight_report(folder_ / "none", job_of_three().reports[0]), ResourceError);
}

TEST(FlightReport, DescribesALog) {
  const auto log = std::make_unique<FlightLog>();
  Descriptor call;
  call.count = 5;
  const uint64_t number = log->begin(call, {.identity = 3, .name = {"dp"}, .rank = 1, .size = 2});
  log->end(number, FlightState::done);
  log->begin(call, {.identity = 3, .name = {"dp"}, .rank = 1, .size = 2});
  const FlightReport report = flight_report_of(*log, "reason");
  ASSERT_EQ(report.entries.size(), 2U);
  EXPECT_EQ(report.entries[0].state, FlightState::done);
  EXPECT_EQ(report.entries[1].state, FlightState::started);
  EXPECT_GE(report.written_ns, report.entries[0].end_ns);
  EXPECT_GE(report.entries[0].end_ns, report.entries[0].begin_ns);
  EXPECT_EQ(report.unix_ns(report.written_ns), report.written_unix_ns);
  EXPECT_EQ(report.reason, "reason");
}

}  // namespace
}  // namespace caravan::flight_report_test
