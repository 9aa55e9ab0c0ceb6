// Layouts of modules of one's own: candidates(), and the split that plan() finds among them.
#include "caravan/session/candidates.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <torch/library.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformerlayer.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/optim/optimizer.h"
#include "caravan/session/plan_module.h"
#include "caravan/session/plan_tensor.h"
#include "tests/mesh/refusal.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::candidates_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kWidth = 16, kRows = 8, kPositions = 12;

at::Tensor heads_of(const at::Tensor& y) { return y.view({y.size(0), y.size(1), 4, -1}).transpose(1, 2); }

/// A block of a GPT, with the projections apart or in one weight.
struct BlockImpl : nn::Module {
  explicit BlockImpl(bool is_fused = false, int64_t ff = 4 * kWidth)
      : norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        out(register_module("out", nn::Linear(kWidth, kWidth))),
        up(register_module("up", nn::Linear(kWidth, ff))),
        down(register_module("down", nn::Linear(ff, kWidth))) {
    if (is_fused) {
      qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
    } else {
      q = register_module("q", nn::Linear(kWidth, kWidth));
      k = register_module("k", nn::Linear(kWidth, kWidth));
      v = register_module("v", nn::Linear(kWidth, kWidth));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = norm1(x);
    const auto parts = qkv.is_empty() ? std::vector<at::Tensor>{q(h), k(h), v(h)} : qkv(h).chunk(3, -1);
    const at::Tensor seen = at::scaled_dot_product_attention(heads_of(parts[0]), heads_of(parts[1]), heads_of(parts[2]),
                                                             {}, 0.0, /*is_causal=*/true);
    const at::Tensor y = x + out(seen.transpose(1, 2).reshape(x.sizes()));
    return y + down(at::gelu(up(norm2(y))));
  }
  nn::LayerNorm norm1, norm2;
  nn::Linear out, up, down;
  nn::Linear qkv{nullptr}, q{nullptr}, k{nullptr}, v{nullptr};
};
TORCH_MODULE(Block);

/// Blocks in one unit, so that none of them is left out of an estimate.
struct NetImpl : nn::Module {
  NetImpl(int depth, bool is_fused) {
    for (int i = 0; i < depth; ++i) blocks->push_back(Block(is_fused));
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < blocks->size(); ++i) x = blocks->ptr<BlockImpl>(i)->forward(x);
    return x;
  }
  nn::ModuleList blocks{register_module("blocks", nn::ModuleList())};
};
TORCH_MODULE(Net);

struct MlpImpl : nn::Module {
  MlpImpl(int64_t width, int64_t ff)
      : up(register_module("up", nn::Linear(width, ff))), down(register_module("down", nn::Linear(ff, width))) {}
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))); }
  nn::Linear up, down;
};
TORCH_MODULE(Mlp);

Mesh mesh_of(int tp) { return Mesh::create(make_record_world(0, tp), {{"dp", 1}, {"tp", tp}}); }

std::map<std::string, std::vector<std::string>> texts(const std::vector<LayoutCandidates>& all) {
  std::map<std::string, std::vector<std::string>> found;
  for (const LayoutCandidates& one : all) {
    for (const auto& choice : one.choices) found[one.what].push_back(choice.text);
  }
  return found;
}

std::string code_of(const LayoutCandidates& one, const std::string& text) {
  const auto found = std::ranges::find(one.choices, text, &LayoutCandidates::Choice::text);
  return found == one.choices.end() ? "none" : to_code(tensor(found->layouts));
}

