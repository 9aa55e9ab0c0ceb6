#include "caravan/engine/schedule.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/engine/executor.h"

namespace caravan {
namespace {

using ::testing::HasSubstr;

/// The schedule that to_string prints so.
Schedule parse(const std::string& text) {
  Schedule schedule;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    const int number = word.size() > 1 ? std::stoi(word.substr(1)) : 0;
    switch (word[0]) {
      case 'F': schedule.actions.push_back({.kind = Action::Kind::forward, .micro_batch = number}); break;
      case 'B':
        schedule.actions.push_back({.kind = Action::Kind::backward, .micro_batch = number, .pays = word.back() == '*'});
        break;
      case 'R': schedule.actions.push_back({.kind = Action::Kind::reduce, .bucket = number}); break;
      default: schedule.actions.push_back({.kind = Action::Kind::update});
    }
    at = end + 1;
  }
  return schedule;
}

TEST(Schedule, AccumulationHoldsOneMicroBatchAndPaysInTheLastBackward) {
  EXPECT_EQ(accumulate(1, 1).to_string(), "F0 B0* R0 U");
  EXPECT_EQ(accumulate(3, 2).to_string(), "F0 B0 F1 B1 F2 B2* R0 R1 U");
  for (const int m : {1, 2, 5}) {
    for (const int b : {0, 1, 4}) EXPECT_NO_THROW(accumulate(m, b).validate(m, b));
  }
  EXPECT_THROW(accumulate(0, 1), UsageError);
  EXPECT_EQ((Schedule{{{.kind = Action::Kind::forward, .stage = 2, .micro_batch = 1}}}.to_string()), "F1@2");
}

TEST(Schedule, OtherOrdersThatKeepTheRulesAreValid) {
  for (const auto* text : {"F0 F1 B1 B0* R0 R1 U", "F1 F0 B0 B1* R0 R1 U"}) {
    const Schedule schedule = parse(text);
    EXPECT_EQ(schedule.to_string(), text);
    EXPECT_NO_THROW(schedule.validate(2, 2));
  }
}

TEST(Schedule, TheFirstBrokenRuleIsNamed) {
  const std::vector<std::array<std::string, 2>> broken{
      {"B0 F0 F1 B1* R0 R1 U", "action 0 (B0): comes before its forward"},
      {"F0 F0 B0 F1 B1* R0 R1 U", "action 1 (F0): is there twice"},
      {"F0 B0 B0 F1 B1* R0 R1 U", "action 2 (B0): is there twice"},
      {"F0 B0 F2 B1* R0 R1 U", "action 2 (F2): names a micro-batch outside 0..1"},
      {"F0 B0* F1 B1* R0 R1 U", "action 1 (B0*): pays, or does not, but exactly the last backward must"},
      {"F0 B0 F1 B1 R0 R1 U", "action 3 (B1): pays, or does not"},
      {"F0 B0 R0 F1 B1* R1 U", "action 2 (R0): comes before the last backward"},
      {"F0 B0 F1 B1* R1 R0 U", "action 4 (R1): is out of order: bucket 0 of 2 is next"},
      {"F0 B0 F1 B1* R0 R0 U", "action 5 (R0): is out of order: bucket 1 of 2 is next"},
      {"F0 B0 F1 B1* R0 R1 R2 U", "action 6 (R2): is out of order"},
      {"F0 B0 F1 B1* R0 U R1", "action 5 (U): comes after 2 of 2 backwards and 1 of 2 buckets"},
      {"F0 B0 U", "action 2 (U): comes after 1 of 2 backwards and 0 of 2 buckets"},
      {"F0 B0 F1 B1* R0 R1 U U", "action 7 (U): comes after the update"},
      {"F0 B0 F1 B1* R0 R1", "does not end with an update"},
      {"", "does not end with an update"}};
  for (const auto& [text, message] : broken) {
    try {
      parse(text).validate(2, 2);
      ADD_FAILURE() << text << " was taken";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
      EXPECT_THAT(error.what(), HasSubstr(text));  // the whole table stands beside it
    }
  }
}

struct Noting final : ActionHandler {
  Schedule seen;
  int stop_after = 100;
  void note(const Action& action) {
    seen.actions.push_back(action);
    if (static_cast<int>(seen.actions.size()) == stop_after) throw Interrupted({"test", "", "stop", "", ""});
  }
  void forward(const Action& action) override { note(action); }
  void backward(const Action& action) override { note(action); }
  void reduce(const Action& action) override { note(action); }
  void update(const Action& action) override { note(action); }
};

TEST(Executor, RunsEveryActionInOrderUntilOneThrows) {
  const Schedule schedule = accumulate(2, 3);
  Noting handler;
  execute(schedule, handler);
  EXPECT_EQ(handler.seen.actions, schedule.actions);
  Noting stopped;
  stopped.stop_after = 4;
  EXPECT_THROW(execute(schedule, stopped), Interrupted);
  EXPECT_EQ(stopped.seen.to_string(), "F0 B0 F1 B1*");
}

}  // namespace
}  // namespace caravan
