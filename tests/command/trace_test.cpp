// `caravan train --trace`: one file about all ranks, and the same run.
#include <cmath>
#include <gmock/gmock.h>
#include <map>
#include <set>

#include "tests/command/command.h"

namespace caravan::trace_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Nanoseconds: the file has microseconds with three digits.
int64_t ns(const nlohmann::json& us) { return std::llround(us.get<double>() * 1e3); }

struct Rank {
  std::string name;
  std::map<std::string, std::vector<nlohmann::json>> rows;

  /// The names of the spans of a row.
  std::vector<std::string> names(const std::string& row) const {
    std::vector<std::string> all;
    if (!rows.contains(row)) return all;
    for (const auto& span : rows.at(row)) all.push_back(span.at("name"));
    return all;
  }
  int64_t sum(const std::string& arg) const {
    int64_t total = 0;
    for (const auto& [row, spans] : rows) {
      for (const auto& span : spans) total += span.at("args").value(arg, int64_t{0});
    }
    return total;
  }
};

class TraceTest : public CommandTest {
 protected:
  /// Runs with --trace, checks the form of the file, and returns what it says about each rank.
  std::vector<Rank> trace(const std::string& name, int ranks, const Words& more) const {
    Words words{"--trace", path(name + ".json")};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = train(name, ranks, words);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("traced    " + path(name + ".json")));
    const auto file = nlohmann::json::parse(text_of(path(name + ".json")), nullptr, false);
    EXPECT_FALSE(file.is_discarded()) << "is not JSON";
    return read(file, ranks);
  }

  static std::vector<Rank> read(const nlohmann::json& file, int ranks) {
    std::vector<Rank> all(static_cast<size_t>(ranks));
    std::map<std::pair<int, int>, std::string> rows;
    for (const auto& event : file.at("traceEvents")) {
      Rank& rank = all.at(event.at("pid"));
      const std::pair<int, int> thread{event.at("pid"), event.at("tid")};
      if (event.at("name") == "process_name") rank.name = event.at("args").at("name");
      if (event.at("name") == "thread_name") rows[thread] = event.at("args").at("name");
      if (event.at("ph") == "X") rank.rows[rows.at(thread)].push_back(event);
    }
    for (const Rank& rank : all) {
      for (const auto& [row, spans] : rank.rows) expect_nested(spans, rank.name + ", " + row);
    }
    return all;
  }

  static void expect_nested(const std::vector<nlohmann::json>& spans, const std::string& where) {
    std::vector<int64_t> ends;
    int64_t last = -1;
    for (const auto& span : spans) {
      const int64_t begin = ns(span.at("ts"));
      const int64_t end = begin + ns(span.at("dur"));
      EXPECT_GE(begin, last) << where << ": " << span;
      while (!ends.empty() && ends.back() <= begin) ends.pop_back();
      EXPECT_TRUE(ends.empty() || end <= ends.back()) << where << ": " << span;
      ends.push_back(end);
      last = begin;
    }
  }
};

TEST_F(TraceTest, HasTheThirdToTheFifthStepOfEveryRank) {
  const std::vector<Rank> ranks = trace("run", 2, set({"comm.backend=shm", "data_parallel.bucket_bytes=100000"}));
  std::string steps;
  int64_t sent = 0;
  for (const auto& line : log("run")) {
    if (line.at("step") >= 3 && line.at("step") <= 5) sent += line.at("bytes_sent").get<int64_t>();
  }
  EXPECT_GT(sent, 0);
  const auto is_reduction = [](const std::string& name) { return name.starts_with("all_reduce "); };
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.sum("sent_bytes"), sent) << rank.name << ": train.log counts the same";
    const std::vector<std::string> computed = rank.names("compute");
    for (const char* name : {"step 3", "step 4", "step 5", "forward blocks.0", "forward head", "backward blocks.1",
                             "backward embedding", "optimizer"}) {
      EXPECT_THAT(computed, Contains(name));
      EXPECT_EQ(std::ranges::count(computed, name), std::string(name).starts_with("step") ? 1 : 3) << name;
    }
    EXPECT_THAT(computed, AllOf(Not(Contains("step 2")), Not(Contains("step 6"))));
    EXPECT_THAT(rank.names("world over shm"), Contains("all_reduce gradient norm"));
    EXPECT_GE(std::ranges::count_if(rank.names("dp over shm"), is_reduction) +
                  std::ranges::count_if(rank.names("dp over shm (2)"), is_reduction),
              6)
        << "two buckets a step, which may be in flight together";
  }
  EXPECT_EQ(ranks[0].name, "rank 0 (dp=0)");
  EXPECT_EQ(ranks[1].name, "rank 1 (dp=1)");
}

