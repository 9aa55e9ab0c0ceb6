#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/record.h"
#include "caravan/mesh/layout.h"
#include "caravan/mesh/mesh.h"
#include "tests/mesh/refusal.h"

namespace caravan::testing::derived_mesh_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void on_thread_ranks(const std::vector<AxisSize>& axes, const std::function<void(const Mesh&)>& body) {
  int ranks = 1;
  for (const AxisSize& axis : axes) ranks *= axis.size;
  run_thread_ranks(ranks, [&](const auto& world) { body(Mesh::create(world, axes)); },
                   {.timeout = std::chrono::seconds(10)});
}

/// The ranks of the world that the axis joins, in its order, by a collective over it.
std::vector<int64_t> members(const Mesh& mesh, const std::string& axis) {
  const int64_t mine = mesh.rank();
  std::vector<int64_t> all(static_cast<size_t>(mesh[axis].size()));
  mesh[axis].comm().all_gather(ConstBuffer(&mine, 1, Dtype::int64),
                               Buffer{all.data(), static_cast<int64_t>(all.size()), Dtype::int64});
  EXPECT_EQ(all[static_cast<size_t>(mesh[axis].coord())], mine);
  return all;
}

std::vector<std::string> names(const Mesh& mesh) {
  std::vector<std::string> all;
  for (const MeshAxis& axis : mesh.axes()) all.push_back(axis.name());
  return all;
}

