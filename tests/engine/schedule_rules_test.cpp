#include <algorithm>
#include <array>
#include <functional>
#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <sstream>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "caravan/base/error.h"
#include "caravan/schedule/schedule.h"
#include "tests/data/support.h"

namespace caravan::schedule_rules_test {
namespace {

using ::testing::HasSubstr;
using Kind = Action::Kind;

/// The table that to_string prints so.
Schedule parse(const std::string& text) {
  Schedule table;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    Action entry{.kind = static_cast<Kind>(std::string("FCBWGXR><U").find(word[0]))};
    word.erase(0, 1);
    if (!word.empty() && word[0] == 'g') {
      entry.is_gradient = true;
      word.erase(0, 1);
    }
    char mark = 0;
    std::istringstream numbers(word);
    numbers >> entry.unit >> mark >> entry.micro_batch >> mark >> entry.peer;
    if (entry.kind == Kind::update || numbers.fail()) entry.peer = -1;
    table.push_back(entry);
  }
  return table;
}

/// One unit for each number, on that stage, each with its own gathered group.
Units chain(const std::vector<int>& stages) {
  Units units;
  for (const int stage : stages) {
    const int i = static_cast<int>(units.units.size());
    units.units.push_back({.name = "u" + std::to_string(i), .stage = stage, .groups = {i}});
    units.groups.push_back({.name = "g" + std::to_string(i), .is_gathered = true});
  }
  return units;
}

/// The same without anything to gather.
Units plain(const std::vector<int>& stages) {
  Units units = chain(stages);
  for (auto& group : units.groups) group.is_gathered = false;
  return units;
}

/// u0 around u1 and u2; then u3.
Units nested() {
  Units units = chain({0, 0, 0, 0});
  units.units[1].parent = units.units[2].parent = 0;
  return units;
}

/// The first and the last unit use a joint group besides their own: tied embeddings.
Units tied(Units units) {
  const int group = static_cast<int>(units.groups.size());
  units.groups.push_back({.name = "tied", .is_gathered = true, .is_joint = true});
  units.units.front().groups.push_back(group);
  if (units.units.size() > 1) units.units.back().groups.push_back(group);
  return units;
}

constexpr Pass::Kind kF = Pass::Kind::forward;
constexpr Pass::Kind kB = Pass::Kind::backward;
constexpr Pass::Kind kW = Pass::Kind::weight;

using Orders = std::vector<PassOrder>;
/// By number of stages and of micro-batches.
using Generator = std::function<Orders(int, int)>;

Orders gpipe(int num_stages, int n) {
  Orders orders(num_stages);
  for (int stage = 0; stage < num_stages; ++stage) {
    for (int m = 0; m < n; ++m) orders[stage].push_back({kF, m, stage});
    for (int m = 0; m < n; ++m) orders[stage].push_back({kB, m, stage});
  }
  return orders;
}

Orders one_f_one_b(int num_stages, int n) {
  Orders orders(num_stages);
  for (int stage = 0; stage < num_stages; ++stage) {
    const int warmup = std::min(num_stages - 1 - stage, n);
    for (int m = 0; m < warmup; ++m) orders[stage].push_back({kF, m, stage});
    for (int m = 0; m < n; ++m) {
      if (m + warmup < n) orders[stage].push_back({kF, m + warmup, stage});
      orders[stage].push_back({kB, m, stage});
    }
  }
  return orders;
}

/// Zero bubble with the memory of 1F1B: stage p defers the weight gradients of p micro-batches into the bubble.
Orders zero_bubble(int num_stages, int n) {
  Orders orders = one_f_one_b(num_stages, n);
  for (int stage = 0; stage < num_stages; ++stage) {
    PassOrder order;
    int done = 0;
    for (const Pass& pass : orders[stage]) {
      order.push_back(pass);
      if (pass.kind == kB && pass.micro_batch - done >= stage) order.push_back({kW, done++, stage});
    }
    while (done < n) order.push_back({kW, done++, stage});
    orders[stage] = order;
  }
  return orders;
}

/// Interleaved 1F1B: rank p holds stages p, p + ranks, ..; n is a multiple of the ranks.
Orders interleaved(int num_ranks, int chunks, int n) {
  Orders orders(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto pass = [&](Pass::Kind kind, int k) {
      const int chunk = k % (num_ranks * chunks) / num_ranks;
      return Pass{kind, k / (num_ranks * chunks) * num_ranks + k % num_ranks,
                  (kind == kF ? chunk : chunks - 1 - chunk) * num_ranks + rank};
    };
    const int total = n * chunks;
    const int warmup = std::min(total, n == num_ranks ? total : (num_ranks - rank - 1) * 2 + (chunks - 1) * num_ranks);
    for (int k = 0; k < warmup; ++k) orders[rank].push_back(pass(kF, k));
    for (int k = 0; k < total; ++k) {
      if (k + warmup < total) orders[rank].push_back(pass(kF, k + warmup));
      orders[rank].push_back(pass(kB, k));
    }
  }
  return orders;
}

struct Technique {
  GatherOptions gathers;
  bool each_micro_batch = false;
};

std::vector<Schedule> build(const Orders& orders, const Units& units, const Technique& technique = {},
                            std::span<const int> rank_of_stage = {}) {
  std::vector<Schedule> tables = expand(orders, units, rank_of_stage);
  bool trains = false;
  for (Schedule& table : tables) {
    table = with_gathers(table, units, technique.gathers);
    table = with_reductions(table, units, technique.each_micro_batch);
    for (const Action& entry : table) trains = trains || entry.kind == Kind::backward;
  }
  for (Schedule& table : tables) table = trains ? with_update(table) : table;
  return tables;
}

TEST(Schedule, PrintsItsEntries) {
  const std::string text = "<1.0@0 G1 F1.0 X1 >2.0@2 <g2.0@2 C3.10 B1.0 W1.0 R4.1 >g1.0@0 U";
  EXPECT_EQ(to_string(parse(text)), text);
  EXPECT_EQ(to_string(Schedule{}), "");
}

TEST(Schedule, EqualTablesHaveEqualDigests) {
  const Schedule table = parse("G1 F1.0 X1 >2.0@2");
  EXPECT_EQ(digest(table), digest(parse("G1 F1.0 X1 >2.0@2")));
  for (const auto* other : {"", "G1 F1.0 X1", "G1 F1.0 X1 >g2.0@2", "G1 F0.1 X1 >2.0@2", "F1.0 G1 X1 >2.0@2"}) {
    EXPECT_NE(digest(table), digest(parse(other))) << other;
  }
}

TEST(Schedule, UnitsThatContradictThemselvesAreRefused) {
  const auto refusal = [](const std::function<void(Units&)>& change) {
    Units units = nested();
    change(units);
    return message_of<UsageError>([&] { units.validate(); });
  };
  EXPECT_NO_THROW(nested().validate());
  EXPECT_NO_THROW(Units{}.validate());
  EXPECT_THAT(refusal([](Units& u) { u.units[0].stage = 1; }), HasSubstr("unit 0 (u0): is on stage 1"));
  EXPECT_THAT(refusal([](Units& u) { u.units[3].stage = 2; }), HasSubstr("stage 2 after a unit on stage 0"));
  EXPECT_THAT(refusal([](Units& u) { u.units[2].stage = u.units[3].stage = 1; }), HasSubstr("its parent on 0"));
  EXPECT_THAT(refusal([](Units& u) { u.units[1].parent = 1; }), HasSubstr("unit 1 (u1): does not follow its parent 1"));
  EXPECT_THAT(refusal([](Units& u) { u.units[1].parent = -1; }),
              HasSubstr("unit 2 (u2): does not follow its parent 0"));
  EXPECT_THAT(refusal([](Units& u) { u.units[1].groups = {4}; }), HasSubstr("reads group 4 of 4"));
  EXPECT_THAT(refusal([](Units& u) { u.units[1].groups = {1, 1}; }), HasSubstr("out of order"));
  EXPECT_THAT(refusal([](Units& u) { u.units[0].has_backward = false; }), HasSubstr("reads group 0, which is trained"));
  const auto freeze = [](int unit) {
    return [unit](Units& u) {
      for (auto& group : u.groups) group.is_trained = false;
      u.units[unit].has_backward = false;
    };
  };
  EXPECT_THAT(refusal(freeze(3)), HasSubstr("has no backward, but a unit before it has"));
  EXPECT_THAT(refusal(freeze(2)), HasSubstr("has no backward, but a unit before it has"));
  EXPECT_THAT(refusal(freeze(0)), HasSubstr("has a backward, but its parent 0 does not"));
  Units units = nested();
  freeze(1)(units);  // the first inside a unit that is trained
  EXPECT_NO_THROW(units.validate());
}

TEST(Schedule, AccumulationHoldsOneMicroBatch) {
  const Units units = plain({0, 0});
  EXPECT_EQ(to_string(expand(accumulate(2), units)), "F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1");
  EXPECT_EQ(to_string(expand(forward_only(2), units)), "F0.0 F1.0 F0.1 F1.1");
  EXPECT_EQ(to_string(expand(forward_only(1, 1), plain({0, 1, 2}))), "<1.0@0 F1.0 >2.0@2");
  EXPECT_EQ(to_string(expand(accumulate(1, 1), plain({0, 1}))), "<1.0@0 F1.0 B1.0 >g1.0@0");
  EXPECT_THROW(plain({0}).groups_of({.unit = 1}), UsageError);
  EXPECT_THROW(accumulate(0), UsageError);
  EXPECT_THROW(forward_only(0), UsageError);
}

std::string events(Pass::Kind kind, const Units& units) { return to_string(events_of({kind, 0, 0}, units)); }

TEST(Schedule, AParentsBackwardBeginsBeforeThoseOfItsChildren) {
  const Units units = nested();
  EXPECT_EQ(events(kF, units), "F0.0 F1.0 F2.0 F3.0");
  EXPECT_EQ(events(kB, units), "B3.0 B0.0 B2.0 B1.0");
  EXPECT_EQ(events(kW, units), "W3.0 W2.0 W1.0 W0.0");
}

TEST(Schedule, UnitsInsideARecomputedUnitRunAgain) {
  Units units = nested();
  units.units[3].is_recomputed = true;  // nothing inside it
  EXPECT_EQ(events(kB, units), "B3.0 B0.0 B2.0 B1.0");
  units.units[0].is_recomputed = true;
  EXPECT_EQ(events(kB, units), "B3.0 B0.0 C1.0 C2.0 B2.0 B1.0");
  units.units[1].has_backward = false;
  units.groups[1].is_trained = false;
  EXPECT_EQ(events(kB, units), "B3.0 B0.0 C1.0 C2.0 B2.0");
  EXPECT_EQ(events(kW, units), "W3.0 W2.0 W0.0");
  Units deep = chain({0, 0, 0});  // u0 around u1 around u2
  deep.units[1].parent = 0;
  deep.units[2].parent = 1;
  deep.units[0].is_recomputed = deep.units[1].is_recomputed = true;
  EXPECT_EQ(events(kB, deep), "B0.0 C1.0 C2.0 B1.0 C2.0 B2.0");
}

TEST(Schedule, OnlyTensorsThatCrossRanksAreSent) {
  Units units = plain({0, 1, 1, 2});
  const PassOrder order{{kF, 0, 1}, {kB, 0, 1}, {kW, 0, 1}};
  EXPECT_EQ(to_string(expand(order, units)), "<1.0@0 F1.0 F2.0 >3.0@2 <g3.0@2 B2.0 B1.0 >g1.0@0 W2.0 W1.0");
  EXPECT_EQ(to_string(expand(order, units, std::vector{0, 1, 1})), "<1.0@0 F1.0 F2.0 B2.0 B1.0 >g1.0@0 W2.0 W1.0");
  units.units[0].has_backward = false;
  units.groups[0].is_trained = false;
  EXPECT_EQ(to_string(expand(order, units)), "<1.0@0 F1.0 F2.0 >3.0@2 <g3.0@2 B2.0 B1.0 W2.0 W1.0");
  EXPECT_EQ(to_string(expand({{kF, 0, 0}, {kB, 0, 0}}, units)), "F0.0 >1.0@1");
  EXPECT_THROW(expand({{kF, 0, 3}}, units), UsageError);
  EXPECT_THROW(expand(order, units, std::vector{0, 1}), UsageError);
  EXPECT_THAT(message_of<UsageError>([&] {
                expand({{kF, 0, 0}, {kF, 0, 1}}, units);
              }),
              HasSubstr("stages 0 and 1, which are on ranks 0 and 1"));
}

TEST(Schedule, ReceivesAreInTheOrderOfTheSends) {
  const Units units = plain({0, 1, 2, 3});
  const std::vector<int> ranks{0, 1, 0, 1};
  const Orders orders{{{kF, 0, 0}, {kF, 1, 0}, {kF, 0, 2}, {kF, 1, 2}},
                      {{kF, 0, 1}, {kF, 1, 1}, {kF, 1, 3}, {kF, 0, 3}}};
  EXPECT_EQ(to_string(expand(orders, units, ranks)[1]),
            "<1.0@0 F1.0 >2.0@2 <1.1@0 F1.1 >2.1@2 <3.0@2 <3.1@2 F3.1 F3.0");
  EXPECT_NO_THROW(check(build(orders, units, {}, ranks), units, ranks));
}

std::string gathered(const std::string& text, const Units& units, const GatherOptions& options = {}) {
  return to_string(with_gathers(parse(text), units, options));
}

TEST(Schedule, GroupsAreGatheredWhereTheyAreRead) {
  const Units units = chain({0, 0, 0});
  const std::string step = "F0.0 F1.0 F2.0 B2.0 B1.0 B0.0";
  EXPECT_EQ(gathered(step, units), "G0 F0.0 X0 G1 F1.0 X1 G2 F2.0 B2.0 X2 G1 B1.0 X1 G0 B0.0 X0");
  EXPECT_EQ(gathered(step, units, {.free_after_forward = false}), "G0 F0.0 G1 F1.0 G2 F2.0 B2.0 X2 B1.0 X1 B0.0 X0");
  EXPECT_EQ(gathered(step, units, {.prefetch = 1}), "G0 G1 F0.0 X0 G2 F1.0 X1 F2.0 G1 B2.0 X2 G0 B1.0 X1 B0.0 X0");
  // A gap of two events is none; gathers keep their order.
  EXPECT_EQ(gathered(step, units, {.prefetch = 2}), "G0 G1 G2 F0.0 X0 F1.0 F2.0 G0 B2.0 X2 B1.0 X1 B0.0 X0");
  EXPECT_EQ(gathered(step, units, {.prefetch = 9}), "G0 G1 G2 F0.0 F1.0 F2.0 B2.0 X2 B1.0 X1 B0.0 X0");
  EXPECT_EQ(gathered("<1.0@0 F1.0 F2.0 >3.0@2 <g3.0@2 B2.0 B1.0", units),
            "<1.0@0 G1 F1.0 X1 G2 F2.0 >3.0@2 <g3.0@2 B2.0 X2 G1 B1.0 X1");
  EXPECT_EQ(gathered("F0.0 B0.0 F0.1 B0.1 W0.0 W0.1", plain({0})), "F0.0 B0.0 F0.1 B0.1 W0.0 W0.1");
  EXPECT_EQ(gathered("B1.0 B0.0 W1.0 W0.0", units), "G1 B1.0 X1 G0 B0.0 X0 G1 W1.0 X1 G0 W0.0 X0");
}

TEST(Schedule, AParentKeepsItsGroupsUntilItsChildrenAreDone) {
  Units units = nested();
  units.units[0].is_recomputed = true;
  EXPECT_EQ(gathered("F0.0 F1.0 F2.0 F3.0", units), "G0 F0.0 G1 F1.0 X1 G2 F2.0 X0 X2 G3 F3.0 X3");
  EXPECT_EQ(gathered("B3.0 B0.0 C1.0 C2.0 B2.0 B1.0", units),
            "G3 B3.0 X3 G0 B0.0 G1 C1.0 X1 G2 C2.0 B2.0 X2 G1 B1.0 X0 X1");
  EXPECT_EQ(gathered("W2.0 W1.0 W0.0", units), "G0 G2 W2.0 X2 G1 W1.0 X1 W0.0 X0");
}

TEST(Schedule, AGatherPassesNoReductionOfItsGroup) {
  const Units units = chain({0, 0});
  EXPECT_EQ(gathered("B0.0 R0.0 F1.0 R0.0 F1.0 F1.0 F0.1", units, {.prefetch = 1}),
            "G0 G1 B0.0 R0.0 F1.0 R0.0 X0 F1.0 G0 F1.0 X1 F0.1 X0");
}

TEST(Schedule, JointGroupsStayForTheWholeStep) {
  const Units units = tied(chain({0, 0, 1}));
  EXPECT_EQ(gathered("F0.0 F1.0 >2.0@1", units), "G3 G0 F0.0 X0 G1 F1.0 X1 >2.0@1 X3");
  const Schedule table = with_reductions(with_gathers(parse("<2.0@0 F2.0 B2.0 >g2.0@0 F2.1 B2.1"), units), units, true);
  EXPECT_EQ(to_string(table), "G3 <2.0@0 G2 F2.0 B2.0 R2.0 >g2.0@0 F2.1 B2.1 R2.1 X2 R3.1 X3");
}

std::string reduced(const std::string& text, const Units& units, bool each = false) {
  return to_string(with_reductions(parse(text), units, each));
}

TEST(Schedule, AReductionFollowsTheLastGradient) {
  Units units = nested();
  const std::string step = "B3.0 B0.0 B2.0 B1.0 B3.1 B0.1 B2.1 B1.1";
  EXPECT_EQ(reduced(step, units), "B3.0 B0.0 B2.0 B1.0 B3.1 R3.1 B0.1 B2.1 R2.1 B1.1 R0.1 R1.1");
  EXPECT_EQ(reduced("B3.0 B0.0 B2.0 B1.0 B3.1", units, true), "B3.0 R3.0 B0.0 B2.0 R2.0 B1.0 R0.0 R1.0 B3.1 R3.1");
  EXPECT_EQ(reduced("B3.0 B0.0 X0 B3.1 W3.0 X3", units), "B3.0 B0.0 R0.0 X0 B3.1 W3.0 R3.0 X3");
  EXPECT_EQ(reduced("B0.0 B2.0 B1.0 X1 W2.0 W1.0 W0.0", units), "B0.0 B2.0 B1.0 X1 W2.0 R2.0 W1.0 R1.0 W0.0 R0.0");
  units.units[1].groups = {0};  // shared; B1 adds to it
  units.groups[3].is_trained = false;
  EXPECT_EQ(reduced("F0.0 B3.0 B0.0 C1.0 C2.0 B2.0 B1.0", units), "F0.0 B3.0 B0.0 C1.0 C2.0 B2.0 R2.0 B1.0 R0.0");
  EXPECT_EQ(reduced("B0.0 C1.0 C2.0", units), "B0.0 C1.0 C2.0 R0.0");
}

const std::vector<Technique> kTechniques{{},
                                         {.gathers = {.free_after_forward = false}},
                                         {.gathers = {.prefetch = 1}, .each_micro_batch = true},
                                         {.gathers = {.prefetch = 3}}};

/// Models of `num_stages` stages: one and two units a stage, nested and recomputed ones, tied, frozen at the front.
std::vector<Units> models(int num_stages) {
  std::vector<Units> models;
  std::vector<int> one(num_stages);
  std::iota(one.begin(), one.end(), 0);
  models.push_back(chain(one));
  std::vector<int> many;
  for (const int stage : one) many.insert(many.end(), 3, stage);
  models.push_back(plain(many));
  models.push_back(tied(chain(many)));
  models.push_back(chain(many));
  for (size_t i = 0; i < many.size(); i += 3) {
    models[3].units[i].is_recomputed = true;
    models[3].units[i + 1].parent = models[3].units[i + 2].parent = static_cast<int>(i);
  }
  models.push_back(chain(many));
  for (size_t i = 0; i < many.size() && i < 4; ++i) {
    models[4].units[i].has_backward = models[4].groups[i].is_trained = false;
  }
  return models;
}

TEST(TableCheck, AcceptsPipelines) {
  const std::vector<Generator> generators{gpipe, one_f_one_b, zero_bubble};
  for (int num_stages = 1; num_stages <= 4; ++num_stages) {
    const std::vector<Units> all = models(num_stages);
    for (int n = 1; n <= 8; ++n) {
      for (size_t i = 0; i < generators.size() * all.size() * kTechniques.size(); ++i) {
        const Units& units = all[i / generators.size() % all.size()];
        const Orders orders = generators[i % generators.size()](num_stages, n);
        const std::vector<Schedule> tables = build(orders, units, kTechniques[i / generators.size() / all.size()]);
        ASSERT_NO_THROW(check(tables, units)) << num_stages << " stages, " << n << " micro-batches, case " << i;
        for (const Schedule& table : tables) ASSERT_EQ(parse(to_string(table)), table);
      }
    }
  }
}

TEST(TableCheck, AcceptsInterleavedPipelines) {
  for (const int num_ranks : {1, 2, 3}) {
    for (const int chunks : {1, 2, 3}) {
      std::vector<int> ranks(num_ranks * chunks);
      for (size_t stage = 0; stage < ranks.size(); ++stage) ranks[stage] = static_cast<int>(stage) % num_ranks;
      for (int n = num_ranks; n <= 3 * num_ranks; n += num_ranks) {
        for (const Units& units : models(num_ranks * chunks)) {
          for (const Technique& technique : kTechniques) {
            const auto tables = build(interleaved(num_ranks, chunks, n), units, technique, ranks);
            ASSERT_NO_THROW(check(tables, units, ranks)) << num_ranks << " ranks, " << chunks << " chunks, " << n;
          }
        }
      }
    }
  }
}

TEST(TableCheck, AcceptsForwardPassesOnly) {
  for (const Units& units : models(3)) {
    const auto tables = build({forward_only(4, 0), forward_only(4, 1), forward_only(4, 2)}, units);
    EXPECT_NO_THROW(check(tables, units));
  }
  EXPECT_NO_THROW(check({}, Units{}));
}

/// What check says about these tables of two ranks with one unit each; of one rank if there is one table.
std::string refusal(const std::vector<std::string>& texts, const Units& units,
                    const std::vector<int>& rank_of_stage = {}) {
  std::vector<Schedule> tables;
  for (const std::string& text : texts) tables.push_back(parse(text));
  return message_of<UsageError>([&] { check(tables, units, rank_of_stage); });
}

TEST(TableCheck, NamesTheFirstBrokenRuleOfAPass) {
  const std::vector<std::array<std::string, 2>> broken{
      {"F0.0 F1.0 F0.0 F1.0", "rank 0, entry 2 (F0.0): is there twice"},
      {"F0.0 F0.0 F1.0", "rank 0, entry 1 (F0.0): is there twice"},
      {"B1.0 F0.0 F1.0 B0.0", "rank 0, entry 0 (B1.0): comes before its forward"},
      {"F0.0 F1.0 W1.0 W0.0 B1.0 B0.0", "rank 0, entry 2 (W1.0): comes before its backward"},
      {"F0.0 F1.0 B1.0 B0.0 W1.0 W0.0 W1.0", "rank 0, entry 6 (W1.0): is there twice"},
      {"F0.0 F1.0 B1.0 W1.0 B0.0", "rank 0, entry 3 (W1.0): B0.0 is due"},
      {"F1.0 F0.0", "rank 0, entry 0 (F1.0): F0.0 is due"},
      {"F0.0 F1.1", "rank 0, entry 1 (F1.1): F1.0 is due"},
      {"F0.0 F1.0 B0.0 B1.0", "rank 0, entry 2 (B0.0): B1.0 is due"},
      {"C0.0 C1.0 F0.0 F1.0", "rank 0, entry 0 (C0.0): comes before its forward"},
      {"F0.0 F1.0 B1.0 B0.0 C0.0", "rank 0, entry 4 (C0.0): comes after its backward"},
      {"F0.0 F1.0 B1.0 C0.0 B0.0", "rank 0, entry 3 (C0.0): B0.0 is due"},
      {"F0.0 F1.0 F0.1", "rank 0, the end: F1.1 is missing"},
      {"F0.1 F1.1 F0.2 F1.2", "rank 0, the end: F0.0 is missing"},
      {"F0.0 F1.0 F0.1 F1.1 B1.0 B0.0 R0.0 R1.0 U", "rank 0, the end: B1.1 is missing"},
      {"F0.0 F1.0 F2.0", "rank 0, entry 2 (F2.0): there are 2 units"},
      {"F0.0 F1.7", "rank 0, entry 1 (F1.7): there is no forward of micro-batch 7"}};
  for (const auto& [text, message] : broken) {
    EXPECT_THAT(refusal({text}, plain({0, 0})), HasSubstr(message)) << text;
  }
}

TEST(TableCheck, NamesTheFirstBrokenRuleOfGroups) {
  Units units = chain({0, 0});
  units.groups[0].is_gathered = false;
  const std::string pass = "F0.0 G1 F1.0 B1.0 ";
  const std::vector<std::array<std::string, 2>> broken{
      {"F0.0 F1.0", "rank 0, entry 1 (F1.0): reads group 1 (g1), which is not gathered"},
      {"F0.0 G1 X1 F1.0", "rank 0, entry 3 (F1.0): reads group 1 (g1), which is not gathered"},
      {"F0.0 G1 F1.0 X1 X1", "rank 0, entry 4 (X1): group 1 (g1) is not gathered"},
      {"F0.0 G1 G1 F1.0 X1", "rank 0, entry 2 (G1): group 1 (g1) is gathered already"},
      {"G0 F0.0 G1 F1.0 X1", "rank 0, entry 0 (G0): group 0 (g0) needs no gather"},
      {"F0.0 G1 F1.0", "rank 0, the end: group 1 (g1) is still gathered"},
      {"F0.0 G2 F1.0", "rank 0, entry 1 (G2): there are 2 groups"},
      {"F0.0 G1 F1.0 R1.0", "rank 0, entry 3 (R1.0): nothing adds to the gradient of group 1"},
      {"F0.0 G1 F1.0 R1.0 B1.0", "rank 0, entry 3 (R1.0): micro-batch 0 has yet to add to the gradient of group 1"},
      {pass + "X1 R1.0 B0.0", "rank 0, entry 5 (R1.0): group 1 (g1) is not gathered"},
      {pass + "R1.0 R1.0", "rank 0, entry 4 (R1.0): group 1 (g1) has 2 reductions for 1 micro-batches"},
      {pass + "R1.0 X1 B0.0 U", "rank 0, entry 7 (U): group 0 (g0) has a gradient but no reduction"},
      {pass + "R1.0 X1 B0.0 R0.0", "rank 0, the end: the update is missing"},
      {pass + "R1.0 X1 B0.0 R0.0 U U", "rank 0, entry 9 (U): no backward comes before it, after the last update"},
      {pass + "R1.0 X1 B0.0 U R0.0",
       "rank 0, entry 7 (U): the gradient of group 0 (g0) in micro-batch 0 is not reduced yet"},
      {"F0.0 G1 F1.0 X1 U", "rank 0, entry 4 (U): there is no backward"},
      {pass + "X1 B0.0 R0.0 G1 W1.0 R1.0 X1 W0.0 U", "rank 0, entry 6 (R0.0): micro-batch 0 has yet to add"}};
  for (const auto& [text, message] : broken) {
    EXPECT_THAT(refusal({text}, units), HasSubstr(message)) << text;
  }
  units.groups[0].is_trained = false;
  EXPECT_THAT(refusal({pass + "X1 B0.0 R0.0"}, units),
              HasSubstr("rank 0, entry 6 (R0.0): group 0 (g0) is not trained"));
}

TEST(TableCheck, AGroupIsReducedOnceOrForEachMicroBatch) {
  const Units units = plain({0});
  const std::string three = "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 ";
  EXPECT_NO_THROW(check(std::vector<Schedule>{parse(three + "R0.0 R0.2 R0.1 U")}, units));
  EXPECT_NO_THROW(check(std::vector<Schedule>{parse(three + "R0.1 U")}, units));
  EXPECT_THAT(refusal({three + "R0.0 R0.1 U"}, units),
              HasSubstr("2 reductions for 3 micro-batches: one in all or one"));
  EXPECT_THAT(refusal({"F0.0 B0.0 R0.1 F0.1 B0.1 R0.0 U"}, units),
              HasSubstr("rank 0, entry 2 (R0.1): micro-batch 1 has yet to add"));
  EXPECT_THAT(refusal({"F0.0 B0.0 R0.0 F0.1 B0.1 U"}, units),
              HasSubstr("rank 0, entry 2 (R0.0): micro-batch 1 has yet"));
}

TEST(TableCheck, NamesTheFirstBrokenRuleBetweenRanks) {
  const Units units = plain({0, 1});
  const std::string good0 = "F0.0 >1.0@1 <g1.0@1 B0.0 R0.0 U";
  const std::string good1 = "<1.0@0 F1.0 B1.0 R1.0 >g1.0@0 U";
  EXPECT_NO_THROW(check(std::vector<Schedule>{parse(good0), parse(good1)}, units));
  struct Case {
    std::string rank0, rank1, message;
  };
  const std::vector<Case> broken{
      {"F0.0 <g1.0@1 B0.0 R0.0 U", good1, "rank 1, entry 0 (<1.0@0): waits forever: rank 0 never sends it"},
      {good0, "<1.0@0 F1.0 B1.0 R1.0 U", "rank 0, entry 2 (<g1.0@1): waits forever: rank 1 never sends it"},
      {"F0.0 >1.0@1 B0.0 R0.0 U", good1, "rank 0, entry 2 (B0.0): has received nothing from stage 1"},
      {good0, "F1.0 B1.0 R1.0 >g1.0@0 U", "rank 1, entry 0 (F1.0): has received nothing from stage 0"},
      {good0, "<1.0@0 <1.0@0 F1.0 B1.0 R1.0 >g1.0@0 U", "rank 1, entry 1 (<1.0@0): is there twice"},
      {"F0.0 >1.0@1 >1.0@1 <g1.0@1 B0.0 R0.0 U", good1, "rank 0, entry 2 (>1.0@1): is there twice"},
      {"<g1.0@1 F0.0 >1.0@1 B0.0 R0.0 U", good1,
       "rank 0, entry 0 (<g1.0@1): waits forever for rank 1, which waits at entry 0 (<1.0@0) for rank 0"},
      {">1.0@1 F0.0 <g1.0@1 B0.0 R0.0 U", good1, "rank 0, entry 0 (>1.0@1): is not computed yet"},
      {good0, "<1.0@0 F1.0 >g1.0@0 B1.0 R1.0 U", "rank 1, entry 2 (>g1.0@0): is not computed yet"},
      {"F0.0 >1.0@2 <g1.0@1 B0.0 R0.0 U", good1, "rank 0, entry 1 (>1.0@2): stage 2 does not exist: there are 2"},
      {"F0.0 >0.0@1 <g1.0@1 B0.0 R0.0 U", good1, "rank 0, entry 1 (>0.0@1): the input of stage 1 is that of unit 1"},
      {"F0.0 >1.0@0 <g1.0@1 B0.0 R0.0 U", good1, "rank 0, entry 1 (>1.0@0): stage 0 is not a neighbour of stage -1"},
      {"F0.0 >g1.0@0", good1, "rank 0, entry 1 (>g1.0@0): stage 1 is on rank 1"},
      {"F0.0 F1.0", good1, "rank 0, entry 1 (F1.0): stage 1 is on rank 1"},
      {good0, "<1.0@0 F1.0 B1.0 R1.0 >g1.0@0", "rank 1, the end: the update is missing"},
      {"F0.0 >1.0@1 F0.1 >1.1@1", "<1.0@0 F1.0", "rank 1, the end: F1.1 is missing"},
      {"F0.0 >1.0@1", "<1.0@0 F1.0 B1.0 R1.0 >g1.0@0 U", "rank 0, the end: B0.0 is missing"},
      {"F0.0 F0.1 >1.1@1 >1.0@1", "<1.0@0 F1.0 <1.1@0 F1.1",
       "rank 1, entry 0 (<1.0@0): the next message from rank 0 is its entry 2 (>1.1@1)"},
      {"R1.0", good1, "rank 0, entry 0 (R1.0): no unit on this rank uses group 1 (g1)"}};
  for (const auto& [rank0, rank1, message] : broken) {
    EXPECT_THAT(refusal({rank0, rank1}, units), HasSubstr(message)) << rank0 << " | " << rank1;
  }
  EXPECT_THAT(refusal({good0}, units), HasSubstr("1 tables: do not fit 2 stages on ranks [0, 1]"));
  EXPECT_THAT(refusal({good0, good1}, units, {0, 0}), HasSubstr("do not fit"));
  EXPECT_THAT(refusal({"F1.0 F0.0"}, units, {0, 0}), HasSubstr("entry 0 (F1.0): comes before that of stage 0"));
  EXPECT_THAT(refusal({"F0.0 >1.0@1 F1.0"}, units, {0, 0}), HasSubstr("stages 0 and 1 are both on this rank"));
  Units frozen = units;
  frozen.units[0].has_backward = frozen.groups[0].is_trained = false;
  EXPECT_NO_THROW(check(std::vector<Schedule>{parse("F0.0 >1.0@1 U"), parse("<1.0@0 F1.0 B1.0 R1.0 U")}, frozen));
  EXPECT_THAT(refusal({"F0.0 >1.0@1 U", good1}, frozen), HasSubstr("entry 4 (>g1.0@0): stage 0 has no backward"));
  EXPECT_THAT(refusal({"F0.0 >1.0@1", "<1.0@0 F1.0 B1.0 R1.0 U"}, frozen),
              HasSubstr("rank 0, the end: the update is missing"));
}

TEST(TableCheck, JointGroupsAreTreatedAlikeByAllTheirRanks) {
  Units units = tied(tied(plain({0, 1})));  // groups 2 and 3
  const std::vector<std::string> good{"G2 G3 F0.0 >1.0@1 <g1.0@1 B0.0 R0.0 R2.0 R3.0 X2 X3 U",
                                      "G2 G3 <1.0@0 F1.0 B1.0 R1.0 >g1.0@0 R2.0 R3.0 X2 X3 U"};
  EXPECT_NO_THROW(check(std::vector<Schedule>{parse(good[0]), parse(good[1])}, units));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good[1];
    text.replace(text.find(from), from.size(), to);
    return refusal({good[0], text}, units);
  };
  EXPECT_THAT(changed("G2 G3", "G3 G2"),
              HasSubstr("rank 0, entry 0 (G2): waits forever for rank 1, which waits at entry 0"));
  EXPECT_THAT(changed("G2 G3", "G3"), HasSubstr("rank 0, entry 0 (G2): waits forever: rank 1 never gathers it"));
  EXPECT_THAT(changed("R2.0 R3.0", "R3.0 R2.0"), HasSubstr("rank 1, entry 7 (R3.0): rank 0 has R2.0 of the joint"));
  EXPECT_THAT(changed("R2.0 R3.0", "R2.0"), HasSubstr("rank 1, entry 10 (U): group 3 (tied) has a gradient but no"));
  EXPECT_THAT(changed("X2 X3", "X2 G2 X2 X3"), HasSubstr("(G2): a joint group is gathered once a step"));
  EXPECT_THAT(changed("G2 G3 <1.0@0", "<1.0@0 G2 G3"), HasSubstr("waits forever"));
  units.groups[2].is_joint = false;
  EXPECT_THAT(refusal(good, units), HasSubstr("group 2 (tied): is used on ranks 0 and 1 but is not joint"));
}

