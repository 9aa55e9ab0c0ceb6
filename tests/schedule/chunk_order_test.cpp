#include "caravan/schedule/chunk_order.h"

#include <array>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/mesh/refusal.h"

namespace caravan::testing::chunk_order_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Units whose parameters are in chunks: `chunks[u]` are those of unit u.
Units units_of(const std::vector<std::vector<int>>& chunks, bool is_whole) {
  Units units;
  int num = 0;
  for (size_t u = 0; u < chunks.size(); ++u) {
    units.units.push_back({.name = "unit" + std::to_string(u), .groups = chunks[u]});
    for (const int chunk : chunks[u]) num = std::max(num, chunk + 1);
  }
  for (int c = 0; c < num; ++c) {
    units.groups.push_back({.name = "chunk " + std::to_string(c),
                            .is_gathered = true,
                            .is_fetched = true,
                            .is_chunk = true,
                            .is_whole = is_whole});
  }
  return units;
}

Units chain(int num, bool is_whole) {
  std::vector<std::vector<int>> chunks;
  for (int u = 0; u < num; ++u) chunks.push_back({u});
  return units_of(chunks, is_whole);
}

Schedule gathered(const Units& units, int micro_batches, int prefetch = 0) {
  const GatherOptions gathers{.prefetch = prefetch};
  return with_reductions(with_gathers(expand(accumulate(micro_batches), units), units, gathers), units);
}

Schedule with_slots(const Units& units, int micro_batches, const ChunkRoom& room) {
  return with_update(with_chunk_moves(gathered(units, micro_batches), units, room));
}

int loads(const Schedule& table) {
  return static_cast<int>(std::ranges::count(table, Action::Kind::fetch, &Action::kind));
}

TEST(ChunkOrder, KeepsAChunkWhileThereIsRoom) {
  const Units units = chain(3, /*is_whole=*/true);
  EXPECT_EQ(to_string(with_slots(units, 1, {.slots = 1, .prefetch = 0})),
            "L0 G0 F0.0 X0 E0 L1 G1 F1.0 X1 E1 L2 G2 F2.0 B2.0 R2.0 X2 E2 L1 G1 B1.0 R1.0 X1 E1 L0 G0 B0.0 R0.0 X0 E0 "
            "U");
  EXPECT_EQ(to_string(with_slots(units, 1, {.slots = 3, .prefetch = 0})),
            "L0 G0 F0.0 X0 L1 G1 F1.0 X1 L2 G2 F2.0 B2.0 R2.0 X2 E2 G1 B1.0 R1.0 X1 E1 G0 B0.0 R0.0 X0 E0 U");
}

/// With room for two, the next chunk is loaded while one is used, and as few chunks are loaded.
TEST(ChunkOrder, FetchesAheadWhereThereIsRoom) {
  const Units units = chain(4, /*is_whole=*/true);
  const Schedule late = with_slots(units, 1, {.slots = 2, .prefetch = 0});
  const Schedule early = with_slots(units, 1, {.slots = 2, .prefetch = 1});
  EXPECT_EQ(loads(early), loads(late));
  EXPECT_EQ(to_string(early).substr(0, 21), "L0 L1 G0 F0.0 X0 E0 L");
}

/// The table passes the check, loads what the comparison says, and hardly more than any order must.
void expect_good(const Schedule& bare, const Units& units, const ChunkRoom& room) {
  SCOPED_TRACE(to_string(bare));
  const Schedule table = with_update(with_chunk_moves(bare, units, room));
  check(std::array{table}, units, {}, 0, room.slots);
  const ChunkComparison found = compare_chunk_orders(table, units, room.slots);
  const auto count = [&](size_t policy) { return static_cast<int64_t>(found.policies[policy].groups.size()); };
  EXPECT_EQ(count(static_cast<size_t>(std::ranges::find(found.policies, room.policy, &ChunkLoads::policy) -
                                      found.policies.begin())),
            loads(table));
  for (const size_t policy : {0, 1}) {
    EXPECT_GE(count(policy), found.least);
    EXPECT_LE(count(policy) * 10, 11 * found.least);
  }
  EXPECT_GE(count(2), found.least);
}