TEST(Candidates, WeightsWithTheirVectorsInEqualLayers) {
  const auto all = candidates(Net(3, /*is_fused=*/true), mesh_of(2));
  EXPECT_THAT(texts(all),
              AllOf(::testing::SizeIs(6),
                    ::testing::Contains(::testing::Pair("blocks.*.up.weight", ElementsAre("whole", "dim 0", "dim 1"))),
                    ::testing::Contains(::testing::Pair("blocks.*.qkv.weight",
                                                        ElementsAre("whole", "dim 0", "dim 0 in 3 blocks", "dim 1"))),
                    ::testing::Contains(::testing::Pair("blocks.*.norm1.weight", ElementsAre("whole", "dim 0")))));
  const auto up = std::ranges::find(all, "blocks.*.up.weight", &LayoutCandidates::what);
  EXPECT_THAT(up->parameters, ElementsAre("blocks.0.up.weight", "blocks.0.up.bias", "blocks.1.up.weight",
                                          "blocks.1.up.bias", "blocks.2.up.weight", "blocks.2.up.bias"));
  EXPECT_EQ(code_of(*up, "dim 0"),
            "tensor({{\"blocks.*.up.weight\", {{\"tp\", Shard{0}}}}, "
            "{\"blocks.*.up.bias\", {{\"tp\", Shard{0}}}}})");
  EXPECT_EQ(code_of(*up, "dim 1"), "tensor({{\"blocks.*.up.weight\", {{\"tp\", Shard{1}}}}})");
}

TEST(Candidates, OnlyWhatGivesEachRankSomething) {
  const Mlp net(3, 13);
  EXPECT_THAT(texts(candidates(net, mesh_of(3)))["up.weight"], ElementsAre("whole", "dim 0", "dim 1"));
  EXPECT_THAT(texts(candidates(net, mesh_of(4)))["up.weight"], ElementsAre("whole", "dim 0"));
  EXPECT_THAT(texts(candidates(net, mesh_of(4)))["down.weight"], ElementsAre("whole", "dim 1"));
  EXPECT_THAT(candidates(net, mesh_of(14)), IsEmpty());
}

/// The layers of a Sequential are no equal layers, even if they have the same shapes: of a pair, one is cut by columns,
/// the other by rows.
TEST(Candidates, LayersOfAListChooseOnTheirOwn) {
  const nn::Sequential net(nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 8));
  EXPECT_EQ(candidates(net, mesh_of(2)).size(), 2U);
  EXPECT_EQ(candidates(nn::Sequential(Mlp(4, 8), Mlp(4, 8)), mesh_of(2)).size(), 2U);
  EXPECT_EQ(candidates(nn::Sequential(Mlp(4, 8), Mlp(4, 9)), mesh_of(2)).size(), 4U);
}

TEST(Candidates, NamesOfDimsInPlaceOfShapes) {
  const Mlp net(8, 12);
  const CandidateOptions options{.names = {{"up.*", "ff"}, {"up.weight", "ff embed"}, {"down.weight", "embed ff"}}};
  const auto all = candidates(net, mesh_of(2), options);
  EXPECT_EQ(texts(all).size(), 3U) << "ff, embed and the bias of down";
  EXPECT_EQ(all[1].what, "ff");
  EXPECT_THAT(all[1].parameters, ElementsAre("up.weight", "up.bias", "down.weight"));
  const auto attention = candidates(nn::TransformerEncoderLayer(8, 4), mesh_of(4));
  const auto heads = std::ranges::find(attention, "heads", &LayoutCandidates::what);
  ASSERT_NE(heads, attention.end());
  EXPECT_THAT(code_of(*heads, "cut"),
              HasSubstr("{\"self_attn.in_proj_weight\", {{\"tp\", Shard{.dim = 0, .blocks = 3}}}}"));
  EXPECT_THAT(refusal<ShapeError>([&] {
                candidates(net, mesh_of(2), {.names = {{"up.weight", "ff"}}});
              }),
              HasSubstr("up.weight"));
}

TEST(Candidates, RefusesWhatHasNone) {
  EXPECT_THAT(refusal<Error>([] { candidates(Mlp(4, 8), mesh_of(2), {.axis = "ep"}); }), HasSubstr("ep"));
  ModelConfig config;
  config.vocabulary = 16;
  Model model(config);
  EXPECT_THAT(refusal<UsageError>([&] { candidates(model, mesh_of(2)); }), HasSubstr("tensor_parallel"));
}