/// A random model: nested, recomputed, frozen at the front, groups shared within a stage or by all.
Units random_units(int num_stages) {
  Units units;
  const auto chance = [](int percent) { return *rc::gen::inRange(0, 100) < percent; };
  const int num_frozen = chance(30) ? *rc::gen::inRange(0, 5) : 0;
  const int num_groups = *rc::gen::inRange(1, 4);  // of a stage
  for (int group = 0; group < num_stages * num_groups; ++group) {
    units.groups.push_back({.name = "g", .is_trained = chance(80), .is_gathered = chance(70)});
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    int parent = -1;
    const int num_units = *rc::gen::inRange(1, 6);
    for (int i = 0; i < num_units; ++i) {
      const int index = static_cast<int>(units.units.size());
      Units::Unit unit{.name = "u", .stage = stage, .has_backward = index >= num_frozen, .is_recomputed = chance(30)};
      for (int g = stage * num_groups; g < (stage + 1) * num_groups; ++g) {
        if (chance(40)) unit.groups.push_back(g);
      }
      unit.parent = i == 0 ? -1 : parent;
      if (!unit.has_backward) {
        for (const int group : unit.groups) units.groups[group].is_trained = false;
      }
      units.units.push_back(unit);
      parent = chance(40) ? index : chance(50) ? parent : -1;
    }
  }
  for (size_t i = units.units.size(); i-- > 0;) {  // a parent of a unit with backward has one
    if (units.units[i].has_backward && units.units[i].parent >= 0)
      units.units[units.units[i].parent].has_backward = true;
  }
  if (num_frozen == 0 && chance(50)) units = tied(std::move(units));
  return units;
}