TEST(ChunkOrder, ChecksAtEveryRoomPolicyAndDepth) {
  const std::vector<std::vector<int>> spread{{0, 1}, {1, 2}, {2}, {2, 3, 4}, {0, 4}};  // a tied chunk 0
  for (const bool is_whole : {true, false}) {
    for (const Units& units : {chain(5, is_whole), units_of(spread, is_whole)}) {
      for (const int micro_batches : {1, 2, 3}) {
        const Schedule bare = gathered(units, micro_batches, 1);
        const int least = least_slots(bare, units, 0);
        ASSERT_GT(least, 0);
        for (const int prefetch : {0, 1, 3}) {
          EXPECT_LE(least, least_slots(bare, units, prefetch));
          for (int slots = least; slots <= 6; ++slots) {
            for (const ChunkPolicy policy : {ChunkPolicy::recorded, ChunkPolicy::latest, ChunkPolicy::lru}) {
              expect_good(bare, units, {.slots = slots, .policy = policy, .prefetch = prefetch});
            }
          }
        }
      }
    }
  }
}

/// Forward and backward are a palindrome, for which the chunk that was used last is the best to keep; two forwards in a
/// row are a cycle, for which it is the worst.
TEST(ChunkOrder, LruLoadsMoreWhereForwardsFollowForwards) {
  const Units units = chain(8, /*is_whole=*/true);
  const auto compare = [&](const PassOrder& order) {
    return compare_chunk_orders(with_gathers(expand(order, units), units), units, 4);
  };
  const auto count = [](const ChunkLoads& loads) { return static_cast<int64_t>(loads.groups.size()); };
  const ChunkComparison alternating = compare(accumulate(2));
  for (const ChunkLoads& loads : alternating.policies) EXPECT_EQ(count(loads), alternating.least);
  PassOrder order;
  for (const int m : {0, 1, 2}) order.push_back({Pass::Kind::forward, m, 0});
  for (const int m : {0, 1, 2}) order.push_back({Pass::Kind::backward, m, 0});
  const ChunkComparison cyclic = compare(order);
  EXPECT_EQ(count(cyclic.policies[0]), cyclic.least);
  EXPECT_GT(count(cyclic.policies[2]), cyclic.least);
}

TEST(ChunkOrder, RefusesTooLittleRoom) {
  const Units units = units_of({{0}, {0, 1, 2}}, /*is_whole=*/true);
  EXPECT_THAT(
      refusal<UsageError>([&] { with_slots(units, 1, {.slots = 2}); }),
      AllOf(HasSubstr("chunks.device"), HasSubstr("room for 2 chunks"), HasSubstr("unit1"), HasSubstr("uses 3")));
}

TEST(ChunkOrder, WrongTablesAreNamed) {
  const Units units = chain(2, /*is_whole=*/true);
  const Schedule right = with_slots(units, 1, {.slots = 2, .prefetch = 0});
  check(std::array{right}, units, {}, 0, 2);
  const auto error_of = [&](const Schedule& table, int slots = 2) {
    return refusal<UsageError>([&] { check(std::array{table}, units, {}, 0, slots); });
  };
  const auto find = [&](Schedule& table, Action::Kind kind) { return std::ranges::find(table, kind, &Action::kind); };
  EXPECT_THAT(error_of(right, 1), HasSubstr("needs 2 slots, and there are 1"));
  Schedule table = right;
  table.erase(find(table, Action::Kind::fetch));
  EXPECT_THAT(error_of(table), HasSubstr("has no slot"));
  table = right;
  table.erase(find(table, Action::Kind::evict));
  EXPECT_THAT(error_of(table), HasSubstr("still has a slot"));
  table = right;
  table.insert(table.begin(), *find(table, Action::Kind::fetch));
  EXPECT_THAT(error_of(table), HasSubstr("has a slot already"));
  table = right;
  table.insert(find(table, Action::Kind::gather) + 1, {.kind = Action::Kind::evict, .unit = 0});
  EXPECT_THAT(error_of(table), HasSubstr("is gathered"));
  table = right;
  table.insert(find(table, Action::Kind::reduce) + 1, {.kind = Action::Kind::step, .unit = 1});
  EXPECT_THAT(error_of(table), HasSubstr("whose contents would be old"));
}

}  // namespace
}  // namespace caravan::testing::chunk_order_test
