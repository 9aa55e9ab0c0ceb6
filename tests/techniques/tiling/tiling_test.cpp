/// Models in tiles: against themselves without tiles, against one process under every technique, and in memory.

#include "caravan/techniques/tiling/tiling.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/engine/engine.h"
#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/models/model.h"
#include "caravan/module/join_tiles.h"
#include "caravan/prove/prove.h"
#include "caravan/recipe/recipe.h"
#include "caravan/techniques/data/zero.h"
#include "caravan/techniques/recompute/recompute.h"
#include "caravan/techniques/tensor/tensor_1d.h"
#include "caravan/techniques/tiling/tile_rows.h"
#include "tests/mesh/refusal.h"
#include "tests/needs.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::tiling_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Loss and gradients of one process in fp64, by the names of checkpoints. 1: without tiles.
std::map<std::string, at::Tensor> loss_and_gradients(const ModelConfig& config, int64_t tiles) {
  Model model(config);
  const Mesh mesh = one_rank();
  Strategy strategy = caravan::whole_model(model, mesh);
  add_tiling(strategy, model, mesh, {.tiles = tiles});
  model.materialise(mesh, {}, {.seed = 3});
  for (Parameter* parameter : model.parameters()) {
    const at::Tensor values = parameter->sharded().detach().to(at::kDouble).requires_grad_();
    parameter->set_unsharded(values, parameter->sharded_layout());
  }
  const at::Tensor ids = tokens(2, config.context, config.vocabulary, 1);
  const at::Tensor loss = model.run({ids, tokens(2, config.context, config.vocabulary, 2)}, {.seed = 5}).front();
  loss.backward();
  std::vector<at::Tensor> gradients;
  for (const Parameter* parameter : model.parameters()) gradients.push_back(parameter->unsharded().grad());
  std::map<std::string, at::Tensor> all{{"loss", loss.detach()}};
  for (const auto& [name, gradient] : join_tiles(model.parameters(), gradients)) all.emplace(name, gradient);
  const at::NoGradGuard no_grad;
  all.emplace("logits", model.next_logits(ids, {.phase = Phase::generate}));
  return all;
}

/// Initial values too. Sums in fp64 in another order; the gradients of key biases are nothing but rounding.
TEST(Tiling, ChangesNeitherLossNorGradients) {
  std::vector<ModelConfig> configs{tiny_mixtral(), tiny_qwen2_moe()};
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const bool is_tied : {true, false}) configs.push_back(tiny_config(kind, is_tied));
  }
  for (const ModelConfig& config : configs) {
    const auto want = loss_and_gradients(config, 1);
    for (const int64_t tiles : {2, 3, 7}) {
      const auto got = loss_and_gradients(config, tiles);
      ASSERT_EQ(got.size(), want.size());
      for (const auto& [name, tensor] : want) {
        const double apart = (got.at(name) - tensor).norm().item<double>();
        EXPECT_LE(apart, 1e-12 * (tensor.norm().item<double>() + 0.01)) << name << " in " << tiles << " tiles";
      }
    }
  }
}

struct TilingCase {
  const char* name;
  const char* recipe;  ///< added to the model's keys
};

void PrintTo(const TilingCase& what, std::ostream* out) { *out << what.name; }