/// Orders of passes as ranks make them in random turns, each any pass whose input is available. Each kind of pass goes
/// through the micro-batches in order.
Orders random_orders(const Units& units, const std::vector<int>& rank_of_stage, int n, bool trains) {
  const int num_stages = units.num_stages();
  Orders orders(*std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1);
  std::vector<std::map<Pass::Kind, int>> done(num_stages, {{kF, 0}, {kB, 0}, {kW, 0}});
  const bool splits = *rc::gen::arbitrary<bool>();
  while (true) {
    std::vector<Pass> ready;
    for (int stage = 0; stage < num_stages; ++stage) {
      const int forward = done[stage][kF];
      const int backward = done[stage][kB];
      if (forward < n && (stage == 0 || done[stage - 1][kF] > forward)) ready.push_back({kF, forward, stage});
      if (!trains || !units.has_backward(stage)) continue;
      if (backward < forward && (stage == num_stages - 1 || done[stage + 1][kB] > backward)) {
        ready.push_back({kB, backward, stage});
      }
      if (splits && done[stage][kW] < backward) ready.push_back({kW, done[stage][kW], stage});
    }
    if (ready.empty()) return orders;
    const Pass pass = ready[*rc::gen::inRange<size_t>(0, ready.size())];
    orders[rank_of_stage[pass.stage]].push_back(pass);
    ++done[pass.stage][pass.kind];
  }
}