TEST(Factor, SixRanksAreTwoTimesThree) {
  on_thread_ranks({{"dp", 6}}, [](const Mesh& mesh) {
    const Mesh hybrid = mesh.factor("dp", {{"replicate", 2}, {"shard", 3}});
    const int64_t replicate = mesh.rank() / 3;
    const int64_t shard = mesh.rank() % 3;
    EXPECT_EQ(names(hybrid), (std::vector<std::string>{"replicate", "shard"}));
    EXPECT_EQ(hybrid.where(), "rank " + std::to_string(mesh.rank()) + " of 6 (replicate=" + std::to_string(replicate) +
                                  " shard=" + std::to_string(shard) + ")");
    EXPECT_EQ(members(hybrid, "replicate"), (std::vector<int64_t>{shard, 3 + shard}));
    EXPECT_EQ(members(hybrid, "shard"), (std::vector<int64_t>{3 * replicate, 3 * replicate + 1, 3 * replicate + 2}));
    EXPECT_EQ(members(hybrid, "dp"), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(hybrid["dp"], mesh["dp"]);
    EXPECT_FALSE(mesh.has("shard"));
    // One number to 1, 2 and 5 others; each communicator counts once, on every mesh of the family.
    EXPECT_EQ(hybrid.bytes_sent(), 8 * (1 + 2 + 5));
    EXPECT_EQ(mesh.bytes_sent(), hybrid.bytes_sent());
  });
}

TEST(Factor, InTheMiddleOfAMeshAndAgain) {
  on_thread_ranks({{"dp", 2}, {"tp", 4}, {"pp", 2}}, [](const Mesh& mesh) {
    const Mesh torus = mesh.factor("tp", {{"row", 2}, {"col", 2}});
    const int pp = mesh.rank() % 2;
    const int tp = mesh.rank() / 2 % 4;
    const int dp = mesh.rank() / 8;
    const auto rank = [](int dp, int tp, int pp) { return int64_t{8} * dp + 2 * tp + pp; };
    EXPECT_EQ(names(torus), (std::vector<std::string>{"dp", "row", "col", "pp"}));
    EXPECT_EQ(members(torus, "row"), (std::vector<int64_t>{rank(dp, tp % 2, pp), rank(dp, 2 + tp % 2, pp)}));
    EXPECT_EQ(members(torus, "col"), (std::vector<int64_t>{rank(dp, tp / 2 * 2, pp), rank(dp, tp / 2 * 2 + 1, pp)}));

    // Joined axes and the old axis are split too when one of their parts is factored again.
    const Mesh again = torus.join("both", {"row", "dp"}).factor("row", {{"one", 1}, {"two", 2}});
    EXPECT_EQ(names(again), (std::vector<std::string>{"dp", "one", "two", "col", "pp"}));
    EXPECT_EQ(again.made_of("tp"), (std::vector<std::string>{"one", "two", "col"}));
    EXPECT_EQ(again.made_of("both"), (std::vector<std::string>{"one", "two", "dp"}));
    EXPECT_EQ(again.made_of("pp"), std::vector<std::string>{"pp"});
    EXPECT_EQ(members(again, "two"), members(torus, "row"));
    EXPECT_EQ(members(again, "one"), std::vector<int64_t>{mesh.rank()});
  });
}

TEST(Join, OfTwoAxesThatAreNotAdjacent) {
  on_thread_ranks({{"dp", 2}, {"tp", 2}, {"cp", 3}}, [](const Mesh& mesh) {
    const int64_t tp = mesh.rank() / 3 % 2;
    const auto ranks = [&](const std::string& axis) { return members(mesh.join("joined", {axis}), "joined"); };
    EXPECT_EQ(ranks("cp"), members(mesh, "cp"));
    const Mesh joined = mesh.join("grads", {"dp", "cp"});
    EXPECT_EQ(names(joined), names(mesh));
    EXPECT_EQ(joined.where(), mesh.where());
    const int64_t t = 3 * tp;
    EXPECT_EQ(members(joined, "grads"), (std::vector<int64_t>{t, t + 1, t + 2, 6 + t, 7 + t, 8 + t}));
    // The first named is the slowest.
    EXPECT_EQ(members(mesh.join("other", {"cp", "dp"}), "other"),
              (std::vector<int64_t>{t, 6 + t, t + 1, 7 + t, t + 2, 8 + t}));
    EXPECT_EQ(members(joined.join("all", {"grads", "tp"}), "all").size(), 12U);

    const double mine = mesh.rank();
    double sum = 0;
    joined["grads"].comm().all_reduce({&mine, 1, Dtype::fp64}, {&sum, 1, Dtype::fp64}, ReduceOp::sum);
    EXPECT_EQ(sum, static_cast<double>(6 * t + 0 + 1 + 2 + 6 + 7 + 8));
  });
}

TEST(Part, HasExactlyItsMembers) {
  on_thread_ranks({{"pp", 4}, {"dp", 2}}, [](const Mesh& mesh) {
    const Mesh tied = mesh.part("pp", {0, 3});
    const int64_t dp = mesh.rank() % 2;
    const int pp = mesh.rank() / 2;
    EXPECT_EQ(names(tied), names(mesh));
    EXPECT_EQ(tied.has("pp{0,3}"), pp == 0 || pp == 3);
    EXPECT_FALSE(mesh.has("pp{0,3}"));
    EXPECT_EQ(tied.made_of("pp{0,3}"), std::vector<std::string>{"pp"});
    if (pp == 0 || pp == 3) {
      const MeshAxis& ends = tied["pp{0,3}"];
      EXPECT_EQ(members(tied, "pp{0,3}"), (std::vector<int64_t>{dp, 6 + dp}));
      EXPECT_EQ(ends.coord(), pp / 3);
      EXPECT_EQ(ends.parent(), "pp");
      EXPECT_EQ(ends.parent_coord(0), 0);
      EXPECT_EQ(ends.parent_coord(1), 3);
      EXPECT_THAT(refusal<UsageError>([&] { (void)ends.parent_coord(2); }), HasSubstr("has no coordinate 2"));
    } else {
      EXPECT_THAT(refusal<UsageError>([&] { tied["pp{0,3}"]; }),
                  AllOf(HasSubstr("[mesh] pp{0,3}: this rank is not on the sub-axis: its coordinate on pp is " +
                                  std::to_string(pp)),
                        HasSubstr(tied.where())));
    }
    EXPECT_EQ(mesh["pp"].parent(), "");
    EXPECT_EQ(mesh["pp"].parent_coord(2), 2);

    // A second call returns the same axis; others may overlap it.
    const Mesh same = tied.part("pp", {0, 3});
    if (pp == 0) {
      EXPECT_EQ(same["pp{0,3}"], tied["pp{0,3}"]);
    }
    const Mesh more = same.part("pp", {2, 3}).part("pp", {1});
    if (pp > 1) {
      EXPECT_EQ(members(more, "pp{2,3}"), (std::vector<int64_t>{4 + dp, 6 + dp}));
    }
    if (pp == 1) {
      EXPECT_EQ(members(more, "pp{1}"), std::vector<int64_t>{mesh.rank()});
    }
    EXPECT_EQ(members(mesh, "dp"), (std::vector<int64_t>{mesh.rank() - dp, mesh.rank() - dp + 1}));
  });
}

TEST(Part, OfAJoinedAxisAndOfOneThatIsFactoredLater) {
  on_thread_ranks({{"a", 2}, {"b", 2}}, [](const Mesh& mesh) {
    const Mesh derived = mesh.join("ba", {"b", "a"}).part("ba", {0, 1, 3}).factor("a", {{"x", 2}, {"y", 1}});
    EXPECT_EQ(derived.made_of("ba{0,1,3}"), (std::vector<std::string>{"b", "x", "y"}));
    EXPECT_EQ(derived.has("ba{0,1,3}"), mesh.rank() != 1);  // coordinate 2 of ba: b=1 a=0
    if (mesh.rank() != 1) {
      EXPECT_EQ(members(derived, "ba{0,1,3}"), (std::vector<int64_t>{0, 2, 3}));
    }
  });
}

TEST(DerivedMesh, OfOneRank) {
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {{"dp", 1}, {"cp", 1}});
  const Mesh derived = mesh.factor("dp", {{"replicate", 1}, {"shard", 1}}).join("grads", {"dp", "cp"}).part("cp", {0});
  for (const char* axis : {"dp", "cp", "replicate", "shard", "grads", "cp{0}"}) {
    EXPECT_EQ(derived[axis].size(), 1) << axis;
    EXPECT_EQ(derived[axis].coord(), 0) << axis;
    EXPECT_EQ(derived[axis].comm().size(), 1) << axis;
  }
  EXPECT_EQ(names(derived), (std::vector<std::string>{"replicate", "shard", "cp"}));
  EXPECT_EQ(Layout({{"dp", Replicate{}}}).completed(derived, Invariant{}).to_string(), "dp=R cp=I");
}

