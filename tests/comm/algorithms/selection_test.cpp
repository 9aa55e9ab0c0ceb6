#include "caravan/comm/choice/selection.h"

#include <filesystem>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/algorithms/tune.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/record.h"
#include "tests/ranks/rank_case.h"

namespace caravan::algorithms::selection_test {
namespace {

using caravan::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::string_view kHead = "{\"format\": \"caravan selection table 1\", \"rules\": [\n";

SelectionTable read(const std::string& rules) {
  return SelectionTable::from_json(std::string(kHead) + rules + "\n]}", "table.json");
}
std::string complaint(const std::string& rules) {
  return error_of<DataError>([&] { read(rules); });
}

TEST(Selection, BuiltInTableTakesDirectOnFewRanks) {
  const SelectionTable table;
  for (const Verb verb : {Verb::all_reduce, Verb::all_gather, Verb::reduce_scatter, Verb::all_to_all, Verb::reduce}) {
    for (const int64_t bytes : {0, 4096, 1 << 30}) {
      EXPECT_EQ(table.choose("gloo", verb, 8, bytes), Choice{Algorithm::direct}) << caravan::name(verb);
    }
  }
  EXPECT_EQ(table.choose("mpi", Verb::all_reduce, 64, 1024), Choice{Algorithm::recursive_doubling});
  EXPECT_EQ(table.choose("mpi", Verb::all_reduce, 64, 1 << 20), Choice{Algorithm::rabenseifner});
  EXPECT_EQ(table.choose("mpi", Verb::all_reduce, 64, 1 << 28), Choice{Algorithm::ring});
  EXPECT_EQ(table.choose("mpi", Verb::broadcast, 3, 1 << 20).algorithm, Algorithm::chain);
  EXPECT_THROW(table.choose("gloo", Verb::barrier, 2, 0), UsageError);
}

TEST(Selection, TheFirstMatchingRuleDecides) {
  const SelectionTable table =
      read(R"({"backend": "gloo", "verb": "all_reduce", "max_ranks": 4, "max_bytes": 100, "algorithm": "ring"},
    {"verb": "all_reduce", "max_bytes": 1000, "algorithm": "rabenseifner"},
    {"verb": "broadcast", "algorithm": "chain", "segment_bytes": 512})");
  const auto taken = [&](const char* backend, int ranks, int64_t bytes) {
    return table.choose(backend, Verb::all_reduce, ranks, bytes).algorithm;
  };
  EXPECT_EQ(taken("gloo", 4, 100), Algorithm::ring);
  EXPECT_EQ(taken("mpi", 4, 100), Algorithm::rabenseifner);
  EXPECT_EQ(taken("gloo", 5, 100), Algorithm::rabenseifner);
  EXPECT_EQ(taken("gloo", 4, 101), Algorithm::rabenseifner);
  EXPECT_EQ(taken("gloo", 4, 1001), Algorithm::direct) << "the built-in rules follow";
  EXPECT_EQ(table.choose("mpi", Verb::broadcast, 2, 4), (Choice{Algorithm::chain, 512}));
}

TEST(Selection, RoundTripsThroughAFile) {
  const auto path = std::filesystem::temp_directory_path() / ("caravan_selection_" + std::to_string(getpid()));
  const SelectionTable table =
      SelectionTable().with({{"gloo", Verb::reduce, 3, 4096, {Algorithm::binomial}},
                             {"gloo", Verb::broadcast, 3, Rule::kAnyBytes, {Algorithm::chain, 99}}});
  table.save(path);
  EXPECT_EQ(SelectionTable::load(path), table);
  std::filesystem::remove(path);
  EXPECT_THAT(error_of<DataError>([&] { SelectionTable::load(path); }), HasSubstr(path.string()));
  EXPECT_NE(table, SelectionTable());
  EXPECT_EQ(SelectionTable::from_json(SelectionTable().to_json(), "built-in"), SelectionTable());
}

TEST(Selection, NewRulesReplaceThoseOfTheirBackEnd) {
  const Rule old_rule{"gloo", Verb::reduce, 3, 4096, {Algorithm::binomial}};
  const Rule other{"mpi", Verb::reduce, 3, 4096, {Algorithm::binomial}};
  const Rule new_rule{"gloo", Verb::all_reduce, 3, 4096, {Algorithm::ring}};
  const auto rules = SelectionTable().with({old_rule, other}).with({new_rule}).rules();
  EXPECT_EQ(rules[0], new_rule);
  EXPECT_EQ(rules[1], other);
  EXPECT_EQ(rules.size(), SelectionTable().rules().size() + 2);
}

TEST(Selection, BadFilesAreRefusedByLineOrKey) {
  EXPECT_THAT(complaint("{\"verb\": \"reduce\"\n \"algorithm\": \"direct\"}"), HasSubstr("table.json:3: is not JSON"));
  EXPECT_THAT(complaint(R"({"verb": "all_reduce", "algorithm": "rign"})"),
              AllOf(HasSubstr("rules[0].algorithm is \"rign\""), HasSubstr("did you mean ring?")));
  EXPECT_THAT(complaint(R"({"verb": "all_reduce", "algorithm": "chain", "segment_bytes": 4})"),
              HasSubstr("choose from direct, ring, recursive_doubling, rabenseifner"));
  EXPECT_THAT(complaint(R"({"verb": "alreduce", "algorithm": "ring"})"), HasSubstr("did you mean all_reduce?"));
  EXPECT_THAT(complaint(R"({"verb": "all_reduce", "algorithm": "ring", "max_rank": 4})"),
              AllOf(HasSubstr("\"max_rank\""), HasSubstr("did you mean max_ranks?")));
  EXPECT_THAT(complaint(R"({"verb": "all_reduce", "algorithm": "ring", "max_ranks": 0})"),
              HasSubstr("rules[0].max_ranks"));
  EXPECT_THAT(complaint(R"({"verb": "broadcast", "algorithm": "chain"})"), HasSubstr("rules[0].segment_bytes"));
  EXPECT_THAT(complaint(R"({"verb": "broadcast", "algorithm": "binomial", "segment_bytes": 4})"),
              HasSubstr("only chain"));
  EXPECT_THAT(
      complaint(
          R"({"verb": "reduce", "algorithm": "direct"}, {"verb": "reduce", "max_ranks": 3, "algorithm": "binomial"})"),
      HasSubstr("rule 1 (binomial of reduce, max_ranks 3, max_bytes any) is never reached"));
  EXPECT_THAT(complaint("5"), HasSubstr("rules[0] is 5, not an object"));
  EXPECT_THAT(error_of<DataError>([] { SelectionTable::from_json("{}", "x"); }), HasSubstr("does not say \"format\""));
  EXPECT_THAT(error_of<UsageError>([] { SelectionTable(std::vector<Rule>{}); }), HasSubstr("all_reduce has no rule"));
}

TEST(Selection, PrintsALinePerRule) {
  const std::string text =
      SelectionTable().with({{"gloo", Verb::broadcast, 3, 65536, {Algorithm::chain, 4096}}}).to_string();
  EXPECT_THAT(text, HasSubstr("gloo      broadcast       <= 3     <= 64.0 KiB   chain of 4.0 KiB\n"));
  EXPECT_THAT(text, HasSubstr("any       all_to_all      any      any           direct\n"));
}

/// For any times: every algorithm is measured, all ranks agree, and the table chooses the fastest.
TEST(Tune, ChoosesTheFastestOnAllRanks) {
  run_thread_ranks(3, [](const std::shared_ptr<Communicator>& world) {
    const TuneOptions options{.verbs = {Verb::all_reduce, Verb::broadcast, Verb::reduce, Verb::all_gather,
                                        Verb::reduce_scatter, Verb::all_to_all},
                              .bytes = {64, 40'000},
                              .segment_bytes = {1000, 20'000},
                              .max_repeats = 5,
                              .at_most = std::chrono::milliseconds(1)};
    const TuneResult result = tune(*world, options);
    ASSERT_EQ(result.measurements.size(), 2U * (4 + 4 + 2 + 3 + 2 + 1));
    for (const Verb verb : options.verbs) {
      for (const int64_t bytes : options.bytes) {
        double best = 1e30;
        double direct = 0;
        double chosen = 0;
        const Choice choice = result.table.choose("thread", verb, 3, bytes);
        for (const Measurement& one : result.measurements) {
          if (one.verb != verb || one.bytes != bytes) continue;
          EXPECT_GT(one.median_us, 0);
          EXPECT_GE(one.repeats, 3);
          best = std::min(best, one.median_us);
          if (one.choice == Choice{Algorithm::direct}) direct = one.median_us;
          if (one.choice == choice) chosen = one.median_us;
        }
        const bool direct_stands = chosen == direct && best >= 0.95 * direct;
        EXPECT_TRUE(chosen == best || direct_stands) << caravan::name(verb) << " " << bytes;
      }
    }
    const std::string own = result.table.to_json();
    std::vector<char> of_rank_0(own.begin(), own.end());
    const Buffer buffer{of_rank_0.data(), static_cast<int64_t>(own.size()), Dtype::uint8, {}};
    world->broadcast(buffer, 0);
    EXPECT_EQ(own, std::string(of_rank_0.begin(), of_rank_0.end()));
    EXPECT_EQ(result.table.choose("gloo", Verb::all_reduce, 3, 64), Choice{Algorithm::direct}) << "of another back-end";
    EXPECT_THAT(to_string(result.measurements), AllOf(HasSubstr("chain of 1000 B"), HasSubstr("*")));
  });
}

TEST(Tune, RefusesWhatCannotBeMeasured) {
  const auto error = [](Communicator& comm, const TuneOptions& options) {
    return error_of<UsageError>([&] { tune(comm, options); });
  };
  EXPECT_THAT(error(*make_record_world(0, 4), {}), HasSubstr("record sends nothing"));
  run_thread_ranks(1, [&](const auto& world) { EXPECT_THAT(error(*world, {}), HasSubstr("one rank")); });
  run_thread_ranks(2, [&](const auto& world) {
    EXPECT_THAT(error(*world, {.bytes = {8, 4}}), HasSubstr("ascending"));
    EXPECT_THAT(error(*world, {.bytes = {6}}), HasSubstr("multiples of 4"));
    EXPECT_THAT(error(*world, {.verbs = {Verb::barrier}}), HasSubstr("barrier"));
  });
}

}  // namespace
}  // namespace caravan::algorithms::selection_test