struct Drawn {
  Units units;
  std::vector<int> rank_of_stage{};
  std::vector<Schedule> tables{};
};

Drawn random_tables() {
  const int num_stages = *rc::gen::inRange(1, 5);
  const int num_ranks = *rc::gen::inRange(1, num_stages + 1);
  Drawn drawn{.units = random_units(num_stages)};
  for (int stage = 0; stage < num_stages; ++stage) drawn.rank_of_stage.push_back(stage % num_ranks);
  const Technique technique{{*rc::gen::arbitrary<bool>(), *rc::gen::inRange(0, 5)}, *rc::gen::arbitrary<bool>()};
  const Orders orders =
      random_orders(drawn.units, drawn.rank_of_stage, *rc::gen::inRange(1, 5), *rc::gen::arbitrary<bool>());
  drawn.tables = build(orders, drawn.units, technique, drawn.rank_of_stage);
  return drawn;
}

constexpr int kDraws = 30;  // in each of RapidCheck's 100 runs

TEST(TableCheck, AcceptsBuiltTablesOfAnyOrder) {
  EXPECT_TRUE(rc::check([] {
    for (int i = 0; i < kDraws; ++i) {
      const Drawn drawn = random_tables();
      try {
        check(drawn.tables, drawn.units, drawn.rank_of_stage);
      } catch (const UsageError& error) {
        for (const Schedule& table : drawn.tables) RC_LOG() << to_string(table) << '\n';
        RC_FAIL(error.what());
      }
    }
  }));
}

