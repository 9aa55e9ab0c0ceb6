#include "caravan/mesh/mesh.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/record.h"
#include "tests/mesh/refusal.h"

namespace caravan::testing::mesh_test {
namespace {

using ::testing::HasSubstr;

TEST(Mesh, RanksAreRowMajorTheLastAxisFastest) {
  for (int rank = 0; rank < 24; ++rank) {
    const Mesh mesh = Mesh::create(make_record_world(rank, 24), {{"dp", 2}, {"pp", 3}, {"tp", 4}});
    EXPECT_EQ(mesh["dp"].coord(), rank / 12);
    EXPECT_EQ(mesh["pp"].coord(), rank / 4 % 3);
    EXPECT_EQ(mesh["tp"].coord(), rank % 4);
    for (const MeshAxis& axis : mesh.axes()) {
      EXPECT_EQ(axis.comm().rank(), axis.coord());
      EXPECT_EQ(axis.comm().size(), axis.size());
    }
    EXPECT_EQ(mesh.rank(), rank);
    EXPECT_EQ(mesh.size(), 24);
  }
}

TEST(Mesh, SaysWhereItIs) {
  const Mesh mesh = Mesh::create(make_record_world(5, 12), {{"dp", 3}, {"tp", 4}});
  EXPECT_EQ(mesh.where(), "rank 5 of 12 (dp=1 tp=1)");
  EXPECT_EQ(mesh["tp"].where(), mesh.where());
  EXPECT_TRUE(mesh.has("dp"));
  EXPECT_FALSE(mesh.has("pp"));
  EXPECT_EQ(mesh["tp"], mesh.axes()[1]);
  EXPECT_FALSE(mesh["tp"] == mesh["dp"]);
  EXPECT_THAT(refusal<UsageError>([&] { mesh["pp"]; }), HasSubstr("[mesh] pp: no axis has this name"));
  EXPECT_THAT(refusal<UsageError>([&] { mesh["pp"]; }), HasSubstr("choose from dp, tp"));
}

CommOptions short_waits() {
  CommOptions options;
  options.timeout = std::chrono::seconds(10);
  return options;
}

/// The members of an axis differ from this rank only in that coordinate, and are ordered by it.
TEST(Mesh, AxesJoinTheRightRanks) {
  const auto body = [](const std::shared_ptr<Communicator>& world) {
    const Mesh mesh = Mesh::create(world, {{"a", 2}, {"one", 1}, {"b", 3}});
    const auto members = [&](const std::string& axis) {
      const int64_t mine = mesh.rank();
      std::vector<int64_t> all(mesh[axis].size());
      mesh[axis].comm().all_gather(ConstBuffer(&mine, 1, Dtype::int64),
                                   Buffer{all.data(), static_cast<int64_t>(all.size()), Dtype::int64});
      return all;
    };
    const int a = mesh.rank() / 3;
    const int b = mesh.rank() % 3;
    EXPECT_EQ(members("a"), (std::vector<int64_t>{b, 3 + b}));
    EXPECT_EQ(members("b"), (std::vector<int64_t>{3 * a, 3 * a + 1, 3 * a + 2}));
    EXPECT_EQ(mesh["b"].comm().traffic().total_bytes(), 16);
    EXPECT_EQ(mesh.bytes_sent(), 24);
    EXPECT_EQ(members("one"), std::vector<int64_t>{mesh.rank()});  // one rank: its verbs are no-ops
    EXPECT_EQ(mesh.bytes_sent(), 24);
    EXPECT_GE(mesh.wait_ms(), 0);
  };
  run_thread_ranks(6, body, short_waits());
}

TEST(Mesh, AWorldOfOneHasEveryAxis) {
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {{"dp", 1}, {"tp", 1}});
  EXPECT_EQ(mesh["dp"].size(), 1);
  EXPECT_EQ(mesh["dp"].coord(), 0);
  EXPECT_EQ(Mesh::create(make_record_world(0, 1), {}).axes().size(), 0U);
}

TEST(Mesh, RefusesSizesThatDoNotFillTheWorld) {
  const auto make = [](std::vector<AxisSize> axes) {
    return refusal<UsageError>([&] { Mesh::create(make_record_world(0, 8), std::move(axes)); });
  };
  EXPECT_THAT(make({{"dp", 2}, {"tp", 3}}),
              HasSubstr("[mesh] dp=2 tp=3: the sizes multiply to 6, the world has 8 ranks"));
  EXPECT_THAT(make({{"dp", 2}, {"tp", 3}}), HasSubstr("make tp 4, or start 6 ranks"));
  EXPECT_THAT(make({{"dp", 2}, {"tp", 2}}), HasSubstr("make dp 4, or tp 4, or start 4 ranks"));
  EXPECT_THAT(make({{"dp", 3}, {"tp", 5}}), HasSubstr("choose each size from the divisors {1, 2, 4, 8}"));
  EXPECT_THAT(make({}), HasSubstr("the sizes multiply to 1, the world has 8 ranks"));
  EXPECT_THAT(make({{"dp", 0}, {"tp", 8}}), HasSubstr("axis dp has size 0"));
  EXPECT_THAT(make({{"dp", 2}, {"dp", 4}}), HasSubstr("two axes are named dp"));
  EXPECT_THAT(make({{"", 8}}), HasSubstr("axis 0 of 1 has no name"));
  EXPECT_THAT(make({{"a", 1 << 30}, {"b", 1 << 30}, {"c", 1 << 30}}), HasSubstr("the world has 8 ranks"));
}

}  // namespace
}  // namespace caravan::testing::mesh_test