TEST(DerivedMesh, RefusesInvalidArgumentsOnEveryRank) {
  for (const int rank : {0, 7}) {
    const Mesh mesh = Mesh::create(make_record_world(rank, 12), {{"dp", 6}, {"tp", 2}});
    const Mesh derived = mesh.factor("dp", {{"replicate", 2}, {"shard", 3}}).part("dp", {0, 1});
    const auto factor = [&](std::string_view axis, std::vector<AxisSize> parts) {
      return refusal<UsageError>([&] { derived.factor(axis, std::move(parts)); });
    };
    EXPECT_THAT(factor("pp", {{"x", 2}}), HasSubstr("choose from dp, tp, replicate, shard, dp{0,1}"));
    EXPECT_THAT(factor("dp", {{"x", 6}}), HasSubstr("axis dp is made of replicate, shard"));
    EXPECT_THAT(factor("dp{0,1}", {{"x", 2}}), HasSubstr("axis dp{0,1} is made of replicate, shard"));
    EXPECT_THAT(factor("shard", {{"x", 2}, {"y", 2}}),
                HasSubstr("[mesh] shard into x=2 y=2: the sizes multiply to 4, axis shard has size 3"));
    EXPECT_THAT(factor("shard", {{"x", 2}, {"y", 2}}), HasSubstr("choose each size from the divisors {1, 3}"));
    EXPECT_THAT(factor("shard", {{"x", 3}, {"y", 2}}), HasSubstr("make y 1"));
    EXPECT_THAT(factor("shard", {{"x", 3}, {"y", 0}}), HasSubstr("axis y has size 0"));
    EXPECT_THAT(factor("shard", {{"x", 3}, {"x", 1}}), HasSubstr("two axes are named x"));
    EXPECT_THAT(factor("shard", {{"dp", 3}}), HasSubstr("dp: the mesh has an axis of this name"));
    EXPECT_THAT(factor("shard", {}), HasSubstr("there are no parts"));

    const auto joined = [&](std::string_view name, std::vector<std::string> axes) {
      return refusal<UsageError>([&] { (void)derived.join(name, std::move(axes)); });
    };
    EXPECT_THAT(joined("x", {"dp", "cp"}), HasSubstr("choose from dp, tp, replicate, shard, dp{0,1}"));
    EXPECT_THAT(joined("x", {"dp", "shard"}), HasSubstr("axes dp and shard share coordinates"));
    EXPECT_THAT(joined("x", {"tp", "tp"}), HasSubstr("axis tp is named twice"));
    EXPECT_THAT(joined("x", {"tp", "dp{0,1}"}), HasSubstr("dp{0,1} has only some ranks of axis dp"));
    EXPECT_THAT(joined("x", {}), HasSubstr("is made of no axes"));
    EXPECT_THAT(joined("tp", {"dp"}), HasSubstr("tp: the mesh has an axis of this name"));
    EXPECT_THAT(joined("dp{0,1}", {"dp"}), HasSubstr("dp{0,1}: the mesh has an axis of this name"));
    EXPECT_THAT(joined("", {"dp"}), HasSubstr("the axis has no name"));

    const auto part = [&](std::string_view axis, std::vector<int> coords) {
      return refusal<UsageError>([&] { (void)derived.part(axis, std::move(coords)); });
    };
    EXPECT_THAT(part("pp", {0}), HasSubstr("choose from dp, tp, replicate, shard, dp{0,1}"));
    EXPECT_THAT(part("dp", {}), HasSubstr("[mesh] dp{}: no coordinates are given"));
    EXPECT_THAT(part("dp", {0, 6}), HasSubstr("[mesh] dp{0,6}: axis dp has no coordinate 6"));
    EXPECT_THAT(part("dp", {-1}), HasSubstr("axis dp has no coordinate -1"));
    EXPECT_THAT(part("dp", {2, 1}), HasSubstr("coordinate 1 comes after 2"));
    EXPECT_THAT(part("dp", {1, 1}), HasSubstr("coordinate 1 comes after 1"));
    EXPECT_THAT(part("dp{0,1}", {0}), HasSubstr("dp{0,1} is a sub-axis of dp itself"));
  }
}