/// Whether the table may keep the rules without this entry: a W whose work its B does instead (in a pass of one unit),
/// one of two reductions of a group if the other follows everything, F of the only unit if it is the last.
bool may_be_missing(const Drawn& drawn, const Schedule& table, const Action& entry) {
  const auto stage_of = [&](const Action& event) { return drawn.units.units[event.unit].stage; };
  const auto is_like = [&](const Action& other) {
    if (other.kind != entry.kind) return false;
    if (entry.kind == Kind::reduce) return other.unit == entry.unit;
    return stage_of(other) == stage_of(entry) && other.micro_batch == entry.micro_batch;
  };
  const bool is_free =
      entry.kind == Kind::forward && drawn.units.units.size() == 1 && table.back().kind != Kind::update;
  if (!is_free && entry.kind != Kind::weight && entry.kind != Kind::reduce) return false;
  return std::count_if(table.begin(), table.end(), is_like) == (entry.kind == Kind::reduce ? 2 : 1);
}

/// Whether the rules forbid that `second`, which follows `first` in a table, comes before it.
bool depends(const Action& first, const Action& second, const Units& units) {
  if (second.kind == Kind::update) return true;
  const auto reads = [&](const Action& event, int group) {
    const std::vector<int> groups = units.groups_of(event);
    return event.is_event() && std::find(groups.begin(), groups.end(), group) != groups.end();
  };
  if (first.is_event() && second.is_event()) {  // of one pass, or passes of one micro-batch that build on each other
    if (first.micro_batch != second.micro_batch) return false;
    return units.units[first.unit].stage == units.units[second.unit].stage;
  }
  if (first.kind == Kind::gather && second.is_event()) return reads(second, first.unit);
  if (first.is_event() && second.kind == Kind::free) return reads(first, second.unit);
  if (first.kind == Kind::reduce && second.kind == Kind::free) return first.unit == second.unit;
  return first.is_event() && second.kind == Kind::send && first.micro_batch == second.micro_batch &&
         (second.is_gradient == (first.kind != Kind::forward));
}