/// Products at a rate, whatever their shape, and links.
Hardware plain_hosts(int64_t per_host, double bytes_per_second) {
  constexpr double kFlops = 1e10;
  Hardware hardware;
  hardware.name = "hosts of a test";
  HardwareDevice device{.name = "device", .memory_bytes = int64_t{1} << 30, .memory_bytes_per_second = 1e18};
  device.products = {{.dtype = "fp32", .peak_flops = kFlops, .flops = kFlops, .tile_m = 1, .tile_n = 1, .ramp_k = 0}};
  device.is_processor = true;
  hardware.devices = {device};
  hardware.hosts = {{.count = 1, .device = "device", .devices = per_host}};
  hardware.levels = {{.name = "host", .devices = per_host, .bytes_per_second = bytes_per_second}};
  return hardware;
}

at::Tensor loss_of(const at::Tensor& out, const at::Tensor& y) { return (out - y).square().sum() / 1000; }

struct Found {
  TensorChoice choice;
  bool is_found = false;
};

/// What is found for two ranks.
Found find_split(const Trainable& net, const StepData& sample, int ranks = 2, const CandidateOptions& options = {}) {
  const KeptTensors kept(TrainableParts::module_of(net, "test", ""));
  const MakeOptimizer optimizer = [](FlatState& state) { return std::make_unique<AdamW>(state); };
  const ParallelOptions parallel;
  const Hardware hardware = plain_hosts(ranks, 1e9);
  const PlannedStep step{net, sample, optimizer, parallel, hardware, {.rows = kRows, .dtype = "fp32"}};
  const FoundTensors found =
      find_tensors(step, {.ranks = ranks, .rows = sample.x.size(0)}, options, kept, [] { return false; });
  EXPECT_TRUE(found.is_complete);
  const auto one = found.by_size.find(ranks);
  return one == found.by_size.end() ? Found{} : Found{one->second, true};
}

StepData sample_of(const std::vector<int64_t>& sizes, const ParallelModel::Loss& loss = loss_of) {
  return {at::empty(sizes, at::kMeta), at::empty(sizes, at::kMeta), loss};
}

/// The layout of each parameter that is cut.
std::map<std::string, std::string> layouts_of(const nn::Module& net, const TensorChoice& choice) {
  std::map<std::string, std::string> all;
  for (const auto& item : net.named_parameters()) {
    const Layout& layout = layout_for(item.key(), choice.layouts);
    if (layout.has("tp") && layout["tp"].is_shard()) all[item.key()] = layout["tp"].to_string();
  }
  return all;
}

double bytes_over_tp(const Trainable& net, const TensorChoice& choice, const StepData& sample) {
  return rehearse(net, {.tp = 2}, {choice}, sample).bytes_sent("tp");
}

/// A rehearsal of a rank sees its pieces: half of the products and of the weights, and the sum of what the ranks give.
TEST(TensorSearch, RehearsalsAreOfPieces) {
  constexpr int64_t kSmall = 64, kLarge = 256;
  const Mlp net(kSmall, kLarge);
  const StepData sample = sample_of({kRows, kSmall});
  const std::vector<Technique> split{tensor({{"up.*", {{"tp", Shard{0}}}}, {"down.weight", {{"tp", Shard{1}}}}})};
  const Rehearsal one = rehearse(net, {}, {}, sample), half = rehearse(net, {.tp = 2}, split, sample);
  EXPECT_EQ(half.timeline.flops(), one.timeline.flops() / 2);
  EXPECT_EQ(half.bytes_sent("tp"), kRows * kSmall * 4) << "the output is summed; the input needs no gradient";
  const auto weights = static_cast<size_t>(MemoryKind::parameters);
  EXPECT_EQ(one.peak.of[weights] - half.peak.of[weights], (2 * kSmall * kLarge + kLarge) / 2 * 4);
  EXPECT_THAT(inspect(net, {.dp = 2, .tp = 2}, {split[0], fsdp()}, sample),
              AllOf(HasSubstr("sends over dp, reduce_scatter"), HasSubstr("sends over tp, all_reduce")));
}

TEST(TensorSearch, AnMlpIsCutByColumnsThenRows) {
  // One row on two ranks: no other layout splits the work.
  const Mlp net(64, 256);
  const Found found = find_split(net, sample_of({1, 64}));
  ASSERT_TRUE(found.is_found);
  EXPECT_THAT(
      layouts_of(*net, found.choice),
      ElementsAre(std::pair("down.weight", "S(1)"), std::pair("up.bias", "S(0)"), std::pair("up.weight", "S(0)")));
}

