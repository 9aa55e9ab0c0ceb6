#include "caravan/global/names.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>

#include "caravan/base/error.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::names_test {
namespace {

using ::testing::HasSubstr;
const Axes kMesh{{"dp", 2}, {"tp", 2}};

TEST(NamedDims, RulesCutNamedDims) {
  on_mesh(kMesh, [](const Mesh& mesh) {
    const DimRules rules{"ff -> tp", "batch -> dp", "vocab -> tp dp", "heads -> tp"};
    const auto layout = [&](std::string_view dims, const std::vector<int64_t>& sizes, const DimExtents& extents = {}) {
      return named_layout(dims, sizes, rules, mesh, extents).to_string();
    };
    EXPECT_EQ(layout("ff embed", {8, 6}), "tp=S(0)");
    EXPECT_EQ(layout("embed ff", {6, 8}), "tp=S(1)");
    EXPECT_EQ(layout("batch seq", {4, 5}), "dp=S(0)");
    EXPECT_EQ(layout("vocab embed", {8, 6}), "tp=S(0) dp=S(0)");
    EXPECT_EQ(layout("ff", {7}), "tp=S(0; 4 3)");
    EXPECT_EQ(layout("embed _", {6, 8}), "");
    EXPECT_EQ(layout("(heads width) embed", {12, 6}, {{"heads", 4}}), "tp=S(0)");
    EXPECT_EQ(layout("(three heads width) embed", {36, 6}, {{"three", 3}, {"heads", 4}}), "tp=S(0; blocks 3)");
    // Three heads of 4 elements: 2 and 1 of each of the three blocks.
    EXPECT_EQ(layout("(three heads width)", {36}, {{"three", 3}, {"heads", 3}}), "tp=S(0; 8 4; blocks 3)");
  });
}

TEST(NamedDims, SayWhatIsWrong) {
  on_mesh(kMesh, [](const Mesh& mesh) {
    const auto message = [&](std::string_view dims, const std::vector<int64_t>& sizes, const DimRules& rules,
                             const DimExtents& extents = {}) {
      return message_of<UsageError>([&] { named_layout(dims, sizes, rules, mesh, extents, "w"); });
    };
    EXPECT_THAT(message("ff", {8, 6}, {"ff -> tp"}), HasSubstr("has 2 dims, \"ff\" names 1"));
    EXPECT_THAT(message("ff embed", {8, 6}, {"ff -> tpp"}), HasSubstr("choose from dp, tp"));
    EXPECT_THAT(message("ff embed", {1, 6}, {"ff -> tp"}), HasSubstr("has 1 elements for the 2 ranks of axis tp"));
    EXPECT_THAT(message("(heads width)", {12}, {"heads -> tp"}), HasSubstr("give all but one of them"));
    EXPECT_THAT(message("(heads width)", {12}, {"heads -> tp"}, {{"heads", 5}}), HasSubstr("a multiple of 5"));
    EXPECT_THAT(message("(ff", {8}, {}), HasSubstr("parentheses that do not match"));
    const std::string conflict = message("ff embed", {8, 6}, {"ff -> tp", "embed -> tp", "batch -> dp"});
    EXPECT_THAT(conflict, HasSubstr("axis tp would cut both \"ff\" and \"embed\""));
    EXPECT_THAT(conflict, HasSubstr("\"batch -> dp\", \"ff -> tp\""));
    EXPECT_THAT(message_of<UsageError>([] { DimRules({"ff tp"}); }), HasSubstr("is not of the form"));
    EXPECT_THAT(message_of<UsageError>([] { DimRules({"ff -> tp", "ff -> dp"}); }), HasSubstr("has a rule already"));
  });
}

TEST(NamedDims, LayOutTheModulesOfTorch) {
  on_mesh(kMesh, [](const Mesh& mesh) {
    const torch::nn::TransformerEncoderLayer net(torch::nn::TransformerEncoderLayerOptions(12, 6).dim_feedforward(24));
    const auto layouts = named_layouts(*net, standard_names(*net), transformer_rules(), mesh, standard_extents(*net));
    const auto of = [&](const std::string& name) { return layout_for(name, layouts).to_string(); };
    EXPECT_EQ(of("self_attn.in_proj_weight"), "tp=S(0; blocks 3)");
    EXPECT_EQ(of("self_attn.in_proj_bias"), "tp=S(0; blocks 3)");
    EXPECT_EQ(of("self_attn.out_proj.weight"), "tp=S(1)");
    EXPECT_EQ(of("linear1.weight"), "tp=S(0)");
    EXPECT_EQ(of("linear2.weight"), "tp=S(1)");
    EXPECT_EQ(of("norm1.weight"), "");
    const auto message = [&](const std::vector<DimNames>& names) {
      return message_of<UsageError>([&] { named_layouts(*net, names, {"ff -> tp"}, mesh); });
    };
    EXPECT_THAT(message({{"linear3.weight", "ff embed"}}), HasSubstr("did you mean"));
    EXPECT_THAT(message({{"linear1.weight", "ff embed"}, {"linear2.weight", "ff embed"}}), HasSubstr("linear2.weight"));
  });
}

}  // namespace
}  // namespace caravan::testing::names_test