/// Deletes, doubles or swaps an entry of one rank's table; false if that may keep the rules.
bool change(Drawn& drawn, Schedule& table) {
  const size_t at = *rc::gen::inRange<size_t>(0, table.size());
  const auto here = table.begin() + static_cast<std::ptrdiff_t>(at);
  switch (*rc::gen::inRange(0, 3)) {
    case 0:
      if (may_be_missing(drawn, table, *here)) return false;
      table.erase(here);
      return true;
    case 1: table.insert(here, Action(*here)); return true;
    default:
      if (at + 1 == table.size() || !depends(table[at], table[at + 1], drawn.units)) return false;
      std::swap(table[at], table[at + 1]);
      return true;
  }
}

TEST(TableCheck, RefusesAnySingleChangeThatMatters) {
  EXPECT_TRUE(rc::check([] {
    for (int i = 0; i < kDraws; ++i) {
      Drawn drawn = random_tables();
      Schedule& table = drawn.tables[*rc::gen::inRange<size_t>(0, drawn.tables.size())];
      const Schedule before = table;
      if (!change(drawn, table)) continue;
      try {
        check(drawn.tables, drawn.units, drawn.rank_of_stage);
      } catch (const UsageError&) {
        continue;
      }
      RC_FAIL(to_string(table) + "\nis accepted instead of\n" + to_string(before));
    }
  }));
}

}  // namespace
}  // namespace caravan::schedule_rules_test