constexpr TilingCase kCases[] = {
    {"one_rank", "[mesh]\ndp = 1"},
    {"ddp3", "[mesh]\ndp = 3"},
    {"zero1", "[data_parallel]\ntechnique = \"zero1\"\n[mesh]\ndp = 2"},
    {"zero2_accumulated", "[data_parallel]\ntechnique = \"zero2\"\n[train]\nglobal_batch = 12\nmicro_batch = 2"},
    {"zero3_one_rank", "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 1"},
    {"zero3", "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2"},
    {"zero3_shared", "[data_parallel]\ntechnique = \"zero3\"\nshare = \"on\"\n[mesh]\ndp = 3"},
    {"zero3_accumulated",
     "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\nprefetch = 0\n[train]\nglobal_batch = 12\n"
     "micro_batch = 2\n[mesh]\ndp = 3"},
    {"zero3_units",
     "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\nunits = [\"blocks.*.mlp\"]\n[mesh]\ndp = 2"},
    {"zero3_recompute",
     "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2\n[memory]\nrecompute = \"full\""},
    {"zero3_bf16",
     "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2\n[precision]\ncompute = \"bf16\""},
    {"hsdp", "[data_parallel]\ntechnique = \"hsdp\"\nshard = 2\n[mesh]\ndp = 4"},
    {"servers", "[data_parallel]\ntechnique = \"param_server\"\n[mesh]\ndp = 3"},
    {"tp2_zero3", "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ntp = 2\ndp = 2"},
    {"tp3_sequence", "context = 129\n[mesh]\ntp = 3\n[tensor_parallel]\nsequence = true"},
    {"ring", "[mesh]\ncp = 2"},
    {"gpipe_zero3",
     "[mesh]\npp = 2\ndp = 2\n[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[pipeline]\n"
     "schedule = \"gpipe\""},
    {"1f1b_tp2_zero1", "[mesh]\npp = 2\ntp = 2\ndp = 2\n[data_parallel]\ntechnique = \"zero1\""},
    {"zero_bubble", "[mesh]\npp = 2\n[pipeline]\nschedule = \"zb-h1\""},
    {"lora", "[lora]\nrank = 4\n[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2"},
    {"experts", "[moe]\nexperts = 6\n[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\nep = 2\ndp = 2"},
    {"experts_tp2", "[moe]\nexperts = 6\n[mesh]\ntp = 2"},
};

class ModelsInTiles : public ::testing::TestWithParam<TilingCase> {};

