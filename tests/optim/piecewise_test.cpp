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

/// The file of the points is beside the recipe, as Excel writes it; the run keeps the points and no file.
TEST(PiecewiseRate, ReadsPointsFromAFile) {
  const TemporaryFolder folder;
  write_file(folder / "r.toml", "[optimizer]\nschedule = \"piecewise\"\npoints_file = \"rate.csv\"\n");
  write_file(folder / "rate.csv", "\xEF\xBB\xBFstep,fraction\r\n0, 0.25\r\n\r\n100,1\r\n4000,1e-1\r\n");
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
  std::string many;
  for (int step = 0; step <= 10'000; ++step) many += std::to_string(step) + ",1\n";
  EXPECT_THAT(refused(many), AllOf(HasSubstr("rate.csv:10001"), HasSubstr("more than 10000 points")));
  EXPECT_THAT(refused("", {"optimizer.points_file=/dev/zero"}), HasSubstr("'/dev/zero' cannot be read"));
  EXPECT_THAT(refused("0,1\n", {"optimizer.points_file=none.csv"}), HasSubstr("'none.csv' cannot be read"));
  EXPECT_THAT(refused("0,1\n", {"optimizer.points_file=none.csv"}), HasSubstr("train RUN/recipe.toml --resume"));
  EXPECT_THAT(message_of<UsageError>([&] {
                parse_recipe("[optimizer]\nschedule = \"piecewise\"\npoints = [[0, 1.0]]\npoints_file = \"a\"",
                             "r.toml");
              }),
              AllOf(HasSubstr("is given beside optimizer.points"), HasSubstr("r.toml:4")));
}

/// Points of a file that is not read would be ignored without a word. A resumed run may have another schedule.
TEST(PiecewiseRate, PointsBesideAnotherScheduleAreRefused) {
  const auto refused = [](const std::string& optimizer, const std::vector<std::string>& set = {}) {
    return message_of<UsageError>([&] { parse_recipe("[optimizer]\n" + optimizer, "r.toml", set); });
  };
  const std::string follows = "schedule = \"piecewise\"\n";
  for (const std::string key : {"points", "points_file"}) {
    const std::string given = key + (key == "points" ? " = [[3, 1.0]]\n" : " = \"rate.csv\"\n");
    const std::string subject = "optimizer." + key + ": ";
    const std::string ways = "leave out optimizer." + key + ", or set optimizer.schedule = \"piecewise\"";
    EXPECT_THAT(refused(given + follows, {"optimizer.schedule=cosine"}),
                AllOf(HasSubstr(subject + "is not followed with optimizer.schedule = \"cosine\"\n"),
                      HasSubstr("r.toml:2"), HasSubstr(ways)));
    EXPECT_THAT(refused("schedule = \"cosine\"\n" + given),
                AllOf(HasSubstr("\"cosine\"\n"), HasSubstr("r.toml:3"), HasSubstr(ways)));
    EXPECT_THAT(refused(given), AllOf(HasSubstr(subject), HasSubstr("\"linear\", the default"), HasSubstr(ways)));
    EXPECT_THAT(refused("", {"optimizer.points_file=x"}), HasSubstr("--set optimizer.points_file=x"));
  }
  const std::string of_run = to_toml(parse_recipe("[optimizer]\npoints = [[3, 1.0]]\n" + follows, "r.toml"));
  const std::vector<std::string> cosine{"optimizer.schedule=cosine"};
  EXPECT_EQ(parse_recipe(of_run, "of the run", cosine, RecipeWriter::run).optimizer.rate.schedule.name(), "cosine");
  EXPECT_THAT(message_of<UsageError>([&] {
                parse_recipe(of_run, "of the run", {"optimizer.schedule=cosine", "optimizer.points=[[5, 1.0]]"},
                             RecipeWriter::run);
              }),
              HasSubstr("optimizer.points: is not followed"));
}

TEST(PiecewiseRate, PointsFromTheFirstStepHaveTheWarmup) {
  const auto recipe_of = [](const std::string& points, const std::string& more = "") {
    return parse_recipe("[optimizer]\nschedule = \"piecewise\"\npoints = " + points + "\n" + more, "r.toml");
  };
  const auto note_of = [](const Recipe& recipe) {
    const std::vector<std::string> notes = recipe_notes(recipe);
    return notes.empty() ? std::string() : notes.front();
  };
  for (const std::string first : {"0", "1"}) {
    const Recipe own = recipe_of("[[" + first + ", 0.25], [60, 1.0]]");
    EXPECT_EQ(own.optimizer.rate.warmup_steps, 0);
    EXPECT_EQ(note_of(own), "optimizer.points begin at step " + first + ": optimizer.warmup_steps is 0, not 50");
    const Recipe back = parse_recipe(to_toml(own), "of the run", {}, RecipeWriter::run);
    EXPECT_EQ(back.optimizer.rate.warmup_steps, 0);
    EXPECT_EQ(note_of(back), "");
  }
  const Recipe later = recipe_of("[[2, 1.0], [50, 0.5], [51, 0.25]]");
  EXPECT_EQ(later.optimizer.rate.warmup_steps, 50);
  EXPECT_EQ(note_of(later),
            "optimizer.warmup_steps is 50: the warm-up hides 2 of the 3 points of optimizer.points; "
            "optimizer.warmup_steps = 0 follows all of them");
  const Recipe given = recipe_of("[[0, 1.0], [1, 1.0], [900, 0.5]]", "warmup_steps = 7\n");
  EXPECT_EQ(given.optimizer.rate.warmup_steps, 7) << "what the recipe gives stays";
  EXPECT_THAT(note_of(given), HasSubstr("hides 1 of the 3 points"));
  EXPECT_EQ(parse_recipe(to_toml(given), "of the run", {}, RecipeWriter::run).optimizer.rate.warmup_steps, 7);
  EXPECT_EQ(note_of(recipe_of("[[0, 1.0], [900, 0.5]]", "warmup_steps = 7\n")), "") << "no step is hidden";
}

}  // namespace
}  // namespace caravan::testing::piecewise_test
