/// The entry: what it reads, and beside what it is refused.

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/recipe/recipe.h"
#include "caravan/registry/registry.h"
#include "tests/mesh/refusal.h"

namespace caravan::testing::muon_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Keys = std::vector<std::string>;

std::string refused(Keys keys, int ranks = 4) {
  keys.insert(keys.begin(), "optimizer.kind=muon");
  return refusal<UsageError>([&] { plan_batch(parse_recipe("", "test", keys), ranks); });
}

TEST(Muon, FitsWhatUpdatesEverythingAtOnce) {
  for (const Keys& keys : {Keys{},
                           {"data_parallel.technique=zero1"},
                           {"data_parallel.technique=zero3"},
                           {"data_parallel.technique=hsdp", "data_parallel.shard=2"},
                           {"data_parallel.technique=diloco"},
                           {"data_parallel.technique=param_server"},
                           {"mesh.tp=2"},
                           {"mesh.pp=2"},
                           {"mesh.cp=2"},
                           {"mesh.ep=2", "moe.experts=4"},
                           {"precision.compute=bf16", "precision.gradients=bf16"},
                           {"offload.activations=host"}}) {
    EXPECT_EQ(refused(keys), "");
  }
}

TEST(Muon, IsRefusedWhereNoMatrixIsWhole) {
  const std::string why = "\"muon\" orthogonalizes whole matrices, and ";
  for (const char* kind : {"optimizer", "parameters", "gradients"}) {
    EXPECT_THAT(
        refused({"offload." + std::string(kind) + "=host"}),
        AllOf(HasSubstr("optimizer.kind"), HasSubstr(why + "what is offloaded is updated part by part (offload."),
              HasSubstr("use optimizer.kind = \"adamw\", or offload." + std::string(kind) + " = \"none\"")));
  }
  EXPECT_THAT(refused({"offload.optimizer=host", "offload.gradients=host"}),
              ::testing::EndsWith("use optimizer.kind = \"adamw\""));
  EXPECT_THAT(refused({"data_parallel.technique=param_server", "data_parallel.mode=async"}),
              AllOf(HasSubstr(why + "workers do not wait for each other"), HasSubstr("data_parallel.mode = \"sync\"")));
  EXPECT_THAT(
      refused({"mesh.pp=2", "pipeline.schedule=pipedream", "optimizer.clip_norm=0", "model.tie_embeddings=false"}),
      HasSubstr(why + "the stages of pipedream"));
  EXPECT_THAT(refused({"tiling.tiles=2"}), AllOf(HasSubstr(why + "weights are updated in tiling.tiles parts"),
                                                 ::testing::EndsWith("use optimizer.kind = \"adamw\"")));
}

TEST(Muon, ReadsItsKeys) {
  const Recipe recipe = parse_recipe("", "test",
                                     {"optimizer.kind=muon", "optimizer.matrix_momentum=0.9",
                                      "optimizer.newton_schulz_steps=6", "optimizer.beta2=0.9"});
  EXPECT_EQ(recipe.optimizer.kind.real("matrix_momentum"), 0.9);
  EXPECT_EQ(recipe.optimizer.kind.whole("newton_schulz_steps"), 6);
  const Setting initial("optimizer", "muon");
  EXPECT_EQ(initial.real("matrix_momentum"), 0.95);
  EXPECT_EQ(initial.whole("newton_schulz_steps"), 5);
  EXPECT_THAT(refused({"optimizer.momentum=0.9"}), HasSubstr("is used with optimizer.kind = \"sgd\" only"));
  EXPECT_THAT(refused({"optimizer.newton_schulz_steps=0"}), HasSubstr("newton_schulz_steps"));
  EXPECT_THAT(refusal<UsageError>([] { parse_recipe("", "test", {"optimizer.kind=moonlight"}); }),
              HasSubstr("'moonlight' is \"muon\""));
}

}  // namespace
}  // namespace caravan::testing::muon_test
