#include <atomic>
#include <chrono>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/mesh/deferred_work.h"
#include "caravan/redistribute/redistribute.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::overlap_test {
namespace {

const Layout kInvariant{{"tp", Invariant{}}};

/// The all-reduce of the backward pass of I -> R, with deferred work on rank 0.
void reduce_beside(const Mesh& mesh, const std::function<void()>& work) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  const at::Tensor y = redistribute(x, kInvariant, mesh["tp"], Replicate{});
  if (mesh.rank() == 0) mesh.deferred().push(work);
  y.sum().backward();
  EXPECT_TRUE(is_close(x.grad(), 2 * at::ones({4})));
}

/// Rank 1 joins the reduction only after rank 0 has done its deferred work, so rank 0 does it while the reduction is in
/// flight.
TEST(Overlap, RunsWorkWhileACollectiveIsInFlight) {
  std::atomic<bool> has_run = false;
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (mesh.rank() == 1 && !has_run && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(mesh.rank() == 0 || has_run) << "the all-reduce of rank 0 waits before it works";
    reduce_beside(mesh, [&] { has_run = true; });
  });
}

TEST(Overlap, IsSwitchedOff) {
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    mesh.deferred().set_overlaps(false);
    bool has_run = false;
    reduce_beside(mesh, [&] { has_run = true; });
    EXPECT_FALSE(has_run);
    mesh.deferred().run_all();
    EXPECT_EQ(has_run, mesh.rank() == 0);
  });
}

}  // namespace
}  // namespace caravan::testing::overlap_test
