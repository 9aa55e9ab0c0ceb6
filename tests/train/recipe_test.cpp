#include <gmock/gmock.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/registry/registry.h"
#include "tests/data/support.h"
#include "tests/techniques/together/technique.h"

namespace caravan::recipe_test {
namespace {

using ::caravan::testing::needs;
using ::caravan::testing::recompute_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  return message_of<UsageError>([&] { parse_recipe(toml, "r.toml", overrides); });
}

/// A recipe with the defaults of what is chosen by name.
std::string whole() {
  return R"([model]
kind = "llama"
layers = 3
width = 24
heads = 6
kv_heads = 2
context = 32
tie_embeddings = false
dropout = 0.1

[data]
text = ["a.txt", "b.txt"]
tokenizer = {train = 1024}

[train]
steps = 20
global_batch = 12
micro_batch = 2
eval_batches = 7
seed = 7
eval_every = 5

[optimizer]
kind = ")" +
         first_of("optimizer").name + R"("
lr = 1e-3
schedule = ")" +
         first_of("learning_rate").name + R"("
warmup_steps = 4
weight_decay = 0
clip_norm = 0.5

[precision]
compute = "bf16"

[comm]
backend = "gloo"
timeout_s = 300
threads_per_rank = 1
check = false

[mesh]
dp = 3

[data_parallel]
technique = ")" +
         first_of("data_parallel").name + R"("

[checkpoint]
dir = "runs/x"
every = 10
keep = 3
)";
}

