/// Recipes over all techniques: the proof executes what a step of the recipe executes, and a fault in any of these
/// paths makes it fail.

#include <filesystem>
#include <gmock/gmock.h>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/data/tokenizer/bpe_trainer.h"
#include "caravan/prove/prove_recipe.h"
#include "caravan/schedule/pipeline_file.h"
#include "tests/mesh/refusal.h"
#include "tests/schedule/pipeline_order.h"

namespace caravan::testing::recipe_test {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;

using Keys = std::vector<std::string>;

/// A model whose step at its own sizes takes a moment, with a loss in several chunks.
Recipe recipe_of(const Keys& keys) {
  Keys all{"model.width=24",
           "model.heads=4",
           "model.layers=2",
           "model.context=64",
           "data.tokenizer={train = 1100}",
           "train.global_batch=32",
           "train.micro_batch=8"};
  all.insert(all.end(), keys.begin(), keys.end());
  needs_chosen(keys);
  return parse_recipe("", "test", all);
}

RecipeProof proof_of(const Recipe& recipe) {
  RecipeProof proof;
  run_thread_ranks(recipe_ranks(proof_recipe(recipe)), [&](const std::shared_ptr<Communicator>& world) {
    RecipeProof own = prove_recipe(recipe, world);
    if (world->rank() == 0) proof = std::move(own);
  });
  return proof;
}

const Keys kLlama{"model.kind=llama", "model.kv_heads=2", "model.tie_embeddings=false"};
const Keys kExperts{"moe.experts=4"};
const Keys kBf16{"precision.compute=bf16"};

Keys operator+(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

/// All techniques, schedules and splits, with and without dropout, and switches that are on by default, off.
const std::vector<Keys>& recipes() {
  static const std::vector<Keys> all{
      {},
      {"model.dropout=0.1"},
      kLlama,
      kBf16,
      kLlama + kBf16,
      {"precision.compute=fp16"},
      {"data.pack=documents"},
      Keys{"data.pack=documents", "model.dropout=0.1"} + kLlama,
      {"train.micro_batch=1", "model.context=8"},
      {"data_parallel.technique=zero1"},
      {"data_parallel.technique=zero2", "data_parallel.accumulate=full"},
      Keys{"data_parallel.technique=zero2", "mesh.dp=3", "train.global_batch=48"} + kLlama,
      {"data_parallel.technique=zero3", "data_parallel.prefetch=0"},
      Keys{"data_parallel.technique=zero3", "data_parallel.share=off", "data_parallel.reshard_after_forward=false"} +
          kBf16,
      {"data_parallel.technique=hsdp", "data_parallel.shard=2", "mesh.dp=4"},
      {"data_parallel.technique=param_server", "data_parallel.servers=1"},
      {"data_parallel.technique=replicas", "comm.backend=thread"},
      {"data_parallel.hook=powersgd"},
      {"mesh.tp=2", "comm.overlap=false"},
      Keys{"mesh.tp=4", "tensor_parallel.sequence=true"} + kLlama,
      Keys{"mesh.tp=2"} + kBf16,
      Keys{"mesh.tp=2", "model.hidden=34"} + kBf16,
      {"model.kind=mistral"},  // whose window is longer than the context
      {"model.kind=mistral", "model.window=48", "mesh.cp=2"},
      {"model.kind=mistral", "model.window=128", "mesh.cp=16", "model.context=512"},
      Keys{"model.context=7", "train.micro_batch=2"} + kBf16,
      Keys{"lora.rank=3"} + kBf16,
      {"data.pack=documents", "train.global_batch=1", "train.micro_batch=1", "mesh.dp=1", "mesh.tp=2"},
      {"mesh.cp=2", "context_parallel.kind=ulysses", "model.kind=llama", "model.heads=6", "model.kv_heads=3"},
      {"model.kind=t5", "data.task=spans", "model.encoder_layers=1", "model.source_context=24", "tiling.tiles=2"},
      Keys{"mesh.tp=2"} + kExperts + kLlama + kBf16,
      {"mesh.tp=4", "tensor_parallel.kind=2d"},
      {"mesh.tp=4", "tensor_parallel.kind=2d", "comm.overlap=false"},
      {"mesh.tp=8", "tensor_parallel.kind=2.5d", "tensor_parallel.depth=2"},
      {"mesh.tp=8", "tensor_parallel.kind=3d"},
      {"mesh.cp=2"},
      {"mesh.cp=3", "model.context=72", "data.pack=documents"},
      Keys{"mesh.cp=2"} + kLlama + kBf16,
      {"mesh.cp=2", "model.dropout=0.1"},
      {"mesh.cp=2", "context_parallel.kind=ulysses"},
      {"mesh.cp=4", "context_parallel.kind=both", "context_parallel.exchange=2"},
      {"mesh.cp=2", "context_parallel.kind=striped"},
      Keys{"mesh.cp=3", "context_parallel.kind=striped", "model.context=72", "data.pack=documents"} + kLlama + kBf16,
      kExperts,
      Keys{"mesh.ep=2"} + kExperts,
      Keys{"mesh.ep=2", "mesh.tp=2", "moe.balance=batch"} + kExperts + kLlama,
      {"mesh.pp=2"},
      {"mesh.pp=2", "pipeline.schedule=gpipe", "memory.recompute=full"},
      {"mesh.pp=2", "pipeline.schedule=interleaved", "model.layers=4"},
      Keys{"mesh.pp=2", "pipeline.schedule=zb-h1", "data_parallel.technique=zero2", "mesh.dp=2"} + kLlama,
      {"mesh.pp=2", "pipeline.schedule=zb-v", "model.layers=4", "mesh.tp=2"},
      {"mesh.pp=3", "pipeline.schedule=zb-v", "model.layers=7"},  // six blocks in the proof; other schedules have two
      {"memory.recompute=selective"},
      {"tiling.tiles=3"},
      Keys{"data.task=preference", "preference.label_smoothing=0.1", "train.global_batch=16"} + kLlama,
      {"data.task=preference", "preference.loss=ipo", "mesh.tp=2", "mesh.dp=2", "train.global_batch=16"},
      {"data.task=preference", "mesh.pp=2", "train.global_batch=16"},
      Keys{"tiling.tiles=3", "data_parallel.technique=zero3", "data_parallel.share=off"} + kLlama + kExperts + kBf16,
      {"lora.rank=4"},
      Keys{"lora.rank=4", "lora.dora=true", "lora.dropout=0.1", "lora.targets=[\"*\"]", "mesh.tp=2"} + kLlama,
      {"lora.rank=4", "lora.keep_frozen=true", "data_parallel.technique=zero3", "data_parallel.share=off"},
      Keys{"lora.rank=4", "mesh.tp=2", "data_parallel.technique=zero3", "mesh.dp=2"} + kLlama,
      {"mesh.dp=2", "mesh.cp=2", "mesh.tp=2"},
      {"train.balance=measured", "model.dropout=0.1"},
      Keys{"train.balance=measured", "mesh.dp=3", "train.global_batch=48", "data_parallel.technique=zero3"} + kLlama,
      Keys{"train.balance=measured", "mesh.dp=2", "mesh.cp=2", "data_parallel.technique=zero2"} + kBf16,
      {"train.balance=measured", "mesh.dp=2", "mesh.tp=4", "tensor_parallel.kind=2d"},
      Keys{"train.balance=measured", "mesh.dp=2", "mesh.ep=2", "moe.balance=batch"} + kExperts,
      {"train.balance=measured", "mesh.dp=2", "mesh.pp=2", "pipeline.schedule=zb-h1"},
  };
  return all;
}

std::string text_of(const Keys& keys) { return "[" + join(keys, " ") + "]"; }

TEST(ProveRecipe, ExecutesWhatAStepOfTheRecipeExecutes) {
  for (const Keys& keys : recipes()) {
    SCOPED_TRACE(text_of(keys));
    const RecipeProof proof = proof_of(recipe_of(keys));
    EXPECT_TRUE(proof.parts.back().proof.holds()) << proof.parts.back().proof.to_string();
    EXPECT_THAT(proof.missing, IsEmpty()) << RecipeProof::to_string(proof.own_paths);
    EXPECT_FALSE(proof.own_paths.empty());
  }
}

/// The user's table says how many micro-batches there are, and pipeline.micro_batches is omitted.
TEST(ProveRecipe, UsesTheTableOfAPipelineUnchanged) {
  Recipe recipe = recipe_of({"mesh.pp=2", "pipeline.schedule=table.txt"});
  recipe.pipeline.table = to_text(order_of("gpipe", 2, 4));  // as load_recipe reads it
  const RecipeProof proof = proof_of(recipe);
  EXPECT_TRUE(proof.holds()) << proof.parts.back().proof.to_string();
  EXPECT_EQ(proof.parts.front().what.num_micro_batches, 4);
}

/// The counts for two ranks and two layers: forward and backward of each block of the ring.
TEST(ProveRecipe, CountsTheBlocksOfARing) {
  needs({"ring"});
  const RecipeProof ring = proof_of(recipe_of({"mesh.cp=2", "train.micro_batch=32"}));
  for (const char* path : {"ring attention of own block", "ring attention of another block",
                           "ring attention backward of own block", "ring attention backward of another block"}) {
    EXPECT_EQ(ring.own_paths.at(path), 4) << path;
  }
  EXPECT_THAT(ring.own_paths, Not(Contains(Key("fused attention"))));
  // With dropout, training does not use the ring; evaluations do.
  const RecipeProof with_dropout = proof_of(recipe_of({"mesh.cp=2", "model.dropout=0.1"}));
  EXPECT_THAT(with_dropout.own_paths, Contains(Key(::testing::HasSubstr("attention with dropout"))));
  ASSERT_EQ(with_dropout.parts.size(), 2U);
  EXPECT_THAT(with_dropout.parts[0].proof.paths, Not(Contains(Key("ring attention of own block"))));
  EXPECT_THAT(with_dropout.parts[1].proof.paths, Contains(Key("ring attention of own block")));
  EXPECT_EQ(with_dropout.parts[1].what.model.dropout, 0);
}

/// Counters without a floating-point result.
bool is_counter(const std::string& path) {
  for (const char* begin :
       {"schedule:", "first bucket", "later bucket", "gradients ", "cross-entropy over", "frozen parameters"}) {
    if (path.starts_with(begin)) return true;
  }
  for (const char* end : {" int64", " uint8", " int32", " boolean"}) {
    if (path.ends_with(end)) return true;
  }
  return false;
}

/// Tests each path in the first recipe that uses it, with a factor of 1.01, or 1.2 if the tolerance is that of split
/// products in 16 bits.
TEST(ProveRecipe, NoticesAFactorInEveryPath) {
  std::set<std::string> seen;
  for (const Keys& keys : recipes()) {
    const Recipe recipe = recipe_of(keys);
    ProveCase what = prove_case(recipe);
    what.num_steps = 1;
    what.finds_summands = what.compute_dtype == at::kFloat;
    const Proof sound = prove(what);
    for (const auto& [path, count] : sound.paths) {
      if (is_counter(path) || !seen.insert(path).second) continue;
      SCOPED_TRACE(text_of(keys) + ": " + path);
      what.planted = {{path, sound.tolerance > 1e-3 ? 1.2 : 1.01}};
      const Proof proof = prove(what);
      ASSERT_FALSE(proof.holds());
      // The sums of losses and of norms are reduced in fp64.
      EXPECT_THAT(proof.to_string(),
                  ContainsRegex(path.ends_with("fp64") ? "loss is|norm is" : "gradient of|update of"));
    }
  }
  // What the table of recipes is meant to reach.
  for (const char* path :
       {"fused attention", "fused attention backward", "attention with dropout", "ring attention of own block",
        "ring attention of another block", "ring attention backward of own block",
        "ring attention backward of another block", "fused cross-entropy", "fused cross-entropy in chunks",
        "expert exchange", "stage link of activations", "stage link of gradients", "thread all_reduce fp32",
        "thread all_gather fp32", "thread reduce_scatter fp32", "thread all_to_all fp32", "thread broadcast fp32",
        "thread recv fp32"}) {
    EXPECT_THAT(seen, Contains(path));
  }
}

/// A proof at other sizes than those that fit takes other kernels, and then the check names them.
TEST(ProveRecipe, NamesAPathThatNoProofTakes) {
  const Recipe recipe = recipe_of({"model.vocabulary=1100"});
  PathCounts own;
  run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    const PathCounts counts = paths_of_step(case_of_recipe(own_step_recipe(recipe, int64_t{1} << 30)), world);
    if (world->rank() == 0) own = counts;
  });
  const Proof of_few_tokens = prove(case_of_recipe(proof_recipe(recipe, 8)));
  EXPECT_TRUE(of_few_tokens.holds());
  EXPECT_THAT(missing_paths(own, of_few_tokens.paths), Contains("fused cross-entropy in chunks"));
  EXPECT_THAT(missing_paths(own, prove(prove_case(recipe)).paths), IsEmpty());
}