INSTANTIATE_TEST_SUITE_P(Techniques, ModelsInTiles, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(ModelsInTiles, MatchOneProcess) {
  const std::string name = GetParam().name;
  const int heads = name.starts_with("tp3") ? 6 : 4;
  for (const char* model :
       {"kind = \"gpt2\"\ndropout = 0.1", "kind = \"llama\"\nkv_heads = 2\ntie_embeddings = false"}) {
    const std::string text = fmt::format("[tiling]\ntiles = 3\n[model]\n{}\nheads = {}\nwidth = {}\n{}", model, heads,
                                         8 * heads, GetParam().recipe);
    needs_chosen_in(text);
    ProveCase what = prove_case(parse_recipe(text, "recipe.toml"));
    what.finds_summands = what.compute_dtype == at::kFloat;  // as prove_recipe()
    SCOPED_TRACE(what.to_string());
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
    EXPECT_TRUE(proof.paths.contains("linear in tiles")) << "it computes in tiles";
    EXPECT_TRUE(proof.paths.contains("cross-entropy in tiles"));
  }
}

/// A model whose head and embedding are larger than everything else.
ModelConfig wide_words() {
  return {.arch = Architecture::llama(),
          .layers = 2,
          .width = 16,
          .heads = 2,
          .context = 8,
          .vocabulary = 8009,
          .tie_embeddings = false};
}

/// Bytes of the buffers of gathered parameters and of gradients, of a rank of two, after some steps.
int64_t buffer_bytes(int64_t tiles, bool is_recorded) {
  const Mesh mesh = Mesh::create(make_record_world(1, 2), {{"dp", 2}});
  Model model(wide_words());
  Strategy strategy = caravan::whole_model(model, mesh);
  add_tiling(strategy, model, mesh, {.tiles = tiles});
  add_fsdp(strategy, mesh, {.share = Share::off});
  Engine engine(model, mesh, std::move(strategy), {.seed = 3});
  const at::Tensor ids = tokens(1, 8, 8009, 1);
  for (int step = 0; step < 3; ++step) {
    engine.begin_step();
    model.run({ids, ids}, {}).front().backward();
    engine.finish_step();
  }
  EXPECT_EQ(engine.recorded(1) != nullptr, is_recorded);
  return engine.buffer_bytes();
}

/// Five tiles: this one, the next, and the one before it, whose gradient is being reduced; and two gradients. Without
/// tiles two layers: the head and its gradient, while its neighbours are small.
TEST(Tiling, DividesTheMemoryOfGatheredLayers) {
  const int64_t table = int64_t{8009} * 16 * 4;
  const int64_t blocks = 64 * 1024;  // 3 x 16 x 64 in fp32, a few times
  const int64_t whole = buffer_bytes(1, true);
  EXPECT_GE(whole, 2 * table);
  for (const int64_t tiles : {4, 8, 16}) {
    const int64_t rows = (8009 + tiles - 1) / tiles;
    EXPECT_LE(buffer_bytes(tiles, true), 5 * rows * 16 * 4 + blocks) << tiles;
    EXPECT_LE(buffer_bytes(tiles, true), whole * 5 / 2 / tiles + blocks) << tiles;
  }
  EXPECT_LT(buffer_bytes(8, true), table) << "all buffers are smaller than the layer itself";
}

/// Units in the order in which they run, each with one tile.
TEST(Tiling, MakesUnitsOfTiles) {
  Model model(wide_words());
  const Mesh mesh = Mesh::create(make_record_world(0, 2), {{"dp", 2}});
  Strategy strategy = caravan::whole_model(model, mesh);
  add_tiling(strategy, model, mesh, {.tiles = 2, .modules = {"head", "blocks.1.mlp.*"}});
  std::vector<std::string> units;
  for (const Strategy::Unit& unit : strategy.units) units.push_back(unit.module->name());
  EXPECT_THAT(units,
              ElementsAre("embedding", "blocks.0", "blocks.1", "blocks.1.mlp.gate.tile_0", "blocks.1.mlp.gate.tile_1",
                          "blocks.1.mlp.up.tile_0", "blocks.1.mlp.up.tile_1", "blocks.1.mlp.down.tile_0",
                          "blocks.1.mlp.down.tile_1", "head", "head.tile_0", "head.tile_1"));
  split_units(strategy, {"blocks.1.mlp"});
  EXPECT_EQ(strategy.units[3].module->name(), "blocks.1.mlp");
  EXPECT_EQ(strategy.units[4].module->name(), "blocks.1.mlp.gate.tile_0") << "inside it";
  EXPECT_FALSE(strategy.layouts.contains("head.weight"));
  EXPECT_TRUE(strategy.layouts.contains("head.tile_1.weight"));
}

/// A pattern for one of two tied layers cuts both, into the same tiles.
TEST(Tiling, CutsTiedLayersOnce) {
  Model model(tiny_config(Architecture::gpt2(), /*tied=*/true));
  const Mesh mesh = one_rank();
  Strategy strategy = caravan::whole_model(model, mesh);
  add_tiling(strategy, model, mesh, {.tiles = 3, .modules = {"head"}});
  const Module& head = model.find("head.tile_1");
  const Module& embedding = model.find("embedding.token.tile_1");
  ASSERT_EQ(head.own_parameters().size(), 1U);
  EXPECT_EQ(head.own_parameters().front(), embedding.own_parameters().front());
  EXPECT_EQ(head.own_parameters().front()->whole_name(), "embedding.token.weight");
}

/// Every row of the whole tensor belongs to one tile, on one rank, for odd sizes and uneven splits.
TEST(Tiling, CutsWhatEachRankComputesWith) {
  for (const int64_t rows : {23, 24, 31}) {
    for (const int ranks : {1, 2, 3}) {
      const std::vector<int64_t> sizes = ranks == 1   ? std::vector<int64_t>{rows}
                                         : ranks == 2 ? std::vector<int64_t>{rows / 2, rows - rows / 2}
                                                      : std::vector<int64_t>{5, rows - 9, 4};
      std::vector<int> covered(static_cast<size_t>(rows), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const Mesh mesh = Mesh::create(make_record_world(rank, ranks), {{"tp", ranks}});
        const Parameter weight("weight", {.shape = {rows, 3}});
        const Layout layout{{"tp", Shard{.dim = 0, .sizes = sizes}}};
        const RowsOfTiles cutter(weight, {layout, layout}, mesh, 1);
        EXPECT_EQ(cutter.most_tiles(), *std::ranges::min_element(sizes));
        int64_t next = 0;
        for (int64_t t = 0; t < 4; ++t) {
          const TileCut cut = cutter.cut(t, 4);
          EXPECT_EQ(cut.first, next) << "of the rows of this rank";
          next += cut.count;
          Parameter tile("tile", cut.spec);
          tile.set_tile_of(cut.whole);
          const Box box = local_box(tile.global_shape(), cutter.layouts(t, 4).sharded, mesh);
          EXPECT_EQ(box.size, (std::vector<int64_t>{cut.count, 3}));
          const Box whole = tile.in_whole(box);
          for (int64_t row = 0; row < whole.size[0]; ++row) ++covered[static_cast<size_t>(whole.offset[0] + row)];
        }
        EXPECT_EQ(next, sizes[static_cast<size_t>(rank)]);
      }
      EXPECT_THAT(covered, ::testing::Each(1)) << rows << " rows on " << ranks << " ranks";
    }
  }
}

TEST(Tiling, RefusesWhatItCannotCut) {
  const Mesh mesh = one_rank();
  const auto say = [&](const TilingOptions& options, bool has_memory = false) {
    Model model(wide_words());
    if (has_memory) model.materialise(mesh, {}, {});
    Strategy strategy = caravan::whole_model(model, mesh);
    return refusal<UsageError>([&] { add_tiling(strategy, model, mesh, options); });
  };
  EXPECT_THAT(say({.tiles = 2, .modules = {"haed"}}),
              AllOf(HasSubstr("haed: fits no layer"), HasSubstr("the nearest is 'head'")));
  EXPECT_THAT(say({.tiles = 2, .modules = {"blocks.*.mlp_norm"}}), HasSubstr("fits no layer"));
  EXPECT_THAT(say({.tiles = 0}), HasSubstr("0 is below 1"));
  EXPECT_THAT(say({.tiles = 2}, /*has_memory=*/true), HasSubstr("embedding.token.weight: has memory"));
  Model model(wide_words());
  Strategy strategy = caravan::whole_model(model, mesh);
  add_tiling(strategy, model, mesh, {.tiles = 2, .modules = {"head"}});
  EXPECT_THAT(refusal<UsageError>([&] { add_tiling(strategy, model, mesh, {.tiles = 2}); }),
              HasSubstr("head.weight: is cut into tiles already"));
}

/// A head with a bias stays whole, and so does the embedding that it is tied to.
TEST(Tiling, LeavesAHeadWithABiasWhole) {
  ModelConfig config{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 24, .hidden = 32};
  set_architecture(config, *find_architecture("bert"));
  const auto tiled = loss_and_gradients(config, 2), whole = loss_and_gradients(config, 1);
  ASSERT_EQ(tiled.size(), whole.size());
  for (const auto& [name, tensor] : whole) {
    EXPECT_TRUE(at::allclose(tiled.at(name), tensor, 1e-10, 1e-12)) << name;  // fp64, sums in another order
  }
  Model model(config);
  Strategy strategy = caravan::whole_model(model, one_rank());
  add_tiling(strategy, model, one_rank(), {.tiles = 2});
  EXPECT_TRUE(strategy.layouts.contains("embedding.token.weight"));
  EXPECT_FALSE(strategy.layouts.contains("blocks.0.mlp.up.weight"));
  Model other(config);
  Strategy refused = caravan::whole_model(other, one_rank());
  EXPECT_THAT(refusal<UsageError>([&] { add_tiling(refused, other, one_rank(), {.tiles = 2, .modules = {"head"}}); }),
              HasSubstr("head: fits no layer"));
}

TEST(Tiling, RefusesLayersSplitByRowsAndColumns) {
  needs({"2d"});
  const Recipe recipe = parse_recipe("[tiling]\ntiles = 2\n[mesh]\ntp = 4\n[tensor_parallel]\nkind = \"2d\"", "r");
  EXPECT_THAT(refusal<UsageError>([&] { prove(prove_case(recipe)); }),
              AllOf(HasSubstr("over a grid of ranks"), HasSubstr("tiling.tiles = 1")));
}

/// Ranks of a recomputed module that holds tiles gather them outside of the units around them.
TEST(Tiling, RecomputesUnitsAroundTiles) {
  Model model(wide_words());
  const Mesh mesh = one_rank();
  Strategy strategy = caravan::whole_model(model, mesh);
  add_tiling(strategy, model, mesh, {.tiles = 2});
  EXPECT_THAT(refusal<UsageError>([&] { add_recompute(strategy, model, {.modules = {"blocks.*.mlp"}}); }),
              AllOf(HasSubstr("holds 6 units"), HasSubstr("but is not a unit"), HasSubstr("make it a unit too")));
  split_units(strategy, {"blocks.*.mlp"});
  EXPECT_NO_THROW(add_recompute(strategy, model, {.modules = {"blocks.*.mlp"}}));
}

}  // namespace
}  // namespace caravan::testing::tiling_test
