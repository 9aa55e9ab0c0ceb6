/// Grids of ranks with context parallelism: the batch is split over the grid, the sequence over other axes.

#include <gtest/gtest.h>

#include "caravan/techniques/context/context_parallel.h"
#include "caravan/techniques/grid/tensor_2d.h"
#include "caravan/techniques/grid/tensor_3d.h"
#include "tests/techniques/grid/grid_case.h"

namespace caravan::testing::grid_context_test {
namespace {

Plan ring_and_2d(const ModelConfig& config, const Mesh& mesh) {
  return join(context_parallel(config, mesh, {.ring = "cp", .head_parts = mesh["col"].size()}),
              tensor_2d(config, mesh["row"], mesh["col"]));
}

Plan ulysses_and_2d(const ModelConfig& config, const Mesh& mesh) {
  return join(context_parallel(config, mesh, {.ulysses = "cp", .head_parts = mesh["col"].size()}),
              tensor_2d(config, mesh["row"], mesh["col"]));
}

Plan ring_and_3d(const ModelConfig& config, const Mesh& mesh) {
  return join(context_parallel(config, mesh, {.ring = "cp", .head_parts = mesh["b"].size()}),
              tensor_3d(config, mesh["a"], mesh["b"], mesh["c"]));
}

class GridContext : public ::testing::TestWithParam<GridCase> {};

TEST_P(GridContext, MatchesOneProcess) { expect_one_process(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Grids, GridContext,
                         ::testing::Values(GridCase{"ring_2d", {{"cp", 2}, {"row", 2}, {"col", 2}}, ring_and_2d},
                                           GridCase{"ulysses_2d", {{"cp", 2}, {"row", 2}, {"col", 2}}, ulysses_and_2d},
                                           GridCase{
                                               "ring_3d", {{"cp", 2}, {"a", 2}, {"b", 2}, {"c", 2}}, ring_and_3d, 4}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caravan::testing::grid_context_test