/// An optimizer of matrices runs too, and a fault in what it computes or sends is noticed.
TEST(ProveRecipe, RunsAnOptimizerThatNeedsWholeMatrices) {
  needs({"muon"});
  const Recipe recipe = recipe_of({"optimizer.kind=muon", "data_parallel.technique=zero3", "mesh.dp=2", "mesh.tp=2"});
  const RecipeProof proof = proof_of(recipe);
  EXPECT_TRUE(proof.holds()) << proof.parts.back().proof.to_string();
  EXPECT_EQ(proof.parts.back().what.optimizer_name, "muon");
  for (const char* path : {"newton_schulz", "pieces of matrices", "updates of matrices"}) {
    EXPECT_THAT(proof.paths(), Contains(Key(path)));
    ProveCase what = case_of_optimizer(proof_recipe(recipe));
    what.planted = {{path, 1.01}};
    EXPECT_THAT(prove(what).to_string(), HasSubstr("update of")) << path;
  }
}

/// The same of one that adds up rows and columns over ranks.
TEST(ProveRecipe, RunsAnOptimizerThatNeedsSumsOfRowsAndColumns) {
  needs({"adafactor"});
  for (const char* technique : {"ddp", "zero3"}) {
    const Recipe recipe = recipe_of({"optimizer.kind=adafactor", "data_parallel.technique=" + std::string(technique),
                                     "mesh.dp=2", "mesh.tp=2", "optimizer.scale_by_parameter=true"});
    const RecipeProof proof = proof_of(recipe);
    EXPECT_TRUE(proof.holds()) << proof.parts.back().proof.to_string();
    EXPECT_EQ(proof.parts.back().what.optimizer_name, "adafactor");
    for (const char* path :
         {"squares of gradients", "squares of updates", "update by factored moments", "update by second moments"}) {
      EXPECT_THAT(proof.paths(), Contains(Key(path)));
      ProveCase what = case_of_optimizer(proof_recipe(recipe));
      what.planted = {{path, 1.01}};
      EXPECT_THAT(prove(what).to_string(), HasSubstr("update of")) << path;
    }
  }
}

