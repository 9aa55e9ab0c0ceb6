#include "caravan/techniques/grid/tensor_2d.h"

#include <gtest/gtest.h>

#include "tests/techniques/grid/grid_case.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::tensor_2d_test {
namespace {

Plan panels(const ModelConfig& config, const Mesh& mesh) { return tensor_2d(config, mesh["row"], mesh["col"]); }

class Tensor2d : public ::testing::TestWithParam<GridCase> {};

TEST_P(Tensor2d, MatchesOneProcess) { expect_one_process(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Grids, Tensor2d,
    ::testing::Values(GridCase{"one", {{"row", 1}, {"col", 1}}, panels},
                      GridCase{"2x2", {{"row", 2}, {"col", 2}}, panels},
                      GridCase{"cols_first", {{"col", 2}, {"row", 2}}, panels},
                      GridCase{"3x3", {{"row", 3}, {"col", 3}}, panels, 3, false, 6, 24},
                      GridCase{"recompute", {{"row", 2}, {"col", 2}}, panels, 2, false, 4, 16, recompute_of("full")},
                      GridCase{"recompute_parts",
                               {{"row", 2}, {"col", 2}},
                               panels,
                               2,
                               false,
                               4,
                               16,
                               recompute_of(std::vector<std::string>{"blocks.*.mlp.up", "blocks.0.attention.key",
                                                                     "blocks.*.attention.query"})},
                      GridCase{"dp2_2x2", {{"dp", 2}, {"row", 2}, {"col", 2}}, panels},
                      GridCase{"zero3_2x2", {{"dp", 2}, {"row", 2}, {"col", 2}}, panels, 2, true}),
    [](const auto& info) { return "of_" + info.param.name; });

}  // namespace
}  // namespace caravan::testing::tensor_2d_test