/// The two ends of a message see the same bytes, and it is not received before it is sent.
TEST_F(TraceTest, OfAPipelineShowsItsPassesAndMessages) {
  Words words = set({"comm.backend=gloo", "mesh.pp=2", "pipeline.schedule=zb-h1", "train.micro_batch=3"});
  words.insert(words.end(), {"--trace-steps", "2"});
  const std::vector<Rank> ranks = trace("run", 2, words);
  EXPECT_EQ(ranks[1].name, "rank 1 (pp=1 dp=0)");
  for (const Rank& rank : ranks) {
    const std::vector<std::string> computed = rank.names("compute");
    for (const char* name : {"step 2", "forward 0", "forward 3", "backward 3"}) {
      EXPECT_EQ(std::ranges::count(computed, name), 1) << name;
    }
    EXPECT_THAT(computed, Contains(StartsWith("weight gradients blocks.")));
    EXPECT_THAT(computed, Not(Contains("step 1")));
    EXPECT_FALSE(rank.names("wait").empty()) << "the bubble";
  }
  const auto messages = [](const Rank& rank, const std::string& name) {
    std::vector<nlohmann::json> all;
    for (const auto& [row, spans] : rank.rows) {
      if (!row.starts_with("pp over gloo")) continue;
      for (const auto& span : spans) {
        if (span.at("name").get<std::string>().starts_with(name)) all.push_back(span);
      }
    }
    std::ranges::sort(all, {}, [](const auto& span) { return ns(span.at("ts")); });
    return all;
  };
  const auto sends = messages(ranks[0], "send activation of micro-batch ");
  const auto recvs = messages(ranks[1], "recv activation of micro-batch ");
  ASSERT_EQ(sends.size(), 4U);
  ASSERT_EQ(recvs.size(), 4U);
  for (size_t i = 0; i < sends.size(); ++i) {
    EXPECT_EQ(sends[i].at("args").at("bytes"), recvs[i].at("args").at("bytes"));
    EXPECT_EQ(sends[i].at("args").at("sent_bytes"), 3 * 32 * 64 * 4);
    EXPECT_EQ(sends[i].at("args").at("peer"), 1);
    EXPECT_LE(ns(sends[i].at("ts")), ns(recvs[i].at("ts")) + ns(recvs[i].at("dur")));
  }
}

TEST_F(TraceTest, OfRanksThatAreThreadsHasEachOfThem) {
  const std::vector<Rank> ranks =
      trace("run", 3, set({"comm.backend=thread", "memory.recompute=full", "train.steps=1"}));
  for (size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_EQ(ranks[i].name, "rank " + std::to_string(i) + " (dp=" + std::to_string(i) + ")");
    for (const char* name : {"step 1", "optimizer", "recompute blocks.1"}) {
      EXPECT_EQ(std::ranges::count(ranks[i].names("compute"), name), 1) << name;
    }
  }
}

TEST_F(TraceTest, DoesNotChangeTheRun) {
  trace("traced", 2, {});
  const Result plain = train("plain", 2);
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(tensors(path("traced/step_000006")), tensors(path("plain/step_000006")));
}

/// What is recorded of the window that holds the steps: stages do not stop between its steps.
TEST_F(TraceTest, OfAsynchronousStagesHasWholeWindows) {
  const std::vector<Rank> ranks =
      trace("run", 2,
            set({"mesh.pp=2", "pipeline.schedule=pipedream", "pipeline.drain=2", "model.tie_embeddings=false",
                 "optimizer.clip_norm=0", "train.micro_batch=12"}));
  for (const Rank& rank : ranks) {
    const std::vector<std::string> computed = rank.names("compute");
    EXPECT_THAT(computed, AllOf(Contains("steps from 3"), Contains("steps from 5"), Not(Contains("steps from 1"))));
    EXPECT_EQ(std::ranges::count(computed, "optimizer"), 4);
  }
}

TEST_F(TraceTest, APathThatCannotBeWrittenEndsTheRunBeforeItBegins) {
  std::filesystem::create_directory(path("folder"));
  const Result folder = train("run", 2, {"--trace", path("folder")});
  EXPECT_EQ(folder.code, 2) << folder.err;
  EXPECT_THAT(folder.err, HasSubstr(path("folder") + " is a folder"));
  const Result missing = train("run", 2, {"--trace", path("none/trace.json")});
  EXPECT_EQ(missing.code, 5) << missing.err;
  EXPECT_THAT(missing.err, AllOf(HasSubstr(path("none/trace.json")), HasSubstr("No such file or directory")));
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

}  // namespace
}  // namespace caravan::trace_test