/// The number of micro-batches that "auto" gives depends on the memory of the ranks.
TEST(ProveRecipe, ProvesOneMicroBatchAndManyForAuto) {
  const Recipe recipe = recipe_of({"train.micro_batch=auto", "data_parallel.technique=zero2", "mesh.dp=2"});
  const RecipeProof proof = proof_of(recipe);
  EXPECT_TRUE(proof.holds());
  ASSERT_EQ(proof.own_steps.size(), 2U);
  EXPECT_EQ(proof.own_steps[0].num_micro_batches, 1);
  EXPECT_EQ(proof.own_steps[1].num_micro_batches, 2);
  for (const char* path : {"gradients written to shards", "gradients added to shards"}) {
    EXPECT_THAT(proof.own_paths, Contains(Key(path)));
    EXPECT_THAT(proof.paths(), Contains(Key(path)));
  }
}

TEST(ProveRecipe, KnowsTheGroupsOfItsOwnRanks) {
  EXPECT_EQ(group_sizes(recipe_of({"mesh.dp=16"})), (std::set<int>{16}));
  EXPECT_EQ(group_sizes(recipe_of({"mesh.dp=3", "mesh.tp=4"})), (std::set<int>{3, 4, 12}));
  EXPECT_EQ(group_sizes(recipe_of({"mesh.dp=8", "data_parallel.technique=hsdp", "data_parallel.shard=4"})),
            (std::set<int>{2, 4, 8}));
}

