#include <gmock/gmock.h>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/recipe/recipe.h"
#include "tests/data/support.h"
#include "tests/optim/course.h"

namespace caravan::testing::piecewise_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Points = std::vector<StepPoint>;

Setting through(const Points& points) { return {"learning_rate", "piecewise", {{"points", points}}}; }

std::string refusal_of(const Points& points) {
  try {
    through(points);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(PiecewiseRate, IsLinearBetweenPoints) {
  expect_course(through({{0, 1}, {4, 0.5}, {8, 0.1}}), {1.0, 2.0, 1.25, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2});
}

TEST(PiecewiseRate, BeforeTheFirstPointAsThere) {
  expect_course(through({{6, 0.25}, {7, 1}}), {1.0, 2.0, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0, 2.0});
}

TEST(PiecewiseRate, RefusesPointsThatDoNotRise) {
  EXPECT_THAT(refusal_of({{5, 1}, {5, 0.5}}), HasSubstr("step 5 comes after step 5: steps must rise"));
  EXPECT_THAT(refusal_of({{-1, 1}}), HasSubstr("step -1 is too small"));
  EXPECT_THAT(refusal_of({{0, 1}, {3, 1.5}}), HasSubstr("at step 3: 1.5 is too large, must be at most 1"));
}

/// The file of the points is beside the recipe; the run keeps the points and no file.
TEST(PiecewiseRate, ReadsPointsFromAFile) {
  const TemporaryFolder folder;
  write_file(folder / "r.toml", "[optimizer]\nschedule = \"piecewise\"\npoints_file = \"rate.csv\"\n");
  write_file(folder / "rate.csv", "step,fraction\r\n0, 0.25\r\n\r\n100,1\r\n4000,1e-1\r\n");
  const Recipe recipe = load_recipe(folder / "r.toml", {});
  const Points want{{0, 0.25}, {100, 1}, {4000, 0.1}};
  EXPECT_EQ(recipe.optimizer.rate.schedule.points("points"), want);
  EXPECT_THAT(to_toml(recipe), HasSubstr("points_file = \"\""));
  EXPECT_EQ(parse_recipe(to_toml(recipe), "of the run").optimizer.rate.schedule.points("points"), want);
  write_file(folder / "rate.tsv", "7\t0.5\n");
  const std::string tabs = "optimizer.points_file=" + (folder / "rate.tsv").string();
  EXPECT_EQ(parse_recipe(to_toml(recipe), "of the run", {tabs}).optimizer.rate.schedule.points("points"),
            (Points{{7, 0.5}}))
      << "a resumed run takes another file";
  EXPECT_EQ(load_recipe(folder / "r.toml", {"optimizer.points=[[3, 1.0]]"}).optimizer.rate.schedule.points("points"),
            (Points{{3, 1}}));
  EXPECT_EQ(course(load_recipe(folder / "r.toml", {"train.steps=3"}).optimizer.rate),
            course({.schedule = through(want),
                    .lr = recipe.optimizer.rate.lr,
                    .warmup_steps = recipe.optimizer.rate.warmup_steps,
                    .total_steps = 3}));
}

TEST(PiecewiseRate, NamesFileAndLineOfAPointThatIsNone) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& text, const std::vector<std::string>& set = {}) {
    write_file(folder / "rate.csv", text);
    write_file(folder / "r.toml", "[optimizer]\nschedule = \"piecewise\"\npoints_file = \"rate.csv\"\n");
    return message_of<UsageError>([&] { load_recipe(folder / "r.toml", set); });
  };
  EXPECT_THAT(refused("0,1\nten,1\n"), AllOf(HasSubstr("'ten,1' is not a step and a number"), HasSubstr("rate.csv:2")));
  EXPECT_THAT(refused("0;1\n"), HasSubstr("rate.csv:1"));
  EXPECT_THAT(refused("0,1\n5,1.5\n"), AllOf(HasSubstr("1.5 is no fraction of lr"), HasSubstr("rate.csv:2")));
  EXPECT_THAT(refused("0,nan\n"), HasSubstr("is no fraction of lr"));
  EXPECT_THAT(refused("-1,1\n"), HasSubstr("step -1 is negative"));
  EXPECT_THAT(refused("5,1\n5,0.5\n"), AllOf(HasSubstr("step 5 comes after step 5"), HasSubstr("rate.csv:2")));
  EXPECT_THAT(refused("step,fraction\n"), HasSubstr("has no points"));
  EXPECT_THAT(refused("0,1\n", {"optimizer.points_file=none.csv"}), HasSubstr("'none.csv' cannot be read"));
  EXPECT_EQ(load_recipe(folder / "r.toml", {"optimizer.schedule=cosine"}).optimizer.rate.schedule.name(), "cosine");
  EXPECT_THAT(message_of<UsageError>([&] {
                parse_recipe("[optimizer]\nschedule = \"piecewise\"\npoints = [[0, 1.0]]\npoints_file = \"a\"",
                             "r.toml");
              }),
              AllOf(HasSubstr("is given beside optimizer.points"), HasSubstr("r.toml:4")));
}

}  // namespace
}  // namespace caravan::testing::piecewise_test
