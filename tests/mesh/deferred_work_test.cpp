#include "caravan/mesh/deferred_work.h"

#include <memory>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/comm/record.h"
#include "caravan/mesh/mesh.h"

namespace caravan::testing::deferred_work_test {
namespace {

TEST(DeferredWork, RunsInOrderIncludingWorkPushedMeanwhile) {
  DeferredWork deferred;
  std::vector<int> ran;
  deferred.run_all();  // nothing
  deferred.push([&] {
    ran.push_back(1);
    deferred.push([&] { ran.push_back(3); });
  });
  deferred.push([&] { ran.push_back(2); });
  EXPECT_EQ(deferred.size(), 2U);
  EXPECT_TRUE(ran.empty());
  deferred.run_all();
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(deferred.empty());
}

TEST(DeferredWork, WorkMayRunTheRestAndMayDropIt) {
  DeferredWork deferred;
  std::vector<int> ran;
  deferred.push([&] {
    deferred.run_all();
    ran.push_back(1);
  });
  deferred.push([&] { ran.push_back(2); });
  deferred.run_all();
  EXPECT_EQ(ran, (std::vector<int>{2, 1}));
  deferred.push([&] { deferred.clear(); });
  deferred.push([&] { ran.push_back(3); });
  deferred.run_all();
  EXPECT_EQ(ran.size(), 2U);
}

TEST(DeferredWork, AnExceptionLeavesLaterWorkQueued) {
  DeferredWork deferred;
  std::vector<int> ran;
  deferred.push([] { throw std::runtime_error("work failed"); });
  deferred.push([&] { ran.push_back(2); });
  EXPECT_THROW(deferred.run_all(), std::runtime_error);
  EXPECT_EQ(deferred.size(), 1U);
  deferred.run_all();
  EXPECT_EQ(ran, std::vector<int>{2});
}

TEST(DeferredWork, ReleasesWorkThatHasRunOrIsCleared) {
  DeferredWork deferred;
  const auto held = std::make_shared<int>(1);
  deferred.push([held] {});
  deferred.push([held] {});
  EXPECT_EQ(held.use_count(), 3);
  deferred.run_all();
  EXPECT_EQ(held.use_count(), 1);
  deferred.push([held] {});
  deferred.clear();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(DeferredWork, IsSharedByAMeshItsAxesAndWhatIsDerivedFromIt) {
  const Mesh mesh = Mesh::create(make_record_world(5, 8), {{"dp", 4}, {"tp", 2}});
  const Mesh derived = mesh.factor("dp", {{"replicate", 2}, {"shard", 2}}).join("all", {"dp", "tp"}).part("dp", {1, 2});
  const Mesh other = Mesh::create(make_record_world(5, 8), {{"dp", 8}});
  mesh.deferred().push([] {});
  for (const char* axis : {"dp", "tp", "replicate", "shard", "all", "dp{1,2}"}) {
    EXPECT_EQ(derived[axis].deferred().size(), 1U) << axis;
  }
  EXPECT_EQ(&derived.deferred(), &mesh.deferred());
  EXPECT_TRUE(other["dp"].deferred().empty());
}

}  // namespace
}  // namespace caravan::testing::deferred_work_test
