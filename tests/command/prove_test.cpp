// `caravan prove` over the back-end that the recipe's ranks use.
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::prove_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ProveCommandTest : public CommandTest {
 protected:
  /// A proof of a model whose step at its own sizes takes milliseconds.
  static Words words(const Words& overrides, const Words& more = {}) {
    Words all{"prove"};
    const Words small = set({"model.layers=2", "model.width=24", "model.heads=4", "model.context=32",
                             "train.global_batch=16", "data.tokenizer={train = 300}"});
    const Words own = set(overrides);
    all.insert(all.end(), small.begin(), small.end());
    all.insert(all.end(), own.begin(), own.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(ProveCommandTest, CountsThePathsOverSharedMemory) {
  const Result result = caravan(words({"mesh.cp=2", "context_parallel.kind=ring", "data.text=not/here.txt"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("holds: "), ContainsRegex("own paths: .*ring attention of own block [0-9]+"),
                                ContainsRegex("\npaths: .*shm recv fp32 [0-9]+")));
}

TEST_F(ProveCommandTest, RunsOverTheBackEndOfTheRecipe) {
  const Result gloo =
      caravan(words({"comm.backend=gloo", "data_parallel.technique=ddp", "mesh.dp=3", "train.global_batch=24"}));
  ASSERT_EQ(gloo.code, 0) << gloo.err;
  EXPECT_THAT(gloo.out, AllOf(ContainsRegex("\npaths: .*gloo all_reduce by "), Not(HasSubstr("shm "))));
  // With 16 ranks, proves 2 of them and everything that the 16 choose.
  const Result many =
      caravan(words({"comm.backend=gloo", "data_parallel.technique=ddp", "mesh.dp=16", "train.global_batch=32"}));
  ASSERT_EQ(many.code, 0) << many.err;
  for (const char* algorithm : {"direct", "ring", "recursive_doubling", "rabenseifner"}) {
    EXPECT_THAT(many.out, ContainsRegex(std::string("\npaths: .*gloo all_reduce by ") + algorithm));
  }
  const Result thread = caravan(words({"comm.backend=thread", "data_parallel.technique=zero3"}));
  ASSERT_EQ(thread.code, 0) << thread.err;
  EXPECT_THAT(thread.out, HasSubstr("thread all_gather fp32"));
}

TEST_F(ProveCommandTest, FailsWithAPlantedFault) {
  const Result result =
      caravan(words({"mesh.cp=2", "context_parallel.kind=ring"}, {"--plant", "ring attention of another block=1.01"}));
  EXPECT_EQ(result.code, 6);
  EXPECT_THAT(result.err, AllOf(HasSubstr("[prove] "), HasSubstr("gradient of "), Not(HasSubstr("lost")),
                                HasSubstr("the planted fault is found")));
  EXPECT_THAT(result.out, Not(HasSubstr("proved  ")));
  const Result gloo =
      caravan(words({"comm.backend=gloo", "data_parallel.technique=ddp"}, {"--plant", "gloo all_reduce fp32=1.01"}));
  EXPECT_EQ(gloo.code, 6);
  EXPECT_THAT(gloo.err, HasSubstr("is 1.0"));
}

TEST_F(ProveCommandTest, RefusesAFaultThatIsNotTaken) {
  const Result unknown = caravan(words({}, {"--plant", "fused atention=1.01"}));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("the nearest is 'fused attention'"));
  const Result counter = caravan(words({}, {"--plant", "first bucket of gradients=2"}));
  EXPECT_EQ(counter.code, 2);
  EXPECT_THAT(counter.err, HasSubstr("'first bucket of gradients' has no floating-point result"));
  const Result one = caravan(words({}, {"--plant", "fused attention=1"}));
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.err, HasSubstr("changes nothing"));
  const Result no_factor = caravan(words({}, {"--plant", "fused attention"}));
  EXPECT_EQ(no_factor.code, 2);
  EXPECT_THAT(no_factor.err, HasSubstr("is not PATH=FACTOR"));
}

TEST_F(ProveCommandTest, RefusesRanksWithOtherRecipes) {
  for (const Result& result : by_hand({words({"comm.backend=gloo"}), words({"comm.backend=gloo", "train.seed=2"})})) {
    EXPECT_EQ(result.code, 2) << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr("train.seed"));
  }
}

}  // namespace
}  // namespace caravan::prove_test
