/// A user's torch::nn::Module under every data-parallel technique against one process that runs the same slices: loss,
/// gradients, norm, buffers of batch norm, and a branch that some forwards do not take.
///
/// CI runs pairs of the product; --gtest_also_run_disabled_tests runs all of it.

#include <gtest/gtest.h>

#include "caravan/registry/registry.h"
#include "tests/techniques/together/technique.h"
#include "tests/techniques/together/user_net.h"

namespace caravan::testing::user_module_test {
namespace {

/// Sums of the same numbers in another order: fp64, fp32. The same for bf16: one process rounds as the ranks do, slice
/// by slice, and gradients are summed in fp32.
double tolerance(const UserRun& run) { return run.dtype == at::kDouble ? 1e-10 : 1e-5; }

std::vector<UserRun> product() {
  std::vector<UserRun> all;
  for (const std::string& technique : names_of("data_parallel")) {
    for (const int ranks : {1, 2, 3, 4}) {
      if (technique == "hsdp" && ranks != 4) continue;
      for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
        for (const int micros : {1, 3}) {
          for (const char* share : {"off", "auto"}) {
            for (const char* accumulate : {"sharded", "full"}) {
              for (const bool has_units : {true, false}) {
                const Setting choice =
                    with(technique_of(technique), {{"shard", 2}, {"accumulate", accumulate}, {"share", share}});
                if (technique == "ddp" && choice.text("share") != "off") continue;
                const bool has_whole_gradients = technique == "ddp" || technique == "zero1";
                if (has_whole_gradients && choice.text("accumulate") != "sharded") continue;
                all.push_back(
                    {.ranks = ranks,
                     .choice = choice,
                     .dtype = at::kFloat,
                     .compute = compute,
                     .micros = micros,
                     .has_units = has_units,
                     .takes_branch = [](int step, int rank, int micro) { return (step + rank + micro) % 2 == 0; }});
              }
            }
          }
        }
      }
    }
  }
  return all;
}

void expect_holds(const UserRun& run) {
  SCOPED_TRACE(run.to_string() + (run.has_units ? "" : ", one unit"));
  expect_equal(on_ranks(run), in_one_process(run), tolerance(run));
}

/// Seven is not a divisor of the number of values of any setting, so every pair of them occurs.
TEST(UserModule, TrainsLikeOneProcess) {
  const std::vector<UserRun> all = product();
  for (size_t i = 0; i < all.size(); i += 7) expect_holds(all[i]);
}

TEST(UserModule, DISABLED_TrainsAsOneProcessInTheFullProduct) {
  const std::vector<UserRun> all = product();
  for (const UserRun& run : all) expect_holds(run);
  RecordProperty("cases", static_cast<int>(all.size()));
}

/// A missing summand exceeds the tolerances by far, in bf16 too.
TEST(UserModule, AMissingSummandIsSeen) {
  const UserRun run{.ranks = 2, .dtype = at::kFloat, .compute = at::kBFloat16, .steps = 1};
  std::vector<UserStep> got = on_ranks(run);
  const UserRun missing{
      .ranks = 2, .dtype = at::kFloat, .compute = at::kBFloat16, .steps = 1, .has_batch = [](int, int rank) {
        return rank == 0;
      }};
  EXPECT_GT(distance(got[0].gradients, in_one_process(missing)[0].gradients).first, 1e-2);
}

}  // namespace
}  // namespace caravan::testing::user_module_test
