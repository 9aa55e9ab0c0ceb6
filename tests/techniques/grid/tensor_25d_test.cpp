#include "caravan/techniques/grid/tensor_25d.h"

#include <gtest/gtest.h>

#include "tests/techniques/grid/grid_case.h"

namespace caravan::testing::tensor_25d_test {
namespace {

Plan with_depth(const ModelConfig& config, const Mesh& mesh) {
  return tensor_25d(config, mesh["depth"], mesh["row"], mesh["col"]);
}

class Tensor25d : public ::testing::TestWithParam<GridCase> {};

TEST_P(Tensor25d, MatchesOneProcess) { expect_one_process(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Grids, Tensor25d,
    ::testing::Values(GridCase{"one", {{"depth", 1}, {"row", 1}, {"col", 1}}, with_depth},
                      GridCase{"2x2x2", {{"depth", 2}, {"row", 2}, {"col", 2}}, with_depth, 4},
                      GridCase{"depth_last", {{"row", 2}, {"col", 2}, {"depth", 2}}, with_depth, 4},
                      GridCase{"3_of_1x1", {{"depth", 3}, {"row", 1}, {"col", 1}}, with_depth, 3},
                      GridCase{"dp2_2x2x2", {{"dp", 2}, {"depth", 2}, {"row", 2}, {"col", 2}}, with_depth, 4}),
    [](const auto& info) { return "of_" + info.param.name; });

}  // namespace
}  // namespace caravan::testing::tensor_25d_test