TEST(DerivedMesh, ALayoutNamesAnAxisOrItsPartsNotBoth) {
  const Mesh mesh = Mesh::create(make_record_world(4, 6), {{"dp", 6}}).factor("dp", {{"replicate", 2}, {"shard", 3}});
  const std::vector<int64_t> shape{12};
  const Box by_dp = local_box(shape, {{"dp", Shard{0}}}, mesh);
  EXPECT_EQ(by_dp, (Box{{8}, {2}}));
  EXPECT_EQ(local_box(shape, {{"replicate", Shard{0}}, {"shard", Shard{0}}}, mesh), by_dp);
  EXPECT_EQ(local_box(shape, {{"shard", Shard{0}}}, mesh), (Box{{4}, {4}}));
  EXPECT_EQ(Layout({{"dp", Shard{0}}}).completed(mesh, Invariant{}).to_string(), "dp=S(0)");
  EXPECT_EQ(Layout({{"shard", Shard{0}}}).completed(mesh, Invariant{}).to_string(), "shard=S(0) replicate=I");
  const Layout both{{"dp", Invariant{}}, {"shard", Shard{0}}};
  EXPECT_THAT(refusal<LayoutError>([&] { local_box(shape, both, mesh, "w"); }),
              HasSubstr("w [12]: axes dp and shard share coordinates"));
}

}  // namespace
}  // namespace caravan::testing::derived_mesh_test
