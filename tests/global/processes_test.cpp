// Global tensors over processes, as a job has them, against one process.
#include <gtest/gtest.h>

#include "caravan/comm/backends/gloo/gloo.h"
#include "tests/global/nets.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing {
namespace {

const CommOptions kOptions{.timeout = std::chrono::seconds(60)};
const Layout kRows{{"dp", Shard{0}}};

/// Each process trains alone, and then its part.
void expect_same_on_processes(const Program& program, const Spread& spread, const MakeWorld& make = shm_world) {
  run_process_ranks(
      num_ranks(spread.axes),
      [&](const std::shared_ptr<Communicator>& world) {
        const Mesh mesh = Mesh::create(world, spread.axes);
        EXPECT_EQ(expect_same_on(mesh, train_alone(program), program, spread), "");
      },
      kOptions, make);
}

TEST(GlobalProcesses, Mlp) {
  expect_same_on_processes(mlp(), {{{"tp", 2}}, kMlpByTp, {}});
  expect_same_on_processes(mlp(), {{{"dp", 2}}, {}, {kRows, kRows}});
  expect_same_on_processes(mlp(), {{{"dp", 2}}, {{"*", kRows}}, {kRows, kRows}});
}

TEST(GlobalProcesses, Gpt) {
  expect_same_on_processes(gpt<true, true>(), {{{"tp", 2}}, megatron_fused("tp"), {}});
  expect_same_on_processes(gpt<false, true>(), {{{"dp", 2}}, {}, {kRows, kRows}});
  expect_same_on_processes(gpt<true, true>(), {{{"dp", 2}, {"tp", 2}}, megatron_fused("tp"), {kRows, kRows}});
}

TEST(GlobalProcesses, OverMessages) {
  expect_same_on_processes(gpt<true, true>(), {{{"tp", 2}}, megatron_fused("tp"), {}}, make_gloo_world);
}

}  // namespace
}  // namespace caravan::testing