TEST(TensorSearch, ABlockOfAGptAsMegatron) {
  const Net net(2, /*is_fused=*/false);
  const StepData sample = sample_of({kRows, kPositions, kWidth});
  const Found found = find_split(net, sample);
  ASSERT_TRUE(found.is_found);
  const TensorChoice megatron = tensor({{"*.q.*", {{"tp", Shard{0}}}},
                                        {"*.k.*", {{"tp", Shard{0}}}},
                                        {"*.v.*", {{"tp", Shard{0}}}},
                                        {"*.out.weight", {{"tp", Shard{1}}}},
                                        {"*.up.*", {{"tp", Shard{0}}}},
                                        {"*.down.weight", {{"tp", Shard{1}}}}});
  EXPECT_LE(bytes_over_tp(net, found.choice, sample), bytes_over_tp(net, megatron, sample)) << to_code(found.choice);
  EXPECT_EQ(layouts_of(*net, found.choice), layouts_of(*net, megatron));
}

TEST(TensorSearch, AFusedProjectionInBlocks) {
  const Net net(1, /*is_fused=*/true);
  const StepData sample = sample_of({kRows, kPositions, kWidth});
  const Found found = find_split(net, sample);
  ASSERT_TRUE(found.is_found);
  EXPECT_EQ(layouts_of(*net, found.choice)["blocks.0.qkv.weight"], "S(0; blocks 3)") << to_code(found.choice);
}

TEST(TensorSearch, DeepNetsAreTriedAsOftenAsShallowOnes) {
  const StepData sample = sample_of({kRows, kPositions, kWidth});
  const Found shallow = find_split(Net(1, false), sample), deep = find_split(Net(4, false), sample);
  std::set<std::string> a, b;
  for (const NamedLayout& each : shallow.choice.layouts) a.insert(each.layout.to_string());
  for (const NamedLayout& each : deep.choice.layouts) b.insert(each.layout.to_string());
  EXPECT_EQ(a, b);
  EXPECT_EQ(shallow.choice.layouts.size(), deep.choice.layouts.size()) << "patterns, not parameters";
}

/// What is found computes what one process does.
template <class Make>
void check_holds(const Make& make, const std::vector<int64_t>& sizes, int ranks) {
  const auto made = [&] {
    static std::mutex one_generator;  // of all rank threads
    const std::lock_guard lock(one_generator);
    at::manual_seed(3);
    auto net = make();
    net->to(at::kDouble);
    return net;
  };
  auto planned = make();
  const Found found = find_split(planned, sample_of(sizes), ranks);
  ASSERT_TRUE(found.is_found);
  const at::Tensor x = random_tensor(sizes, 1), y = random_tensor(sizes, 2);
  on_mesh({{"dp", 1}, {"tp", ranks}}, [&](const Mesh& mesh) {
    const ModuleProof proof = prove(made(), mesh, {found.choice}, {x, y, loss_of});
    EXPECT_TRUE(proof.holds()) << proof.to_string() << to_code(found.choice);
  });
}

TEST(TensorSearch, OddSizesHold) {
  check_holds([] { return Mlp(5, 67); }, {3, 5}, 2);
  check_holds([] { return Mlp(64, 65); }, {3, 64}, 3);
  check_holds([] { return Block(/*is_fused=*/false, /*ff=*/37); }, {kRows, kPositions, kWidth}, 3);
}

at::Tensor squares(const at::Tensor& x) { return x * x; }

TORCH_LIBRARY(caravan_candidates, library) {
  library.def("squares(Tensor x) -> Tensor");
  library.impl("squares", c10::DispatchKey::CompositeExplicitAutograd, squares);
}

/// sort needs all of the dim that is cut, and squares has no rule.
struct OddImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor z = up(x), y = std::get<0>(z.sort(-1));
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("caravan_candidates::squares", "")
                               .typed<at::Tensor(const at::Tensor&)>();
    return down(y) + op.call(z.detach()).mean(-1, /*keepdim=*/true);
  }
  nn::Linear up{register_module("up", nn::Linear(32, 64))}, down{register_module("down", nn::Linear(64, 32))};
};
TORCH_MODULE(Odd);