/// The sizes of kernels depend on it.
TEST(ProveRecipe, TakesTheVocabularyOfAnExistingTokenizer) {
  Recipe recipe = recipe_of({"data.tokenizer=none/tokenizer.json"});
  std::string note;
  take_vocabulary(recipe, {}, note);
  EXPECT_EQ(recipe.model.vocabulary, 0);
  EXPECT_THAT(note, HasSubstr("none/tokenizer.json is missing: its vocabulary is assumed to be 1100"));
  const auto file = std::filesystem::path(::testing::TempDir()) / "prove_tokenizer.json";
  const std::vector<std::string_view> text{"some words of a text"};
  const Tokenizer tokenizer = train_bpe(text, 262);
  tokenizer.save(file);
  recipe.data.tokenizer = file.string();
  take_vocabulary(recipe, {}, note);
  std::filesystem::remove(file);
  EXPECT_EQ(recipe.model.vocabulary, tokenizer.vocab_size());
}

TEST(ProveRecipe, NeedsNoWeightsToStartFrom) {
  std::string note;
  const Recipe recipe = load_recipe_to_prove(CARAVAN_SOURCE_DIR "/recipes/smollm2_finetune.toml", {"mesh.dp=2"}, note);
  EXPECT_THAT(note, HasSubstr("no such folder"));
  EXPECT_TRUE(recipe.train.init_from.empty());
  EXPECT_TRUE(proof_recipe(recipe).model.lora.is_used());
  EXPECT_THAT(refusal<UsageError>([&] { load_recipe_to_prove("", {"model.layers=0"}, note); }),
              HasSubstr("model.layers"));
}

TEST(ProveRecipe, CutsItsOwnStepToTheMemory) {
  const Recipe large = parse_recipe(
      "", "test",
      {"model.kind=llama", "model.width=4096", "model.heads=32", "model.layers=32", "model.context=2048", "mesh.tp=2"});
  const Recipe whole = own_step_recipe(large, int64_t{1} << 50);
  EXPECT_EQ(whole.model.width, 4096);
  EXPECT_EQ(whole.model.layers, 2);
  const Recipe cut = own_step_recipe(large, int64_t{1} << 30);
  EXPECT_LT(cut.model.width, 4096);
  EXPECT_EQ(cut.model.head_width(), 128);
  EXPECT_EQ(cut.model.heads % 2, 0);
  Recipe long_text = large;
  long_text.model.context = 32768;
  EXPECT_EQ(own_step_recipe(long_text, int64_t{1} << 50).model.context, 32768);
  const int64_t shorter = own_step_recipe(long_text, int64_t{1} << 34).model.context;
  EXPECT_LT(shorter, 32768);
  EXPECT_GE(shorter, 1280) << "more than one chunk of the loss";
}

}  // namespace
}  // namespace caravan::testing::recipe_test
