#include "caravan/techniques/grid/tensor_3d.h"

#include <gtest/gtest.h>

#include "tests/techniques/grid/grid_case.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::tensor_3d_test {
namespace {

Plan cube(const ModelConfig& config, const Mesh& mesh) { return tensor_3d(config, mesh["a"], mesh["b"], mesh["c"]); }

class Tensor3d : public ::testing::TestWithParam<GridCase> {};

TEST_P(Tensor3d, MatchesOneProcess) { expect_one_process(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Grids, Tensor3d,
    ::testing::Values(GridCase{"one", {{"a", 1}, {"b", 1}, {"c", 1}}, cube},
                      GridCase{"2x2x2", {{"a", 2}, {"b", 2}, {"c", 2}}, cube, 4},
                      GridCase{"c_first", {{"c", 2}, {"a", 2}, {"b", 2}}, cube, 4},
                      GridCase{
                          "recompute", {{"a", 2}, {"b", 2}, {"c", 2}}, cube, 4, false, 4, 16, recompute_of("full")},
                      GridCase{"dp2_2x2x2", {{"dp", 2}, {"a", 2}, {"b", 2}, {"c", 2}}, cube, 4},
                      GridCase{"zero3_2x2x2", {{"dp", 2}, {"a", 2}, {"b", 2}, {"c", 2}}, cube, 4, true}),
    [](const auto& info) { return "of_" + info.param.name; });

}  // namespace
}  // namespace caravan::testing::tensor_3d_test