TEST(TensorSearch, OpsWithoutARuleAreCountedAsWhole) {
  const Odd net;
  const StepData sample = sample_of({6, 32});
  const double bytes = bytes_over_tp(net, tensor({{"up.*", {{"tp", Shard{0}}}}}), sample);
  EXPECT_GE(bytes, 2 * 6 * 32 * 4) << "both gather what the layer gives";
  check_holds([] { return Odd(); }, {6, 32}, 2);
}

TEST(TensorSearch, PlansHaveRowsOfIt) {
  const Mlp net(64, 512);
  // One row: neither ranks with other rows nor micro-batches.
  const ModulePlan found = plan(net, sample_of({1, 64}), {.hardware = plain_hosts(2, 1e9), .seconds = 60});
  const PlannedModule& best = found.best.front();
  EXPECT_EQ(best.text, "dp 1 x tp 2, 1 x 1 rows");
  EXPECT_EQ(best.tp, 2);
  EXPECT_THAT(
      found.to_string(),
      AllOf(HasSubstr("Session session({.tp = 2});\nauto model = parallelize(net, session, {tensor({{\"up.weight\", "
                      "{{\"tp\", Shard{0}}}}, {\"up.bias\", {{\"tp\", Shard{0}}}}, {\"down.weight\", {{\"tp\", "
                      "Shard{1}}}}})});"),
            HasSubstr("1 rows cannot be dealt evenly to 2 ranks: layouts with")));
  // y = x w, dw = dy x and, for the second layer, dx = dy w, each half.
  const double flops = 2.0 * 64 * 512 * 5 / 2;
  EXPECT_NEAR(best.prediction.of_products, flops / 1e10, 1e-9);
  const ModulePlan fixed = plan(net, sample_of({2, 64}),
                                {.hardware = plain_hosts(2, 1e9), .fixed = {tensor({{"up.*", {{"tp", Shard{0}}}}})}});
  for (const PlannedModule& one : fixed.best) EXPECT_EQ(one.tp, 2) << one.text;
  EXPECT_THAT(refusal<UsageError>([&] {
                plan(net, sample_of({1, 64}), {.hardware = plain_hosts(2, 1e9), .splits_layers = false});
              }),
              HasSubstr("1 rows cannot be dealt evenly"));
}

/// Layers that are left out of an estimate are cut as the others are, whatever they are called.
TEST(TensorSearch, FewUnitsTellOfAll) {
  nn::Sequential net;
  for (int i = 0; i < 12; ++i) net->push_back(Mlp(32, 64));
  const Trainable trained = net;
  const StepData sample = sample_of({kRows, 32});
  const Mesh alone = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  const MakeOptimizer optimizer = [](FlatState& state) { return std::make_unique<AdamW>(state); };
  const ParallelOptions options;
  const Hardware hardware = plain_hosts(2, 1e9);
  const UnitRepeats repeats =
      find_repeats(TrainableParts::units(trained, alone), rehearse(trained, {}, {}, sample).timeline);
  EXPECT_GE(repeats.count, 10U);
  const KeptTensors kept(*net);
  const PlannedStep step{trained, sample, optimizer, options, hardware, {.rows = kRows, .dtype = "fp32"}, repeats};
  const auto error_of = [&](const TensorChoice& choice) {
    const LayoutSpace space({.ranks = 2, .rows = kRows, .num_units = 12, .tensors = {{2, choice}}});
    const LayoutPredictor predictor(step, space, kept);
    const StepLayout layout{.tp = 2};
    return predictor.estimate(layout).seconds / predictor.predict(layout).seconds;
  };
  const Layout columns{{"tp", Shard{0}}}, rows{{"tp", Shard{1}}};
  EXPECT_NEAR(error_of(tensor({{"*.up.*", columns}, {"*.down.weight", rows}})), 1, 0.01);
  EXPECT_EQ(error_of(tensor({{"3.up.*", columns}, {"3.down.weight", rows}})), 1) << "all are rehearsed";
}

}  // namespace
}  // namespace caravan::testing::candidates_test