TEST(Recipe, EverySectionIsRead) {
  const Recipe recipe = parse_recipe(whole(), "r.toml");
  EXPECT_EQ(recipe.model, (ModelConfig{.arch = Architecture::llama(),
                                       .layers = 3,
                                       .width = 24,
                                       .heads = 6,
                                       .kv_heads = 2,
                                       .context = 32,
                                       .tie_embeddings = false,
                                       .dropout = 0.1}));
  EXPECT_EQ(recipe.data.text, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(recipe.data.tokenizer, "");
  EXPECT_EQ(recipe.data.trained_vocabulary, 1024);
  EXPECT_EQ(recipe.train.steps, 20);
  EXPECT_EQ(recipe.train.global_batch, 12);
  EXPECT_EQ(recipe.train.micro_batch, 2);
  EXPECT_EQ(recipe.train.eval_batches, 7);
  EXPECT_EQ(parse_recipe("[train]\nmicro_batch = \"auto\"", "r").train.micro_batch, kAutoMicroBatch);
  EXPECT_EQ(recipe.train.seed, 7);
  EXPECT_EQ(recipe.train.eval_every, 5);
  EXPECT_EQ(recipe.optimizer.kind.name(), first_of("optimizer").name);
  EXPECT_EQ(recipe.optimizer.rate.lr, 1e-3);
  EXPECT_EQ(recipe.optimizer.rate.schedule.name(), first_of("learning_rate").name);
  EXPECT_EQ(recipe.optimizer.rate.warmup_steps, 4);
  EXPECT_EQ(recipe.optimizer.rate.total_steps, 20);
  EXPECT_EQ(recipe.optimizer.kind.real("weight_decay"), 0);
  EXPECT_EQ(recipe.optimizer.clip_norm, 0.5);
  EXPECT_EQ(recipe.precision.compute, "bf16");
  EXPECT_EQ(recipe.comm.backend, "gloo");
  EXPECT_EQ(recipe.comm.timeout_s, 300);
  EXPECT_EQ(recipe.comm.threads_per_rank, 1);
  EXPECT_FALSE(recipe.comm.check);
  EXPECT_EQ(recipe.mesh.dp, 3);
  EXPECT_EQ(recipe.data_parallel.name(), first_of("data_parallel").name);
  EXPECT_EQ(recipe.checkpoint.dir, "runs/x");
  EXPECT_EQ(recipe.checkpoint.every, 10);
  EXPECT_EQ(recipe.checkpoint.keep, 3);
  EXPECT_EQ(recipe.where("train.steps"), "r.toml:16");
  EXPECT_EQ(recipe.where("sample.tokens"), "default of sample.tokens");
  EXPECT_EQ(parse_recipe("[data]\ntext = \"one\"\ntokenizer = \"bytes\"", "r").data.tokenizer, "bytes");
}

TEST(Recipe, LayersAreInTilesByPatterns) {
  needs({"tiled_rows"});
  EXPECT_EQ(parse_recipe("", "r").tiling.whole("tiles"), 1);
  const Recipe recipe = parse_recipe("[tiling]\ntiles = 4\nmodules = [\"head\", \"*.mlp.*\"]", "r");
  EXPECT_EQ(recipe.tiling.whole("tiles"), 4);
  EXPECT_EQ(recipe.tiling.texts("modules"), (std::vector<std::string>{"head", "*.mlp.*"}));
  EXPECT_EQ(parse_recipe(to_toml(recipe), "r").tiling, recipe.tiling) << "is printed as it is read";
}

TEST(Recipe, ChatsThatAreCutAreNoted) {
  const std::vector<std::string> chats{"data.format=chat", "train.steps=100"};
  EXPECT_TRUE(recipe_notes(parse_recipe("", "r", chats)).empty());
  std::vector<std::string> cut = chats;
  cut.emplace_back("data.fill=stream");
  EXPECT_THAT(join(recipe_notes(parse_recipe("", "r", cut))), HasSubstr("\"best_fit\" keeps chats whole"));
}

TEST(Recipe, ARunThatEndsBeforeUpdatesAreDelayedIsNoted) {
  const std::vector<std::string> delayed{"offload.optimizer=host", "offload.delayed_update=true", "train.steps=40",
                                         "optimizer.warmup_steps=2"};
  EXPECT_THAT(join(recipe_notes(parse_recipe("", "r", delayed))), HasSubstr("offload.delay_after is 40"));
  std::vector<std::string> sooner = delayed;
  sooner.emplace_back("offload.delay_after=39");
  EXPECT_TRUE(recipe_notes(parse_recipe("", "r", sooner)).empty());
}

TEST(Recipe, RecomputeIsAKindOrAListOfModules) {
  needs({"no_recompute", "selective", "full", "modules"});
  const auto choice = [](const std::string& value) {
    const Recipe recipe = parse_recipe("", "r", {"memory.recompute=" + value});
    EXPECT_EQ(parse_recipe(to_toml(recipe), "r").memory.recompute, recipe.memory.recompute)
        << "is printed as it is read";
    return recipe.memory.recompute;
  };
  EXPECT_EQ(parse_recipe("", "r").memory.recompute, recompute_of("none"));
  EXPECT_EQ(choice("none"), recompute_of("none"));
  EXPECT_EQ(choice("selective"), recompute_of("selective"));
  EXPECT_EQ(choice("full"), recompute_of("full"));
  EXPECT_EQ(choice("[\"blocks.0\", \"*.mlp\"]"), recompute_of(std::vector<std::string>{"blocks.0", "*.mlp"}));
  EXPECT_TRUE(recipe_notes(parse_recipe("", "r", {"memory.recompute=full"})).empty());
  EXPECT_THAT(join(recipe_notes(parse_recipe("", "r", {"memory.recompute=selective"}))), HasSubstr("keeps no weights"));
}

TEST(Recipe, AnUnknownKeyIsNamedWithItsLineAndTheNearest) {
  EXPECT_THAT(refusal("[train]\nsteps = 3\nstep = 4"), AllOf(HasSubstr("train.step:"), HasSubstr("no such key"),
                                                             HasSubstr("r.toml:3"), HasSubstr("train.steps")));
  EXPECT_THAT(refusal("\n[trian]\nsteps = 3"),
              AllOf(HasSubstr("[trian]"), HasSubstr("r.toml:2"), HasSubstr("nearest is [train]")));
  EXPECT_THAT(refusal("train = 3"), AllOf(HasSubstr("is a section"), HasSubstr("r.toml:1")));
  EXPECT_THAT(refusal("steps = 3"), AllOf(HasSubstr("r.toml:1"), HasSubstr("put it under [train]")));
  EXPECT_THAT(refusal("[train]\nlr = 3"), HasSubstr("nearest is optimizer.lr"));
  EXPECT_THAT(refusal("stepz = 3"), HasSubstr("no such section"));
  EXPECT_THAT(refusal("[train]\nsteps == 3"), HasSubstr("r.toml:2"));
  EXPECT_THAT(refusal("[train.deep]\nsteps = 3"), HasSubstr("train.deep"));
}

TEST(Recipe, AWrongTypeOrValueIsNamedWithItsLine) {
  needs(
      {"zero1", "param_server", "replicas", "no_recompute", "selective", "full", "modules", "adamw", "sgd", "cosine"});
  const std::vector<std::vector<std::string>> cases{
      {"[train]\nsteps = \"3\"", "train.steps", "\"3\" is not a whole number", "r.toml:2"},
      {"[train]\nsteps = 3.0", "train.steps", "3.0 is not a whole number"},
      {"[train]\nsteps = -1", "train.steps", "-1 is too small, must be at least 0", "the default is 800"},
      {"[train]\nglobal_batch = 0", "train.global_batch", "0 is too small, must be at least 1"},
      {"[train]\nsteps = 1979-05-27", "train.steps", "dates, times and nested values"},
      {"[optimizer]\nlr = true", "optimizer.lr", "true is not a number"},
      {"[optimizer]\nlr = -1", "optimizer.lr", "-1 is too small, must be at least 0", "the default is 0.003"},
      {"[optimizer]\nlr = nan", "optimizer.lr", "nan is not a finite number"},
      {"[model]\ndropout = inf", "model.dropout", "inf is not a finite number"},
      {"[optimizer]\nclip_norm = -inf", "optimizer.clip_norm", "-inf is not a finite number"},
      {"[optimizer]\nschedule = \"cosin\"", "the nearest is 'cosine'"},
      {"[optimizer]\nkind = \"adan\"", "the nearest is 'adamw'"},
      {"[optimizer]\nkind = \"adam\"", "'adam' is \"adamw\" with weight_decay = 0"},
      {"[optimizer]\nschedule = \"wsd\"", "'wsd' is \"constant_then_decay\""},
      {"[data_parallel]\ntechnique = \"fsdp\"", "'fsdp' is \"zero3\""},
      {"[model]\nkind = \"lama\"", "the nearest is 'llama'"},
      {"[model]\nkind = 3", "3 is not a string"},
      {"[model]\ntie_embeddings = 1", "1 is not true or false"},
      {"[model]\ndropout = 1.5", "1.5 is too large, must be at most 0.99"},
      {"[precision]\ncompute = \"fp8\"", "'fp8' is not one of fp32, bf16, fp16", "r.toml:2"},
      {"[comm]\nbackend = \"infiniband\"", "not one of auto, thread, shm, gloo"},
      {"[data_parallel]\ntechnique = \"zero4\"", "the nearest is 'zero1'"},
      {"[data_parallel]\ntechnique = \"param_servers\"", "the nearest is 'param_server'"},
      {"[data_parallel]\ntechnique = \"param_server\"\nservers = 0", "servers: 0 is too small, must be at least 1"},
      {"[data_parallel]\ntechnique = \"param_server\"\nservers = \"al\"", "\"al\" is not a whole number or \"all\""},
      {"[data_parallel]\nservers = 1", "data_parallel.technique = \"param_server\" only", "r.toml:2"},
      {"[data_parallel]\ntechnique = \"param_server\"\nmode = \"bound\"", "the nearest is 'bounded'", "r.toml:3"},
      {"[data_parallel]\ntechnique = \"param_server\"\nmode = \"bounded\"\nstaleness = -1",
       "staleness: -1 is too small, must be at least 0", "r.toml:4"},
      {"[data_parallel]\ntechnique = \"param_server\"\nmode = \"async\"\nstaleness = 1",
       "data_parallel.mode = \"bounded\" only"},
      {"[data_parallel]\ntechnique = \"param_server\"\ndrain = 5", "\"async\" or \"bounded\" only"},
      {"[data_parallel]\ntechnique = \"param_server\"\nmode = \"async\"\ndrain = 0", "must be at least 1"},
      {"[data_parallel]\ntechnique = \"param_server\"\nmode = \"async\"\naccumulate = \"full\"",
       "accumulate: is used with data_parallel.mode = \"sync\" only"},
      {"[data_parallel]\ntechnique = \"replicas\"\nshare = \"on\"", "is used with data_parallel.technique"},
      {"[mesh]\ndp = -2", "mesh.dp"},
      {"[data]\ntext = []", "names no file"},
      {"[data]\ntext = \"\"", "names no file"},
      {"[data]\ntext = [1]", "[1] is not a path or a list of paths"},
      {"[data]\ntokenizer = {train = 3}", "3 is too small, must be at least 257"},
      {"[data]\ntokenizer = {tran = 300}", "data.tokenizer"},
      {"[data]\ntokenizer = 3", "3 is not \"bytes\", a path"},
      {"[model]\nwidth = 100", "model.heads", "6 heads do not divide width 100", "r.toml:2",
       "use heads = 5 or 10, or a width that is a multiple of 6, such as 102"},
      {"[train]\nmicro_batch = \"all\"", "train.micro_batch", "\"all\" is not a whole number or \"auto\""},
      {"[train]\nmicro_batch = -1", "train.micro_batch", "-1 is too small"},
      {"[tiling]\ntiles = 0", "tiling.tiles", "0 is too small, must be at least 1", "r.toml:2"},
      {"[tiling]\nmodules = [\"head\"]", "tiling.modules", "is used with tiling.tiles above 1"},
      {"[memory]\nrecompute = \"ful\"", "memory.recompute", "'ful' is not one of none, selective, full",
       "nor a list of modules", "the nearest is 'full'", "r.toml:2"},
      {"[memory]\nrecompute = []", "names no module"},
      {"[memory]\nrecompute = [\"blocks.0\", \"\"]", "names a module \"\""},
      {"[memory]\nrecompute = [\"full\", \"blocks.0\"]", "\"full\" is not a pattern of modules", "use \"full\" alone"},
      {"[memory]\nrecompute = 2", "2 is not a string or a list of modules"},
      {"[train]\nsteps = ten", "ten is not a value of TOML", "r.toml:2", "in quotes: \"ten\""},
      {"[data]\ntext = my.txt # mine", "my.txt is not a value of TOML", "in quotes: \"my.txt\""},
      {"[model]\nkind = \"gpt2\"\nkv_heads = 4", "4 kv_heads do not divide 6 heads", "r.toml:3"},
      {"[model]\nrope_theta = 1e5", "model.positions = \"rotary\" only", "r.toml:2"},
      {"[model]\nkind = \"llama\"\nrope_factor = 2", "model.rope_scaling only", "r.toml:3"},
      {"[model]\nkind = \"llama\"\ncontext = 64\nrope_scaling = \"dynamic\"\nrope_factor = 4\n"
       "rope_original_context = 16\n[data]\npack = \"documents\"",
       "data.pack: \"documents\", whose positions restart, in rows of 64 tokens: above 16", "r.toml:8",
       "data.positions = \"continue\"", "model.context = 16"},
      {"[model]\nfull_layers = \"every 2\"", "model.window above 0 only", "r.toml:2"},
      {"[model]\nwindow = 5\nfull_layers = \"odd\"", "'odd' names no layers", "r.toml:3", "every 6"},
      {"[model]\npositions = \"rotery\"", "'rotary'", "r.toml:2"},
      {"[model]\none_norm = true", "not parallel", "r.toml:2"},
      {"[model]\nkind = \"falcon\"\nactivation = \"relu\"\nparallel = false",
       "r.toml:3 (model.activation), r.toml:2 (model.kind), r.toml:4 (model.parallel), and the default of "
       "model.one_norm"},
      {"[moe]\nexperts = 4\ndense_hidden = 8", "moe.dense_layers only", "r.toml:3"},
      {"[model]\nkind = \"qwen2_moe\"", "moe.shared_gate", "set moe.shared to its width"},
      {"[optimizer]\nschedule = \"piecewise\"", "optimizer.points: has no points", "r.toml:2", "give some"},
      {"[optimizer]\nschedule = \"piecewise\"\npoints = [[0, 1], [2]]", "not [STEP, NUMBER]", "r.toml:3"},
      {"[optimizer]\nschedule = \"piecewise\"\npoints = [[0.5, 1]]", "not [STEP, NUMBER]", "r.toml:3"},
      {"[optimizer]\nschedule = \"piecewise\"\npoints = [0, 1]", "is not a list of [STEP, NUMBER]", "r.toml:3"},
      {"[optimizer]\nschedule = \"inverse_sqrt\"", "'inverse_sqrt' is \"inverse_square_root\""},
      {"[[optimizer.groups]]\nparameter = [\"a\"]\nlr_factor = 2", "not {parameters = [NAMES]", "optimizer.groups"},
      {"[[optimizer.groups]]\nparameters = [3]", "not {parameters = [NAMES]"},
      {"[[optimizer.groups]]\nparameters = []", "not {parameters = [NAMES]"},
      {"[[optimizer.groups]]\nparameters = \"\"", "names a parameter"},
      {"[[optimizer.groups]]\nparameters = \"a\"\nlr_factor = -1", "lr_factor -1 is too small"},
      {"[[optimizer.groups]]\nparameters = \"a\"\nweight_decay = -1", "weight_decay -1 is too small"},
      {"[optimizer]\ngroups = [\"a\"]", "is not a list of {parameters", "r.toml:2"},
      {"[optimizer]\nskip_spikes = -1", "skip_spikes: -1 is too small"},
      {"[optimizer]\nmomentum = 0.5", "optimizer.kind = \"sgd\" only", "r.toml:2", "leave it out"},
      {"[optimizer]\nkind = \"sgd\"\nbeta1 = 0.5", "optimizer.kind = \"adamw\", \"muon\", \"lion\" only", "r.toml:3"},
  };
  for (const auto& parts : cases) {
    const std::string message = refusal(parts.front());
    for (size_t i = 1; i < parts.size(); ++i) EXPECT_THAT(message, HasSubstr(parts[i])) << parts.front();
  }
}

TEST(Recipe, FrequenciesOfDocumentsThatRestartAreThoseOfTheirLength) {
  const auto text = [](const std::string& scaling, int context, const std::string& data) {
    const std::string factors =
        scaling == "longrope" ? "rope_short_factors = \"1, 1, 1, 1\"\nrope_long_factors = \"2, 2, 2, 2\"\n" : "";
    return fmt::format(
        "[model]\nkind = \"llama\"\nwidth = 32\nheads = 4\ncontext = {}\nrope_scaling = \"{}\"\n"
        "rope_factor = 4\nrope_original_context = 16\n{}[data]\npack = \"documents\"\n{}",
        context, scaling, factors, data);
  };
  for (const std::string scaling : {"dynamic", "longrope"}) {
    EXPECT_THAT(refusal(text(scaling, 64, "")), HasSubstr("data.pack: \"documents\", whose positions restart"))
        << scaling;
    EXPECT_NO_THROW(parse_recipe(text(scaling, 64, "positions = \"continue\""), "r.toml")) << scaling;
    EXPECT_NO_THROW(parse_recipe(text(scaling, 16, ""), "r.toml")) << scaling;
  }
  EXPECT_NO_THROW(parse_recipe(text("linear", 64, ""), "r.toml"));
}

TEST(Recipe, ServersFitTheRanksAndReplicasTheBackend) {
  needs({"param_server", "replicas"});
  const auto axes = [](const std::vector<std::string>& set) { mesh_axes(parse_recipe("", "r", set), 3); };
  const auto refused = [&](const std::vector<std::string>& set) { return message_of<UsageError>([&] { axes(set); }); };
  EXPECT_THAT(refused({"data_parallel.technique=param_server", "data_parallel.servers=4"}),
              AllOf(HasSubstr("4 servers among 3"), HasSubstr("use 3, or \"all\"")));
  EXPECT_NO_THROW(axes({"data_parallel.technique=param_server", "data_parallel.servers=3"}));
  EXPECT_THAT(refused({"data.streaming=true", "data_parallel.technique=param_server", "data_parallel.mode=async"}),
              AllOf(HasSubstr("use data.streaming = false, or data_parallel.mode = \"bounded\""),
                    HasSubstr("--set data.streaming=true")));
  EXPECT_NO_THROW(axes({"data.streaming=true", "data_parallel.technique=param_server", "data_parallel.mode=bounded"}));
  EXPECT_THAT(refused({"data_parallel.technique=replicas", "comm.backend=shm"}),
              AllOf(HasSubstr("the back-end is shm"), HasSubstr("use comm.backend = \"thread\"")));
  EXPECT_NO_THROW(axes({"data_parallel.technique=replicas", "comm.backend=thread"}));
  const Recipe all = parse_recipe("", "r", {"data_parallel.technique=param_server", "data_parallel.servers=all"});
  EXPECT_EQ(all.data_parallel.whole("servers"), 0);
  EXPECT_THAT(to_toml(all), HasSubstr("servers = \"all\""));
}

/// The default model has 6 heads, width 192, context 128 and global batch 12.
TEST(Recipe, SplitsFitTheModelTheRanksAndTheBatch) {
  needs({"1d", "2d", "2.5d", "3d", "ring", "ulysses", "both", "1f1b", "gpipe", "interleaved", "pipedream", "stage",
         "full", "replicas"});
  struct Case {
    std::vector<std::string> set;
    int ranks;
    std::vector<std::string> parts;  ///< of the message
  };
  const std::string kind = "tensor_parallel.kind=";
  const std::vector<Case> cases{
      {{"mesh.tp=8"}, 8, {"8 ranks share 6 heads", "use 2 or 3 or 4 or 5 or 6", "--set mesh.tp=8"}},
      {{"mesh.tp=4", "model.kv_heads=3"}, 4, {"4 ranks cannot share 6 heads of 3 groups"}},
      {{"mesh.tp=2"}, 5, {"5 ranks are started, not a multiple of 2", "--ranks 6"}},
      {{"mesh.tp=2", "mesh.dp=3"}, 4, {"dp 3 x tp 2 = 6 ranks, but 4 are started", "--ranks 6"}},
      {{"mesh.tp=3", kind + "2d"}, 3, {"3 ranks are not a square", "do: use 4"}},
      {{"mesh.tp=16", kind + "2d"}, 16, {"a grid of side 4 divides 6 heads by 4", "use 4 or 9 or 36"}},
      {{"mesh.tp=4", kind + "3d"}, 4, {"4 ranks are not a cube", "do: use 8"}},
      {{"mesh.tp=8", kind + "2.5d", "tensor_parallel.depth=3"}, 8, {"not a square times a depth of 3", "use 12"}},
      {{"mesh.tp=4", kind + "2d", "train.global_batch=7"}, 4, {"splits 7 sequences", "global_batch = 8"}},
      {{"mesh.tp=4", kind + "2d", "train.micro_batch=3"}, 4, {"splits 3 sequences", "micro_batch = 2 or 4 or 6 or 12"}},
      {{"mesh.cp=3"}, 3, {"128 positions do not split into 6 equal pieces", "model.context = 126"}},
      {{"mesh.cp=4", "context_parallel.kind=ulysses"}, 4, {"6 heads do not divide among 4 ranks"}},
      {{"mesh.cp=4", "context_parallel.kind=both", "context_parallel.exchange=3"}, 4, {"not a proper divisor of 4"}},
      {{"mesh.pp=2", "train.micro_batch=5"}, 2, {"12 / 5 is not whole", "--set train.micro_batch=5"}},
      {{"mesh.pp=2", "pipeline.schedule=interleaved", "train.global_batch=3"}, 2, {"use train.global_batch = 4"}},
      {{"mesh.cp=4", "context_parallel.kind=both"}, 4, {"--set context_parallel.kind=both", "use 2"}},
      {{"memory.recompute=stage"}, 1, {"with mesh.pp above 1 only", "use \"full\""}},
      {{"mesh.tp=2", "data_parallel.technique=replicas", "comm.backend=thread"}, 2, {"runs whole models"}},
  };
  for (const Case& each : cases) {
    const std::string message =
        message_of<UsageError>([&] { plan_batch(parse_recipe("", "r", each.set), each.ranks); });
    SCOPED_TRACE(each.set.back());
    for (const std::string& part : each.parts) EXPECT_THAT(message, HasSubstr(part));
  }
  const auto refused = [](const std::vector<std::string>& set) {
    return message_of<UsageError>([&] { parse_recipe("", "r", set); });
  };
  EXPECT_THAT(refused({"tensor_parallel.sequence=true"}), HasSubstr("mesh.tp above 1"));
  EXPECT_THAT(refused({"mesh.tp=4", kind + "2d", "tensor_parallel.sequence=true"}), HasSubstr("kind = \"1d\" only"));
  EXPECT_THAT(refused({"mesh.tp=2", "tensor_parallel.depth=2"}), HasSubstr("kind = \"2.5d\" only"));
  EXPECT_THAT(refused({"mesh.tp=2", kind + "4d"}), HasSubstr("the nearest is"));
  // An override that switches a technique off also drops its keys in the file.
  const std::string piped = "[mesh]\npp = 2\n[pipeline]\nschedule = \"pipedream\"\ndrain = 7\n";
  const Recipe alone = parse_recipe(piped, "r", {"mesh.pp=1"});
  EXPECT_EQ(alone.pipeline.name(), "1f1b");
  EXPECT_EQ(parse_recipe(to_toml(alone), "r").pipeline.schedule.whole("drain"), 50);
  EXPECT_EQ(parse_recipe(piped, "r", {"pipeline.schedule=gpipe"}).pipeline.schedule.whole("drain"), 50);
  EXPECT_THAT(message_of<UsageError>([&] {
                parse_recipe(piped, "r", {"mesh.pp=1", "pipeline.drain=9"});
              }),
              HasSubstr("--set pipeline.drain=9"));
  EXPECT_THAT(message_of<UsageError>([&] { parse_recipe("[pipeline]\ndrain = 7\n", "r", {"train.steps=3"}); }),
              HasSubstr("r:2"));
  const Recipe right = parse_recipe("", "r", {"mesh.tp=2", "mesh.cp=2"});
  EXPECT_EQ(recipe_ranks(right), 4);
  EXPECT_THAT(order_text(right, 3), AllOf(HasSubstr("neighbours on tp ("), HasSubstr("then cp ("), HasSubstr("dp (")));
  EXPECT_EQ(order_text(parse_recipe("", "r", {"mesh.pp=2"}), 1), "") << "one axis has no order";
  EXPECT_EQ(plan_batch(right, 12).to_string(), "global_batch 12 = dp 3 x micro_batch 4 x accumulation 1");
}

/// Also one that only training has.
TEST(Recipe, AnotherKindReplacesWhatTheFileSaysOfTheArchitecture) {
  const std::string file =
      "[model]\nkind = \"gpt2\"\nwidth = 36\nactivation = \"gelu\"\nqkv_bias = true\ndrop_branches = true\n";
  const Recipe recipe = parse_recipe(file, "r.toml", {"model.kind=llama"});
  EXPECT_EQ(recipe.model.arch, Architecture::llama());
  EXPECT_EQ(recipe.model.width, 36);
  EXPECT_TRUE(parse_recipe(file, "r.toml", {"model.qkv_bias=true", "model.kind=llama"}).model.arch.qkv_bias);
}

TEST(Recipe, OverridesAreTomlOrElsePlainStrings) {
  const Recipe recipe =
      parse_recipe(whole(), "r.toml",
                   {"train.steps=33", "train.steps=34", "data.text=[\"c.txt\"]", "data.tokenizer=some/path.json",
                    "optimizer.lr=0.25", "checkpoint.dir=runs/a b=c", "sample.prompt=\"Call\\nme\"", "comm.check=true",
                    "model.kind=gpt2", "model.kv_heads=0"});
  EXPECT_EQ(recipe.train.steps, 34);
  EXPECT_EQ(recipe.optimizer.rate.total_steps, 34);
  EXPECT_EQ(recipe.data.text, std::vector<std::string>{"c.txt"});
  EXPECT_EQ(recipe.data.tokenizer, "some/path.json");
  EXPECT_EQ(recipe.optimizer.rate.lr, 0.25);
  EXPECT_EQ(recipe.checkpoint.dir, "runs/a b=c");
  EXPECT_EQ(recipe.sample.prompt, "Call\nme");
  EXPECT_TRUE(recipe.comm.check);
  EXPECT_EQ(recipe.model.arch, Architecture::gpt2());
  EXPECT_EQ(recipe.where("train.steps"), "--set train.steps=34");
  EXPECT_EQ(parse_recipe("", "r", {"checkpoint.dir="}).checkpoint.dir, "");
  EXPECT_EQ(parse_recipe("", "r", {"data.tokenizer={train = 300}"}).data.trained_vocabulary, 300);

  EXPECT_THAT(refusal("", {"train.steps=many"}), AllOf(HasSubstr("whole number"), HasSubstr("--set train.steps=many")));
  EXPECT_THAT(refusal("", {"train.stepz=3"}), HasSubstr("the nearest is train.steps"));
  EXPECT_THAT(refusal("", {"sample.prompt=\xff"}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(refusal("", {"train.steps"}), HasSubstr("section.key=value"));
  EXPECT_THAT(refusal("", {"steps=3"}), HasSubstr("section.key=value"));
  EXPECT_THAT(refusal("", {"train.steps=3\n[model]"}), HasSubstr("whole number"));
}

TEST(Recipe, FilesAreReadAndNameTheRun) {
  const TemporaryFolder folder;
  write_file(folder / "tiny.toml", "[train]\nsteps = 3\n");
  write_file(folder / "empty.toml", "");
  const Recipe recipe = load_recipe(folder / "tiny.toml", {"train.seed=4"});
  EXPECT_EQ(recipe.name, "tiny");
  EXPECT_EQ(recipe.train.steps, 3);
  EXPECT_EQ(recipe.train.seed, 4);
  EXPECT_EQ(to_toml(load_recipe(folder / "empty.toml", {})), to_toml(load_recipe("", {})));
  EXPECT_EQ(load_recipe("", {}).name, "default");
  EXPECT_THAT(message_of<UsageError>([&] { load_recipe(folder / "none.toml", {}); }), HasSubstr("cannot be read"));
  std::filesystem::create_directories(folder / "empty");
  EXPECT_THAT(message_of<UsageError>([&] { load_recipe(folder / "empty", {}); }), HasSubstr("cannot be read"));
}

std::string any_text() {
  const std::vector<std::string> parts{"a",  "Z", " ", "\"", "'",    "\\", "\n",     "\t", "é",
                                       "鯨", "#", "=", "\r", "\x01", "[",  "\"\"\"", "'''"};
  std::string text;
  for (const auto i : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, parts.size())))
    text += parts[i];
  return text;
}

double any_real(double low, double high) {
  return low + (high - low) * *rc::gen::inRange(0, 1 << 30) / double{1 << 30};
}

/// Where an entry of the build reads the key.
void set_if_known(Setting& setting, const std::string& key, const RecipeValue& value) {
  if (!names_with_key(setting.family().name, key).empty()) setting.set(key, value);
}

Recipe any_recipe() {
  Recipe recipe;
  recipe.model.arch = *rc::gen::element(Architecture::gpt2(), Architecture::llama());
  recipe.model.layers = *rc::gen::inRange(1, 100);
  recipe.model.heads = *rc::gen::inRange(1, 9);
  recipe.model.width = recipe.model.heads * 2 * *rc::gen::inRange(1, 20);
  if (recipe.model.arch == Architecture::llama()) recipe.model.kv_heads = *rc::gen::element(int64_t{0}, int64_t{1});
  recipe.model.hidden = *rc::gen::inRange(0, 5);
  recipe.model.tie_embeddings = *rc::gen::arbitrary<bool>();
  recipe.model.dropout = any_real(0, 0.99);
  recipe.model.norm_epsilon = any_real(1e-12, 1e-5);
  recipe.model.rope_theta = any_real(2, 1e12);
  recipe.data.text = {any_text() + "x", any_text() + "y"};
  if (*rc::gen::arbitrary<bool>()) recipe.data.text.pop_back();
  if (*rc::gen::arbitrary<bool>()) recipe.data.tokenizer = any_text() + ".json";
  recipe.data.trained_vocabulary = *rc::gen::inRange(257, 1 << 20);
  recipe.train.steps = *rc::gen::inRange<int64_t>(0, INT64_MAX);
  recipe.train.seed = *rc::gen::inRange<int64_t>(0, INT64_MAX);
  recipe.optimizer.kind.choose(*rc::gen::elementOf(names_of("optimizer")));
  recipe.optimizer.rate.schedule.choose(*rc::gen::elementOf(names_of("learning_rate")));
  recipe.optimizer.rate.lr = any_real(0, 1e6) * 1e-9;
  set_if_known(recipe.optimizer.rate.schedule, "final_lr_fraction", any_real(0, 1));
  set_if_known(recipe.optimizer.rate.schedule, "decay_fraction", any_real(0, 1));
  set_if_known(recipe.optimizer.rate.schedule, "points", std::vector<StepPoint>{{0, any_real(0, 1)}, {9, 0.5}});
  recipe.optimizer.clip_norm = any_real(0, 10);
  recipe.optimizer.skip_spikes = any_real(0, 10);
  if (*rc::gen::arbitrary<bool>()) {
    recipe.optimizer.groups = {{.parameters = {any_text() + "x", "*.y"}, .lr_factor = any_real(0, 9)},
                               {.parameters = {"z"}, .weight_decay = any_real(0, 9)}};
  }
  set_if_known(recipe.optimizer.kind, "momentum", any_real(0, 0.99));
  set_if_known(recipe.optimizer.kind, "beta2", any_real(0, 0.99));
  recipe.comm.check = *rc::gen::arbitrary<bool>();
  recipe.comm.timeout_s = *rc::gen::inRange(1, 1000);  // whole, and read back as a real
  recipe.mesh.dp = *rc::gen::inRange(0, 100);
  recipe.checkpoint.dir = any_text();
  recipe.sample.prompt = any_text();
  return recipe;
}

TEST(Recipe, GroupsAreTablesOrALine) {
  const Recipe tables = parse_recipe(
      "[optimizer]\nlr = 1\n[[optimizer.groups]]\nparameters = \"*.bias\"\nlr_factor = 2\n"
      "[[optimizer.groups]]\nparameters = [\"a\", \"b\"]\nweight_decay = 0",
      "r.toml");
  const std::string line =
      "[{parameters = [\"*.bias\"], lr_factor = 2.0}, {parameters = [\"a\", \"b\"], lr_factor = "
      "1.0, weight_decay = 0.0}]";
  EXPECT_EQ(to_toml(recipe_key("optimizer.groups").get(tables)), line);
  EXPECT_EQ(parse_recipe("", "r.toml", {"optimizer.groups=" + line}).optimizer.groups, tables.optimizer.groups);
  EXPECT_TRUE(parse_recipe("", "r.toml", {"optimizer.groups=[]"}).optimizer.groups.empty());
}

TEST(Recipe, RoundTrips) {
  const bool holds = rc::check([] {
    const Recipe recipe = any_recipe();
    const std::string text = to_toml(recipe);
    const Recipe back = parse_recipe(text, "printed");
    for (const RecipeKey& key : recipe_keys()) {
      if (!key.idle(recipe).empty()) continue;
      if (key.get(recipe) != key.get(back)) RC_FAIL(key.name + " in\n" + text);
    }
    RC_ASSERT(to_toml(back) == text);
  });
  EXPECT_TRUE(holds);
}

Recipe batch_recipe(int64_t global, int64_t micro, int64_t dp = 0) {
  Recipe recipe;
  recipe.train.global_batch = global;
  recipe.train.micro_batch = micro;
  recipe.mesh.dp = dp;
  return recipe;
}

TEST(BatchPlan, SplitsTheGlobalBatch) {
  const BatchPlan plan = plan_batch(batch_recipe(24, 2), 4);
  EXPECT_EQ(plan.dp, 4);
  EXPECT_EQ(plan.micro_batch, 2);
  EXPECT_EQ(plan.accumulation, 3);
  EXPECT_EQ(plan.rows(), 6);
  EXPECT_EQ(plan.to_string(), "global_batch 24 = dp 4 x micro_batch 2 x accumulation 3");
  EXPECT_EQ(plan_batch(batch_recipe(24, 0), 3).micro_batch, 8);
  EXPECT_EQ(recipe_ranks(batch_recipe(24, 2, 3)), 3);
  EXPECT_EQ(recipe_ranks(batch_recipe(24, 2)), 0);
  EXPECT_EQ(mesh_axes(batch_recipe(24, 2), 5).front().size, 5);
}

TEST(BatchPlan, PrintsTheEquationThatHasNoSolution) {
  EXPECT_THAT(message_of<UsageError>([] { plan_batch(batch_recipe(16, 0), 3); }),
              AllOf(HasSubstr("global_batch 16 = dp 3 x micro_batch x accumulation"),
                    HasSubstr("use global_batch = 15"), HasSubstr("dp from {1, 2, 4, 8, 16}")));
  EXPECT_THAT(message_of<UsageError>([] { plan_batch(batch_recipe(2, 0), 3); }), HasSubstr("use global_batch = 3"));
  EXPECT_THAT(message_of<UsageError>([] { plan_batch(batch_recipe(16, 3), 2); }),
              AllOf(HasSubstr("global_batch 16 = dp 2 x micro_batch 3 x accumulation"),
                    HasSubstr("micro_batch from {1, 2, 4, 8}")));
  EXPECT_THAT(message_of<UsageError>([] { plan_batch(batch_recipe(16, 0, 4), 2); }),
              AllOf(HasSubstr("dp 4"), HasSubstr("--ranks 4")));
}

}  // namespace
}  // namespace caravan::recipe_test
