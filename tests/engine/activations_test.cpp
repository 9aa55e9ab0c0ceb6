/// Activations on host or disk change no bit, and what is moved is what the device has less.

#include "caravan/engine/activations.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/models/model.h"
#include "caravan/module/adapter.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/make_strategy.h"
#include "caravan/techniques/technique_body.h"
#include "tests/data/support.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::activations_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kStore = "activations: store";
constexpr auto kLoad = "activations: load";
constexpr auto kUnpack = "activations: unpack";
constexpr auto kLate = "activations: load late";

ModelConfig gpt2(int64_t layers = 4) {
  return {.layers = layers, .width = 32, .heads = 4, .context = 32, .vocabulary = 61, .dropout = 0.1};
}
ModelConfig llama(int64_t layers = 4) {
  return {.arch = Architecture::llama(),
          .layers = layers,
          .width = 32,
          .heads = 4,
          .kv_heads = 2,
          .context = 32,
          .vocabulary = 61,
          .tie_embeddings = false,
          .dropout = 0.1};
}
ModelConfig experts() {
  ModelConfig config = llama();
  config.hidden = 48;
  config.moe = {.experts = 4, .top_k = 2};
  return config;
}

struct Case {
  ModelConfig model = gpt2();
  StrategyChoice choice{.data_parallel = technique_of("ddp")};
  Axes axes{{"dp", 1}};
  int num_micro_batches = 1;
  int64_t sequences = 2;  ///< of a micro-batch
  at::Device device = at::kCPU;
  bool has_table = true;  ///< false: begin_step() and finish_step()
  bool protects_host = true;
};

/// Of one rank.
struct Found {
  std::vector<double> losses;
  std::vector<at::Tensor> gradients;  ///< sharded, of every step
  PathCounts paths;
  MemoryCounter::Moved traffic;  ///< of the last step
  int64_t peak = 0;              ///< of the device in the last step, beyond what it had before
  int64_t host = 0, disk = 0;    ///< peaks there
  int64_t left = 0;              ///< bytes on the device after the last step beyond those before it
};

Case with_pipeline(Case of, const std::string& schedule, int stages, int per_rank = 0) {
  of.choice.pipeline = pipeline_of(schedule, stages, per_rank);
  of.axes = {{"dp", 1}, {"pp", stages}};
  of.num_micro_batches = 4;
  return of;
}

/// `steps` steps of `what` on this rank with its activations in `tier`.
Found run_rank(const Case& what, Tier tier, const Mesh& given, const std::filesystem::path& folder, int steps = 2) {
  Found found;
  Mesh mesh = given;
  Model model(what.model);
  StrategyChoice choice = what.choice;
  choice.sequences = what.sequences;
  Strategy strategy = make_strategy(choice, model, mesh);
  const bool is_meta = what.device.is_meta();
  const auto tiers = std::make_shared<Tiers>(Tiers::Options{.disk_dirs = {folder},
                                                            .owner = fmt::format("rank_{}", mesh.rank()),
                                                            .is_meta = is_meta,
                                                            .protects_host = what.protects_host && !is_meta});
  if (tier != Tier::device) {
    strategy.tiers = tiers;
    move_activations(strategy, tier);
  }
  Engine engine(model, mesh, strategy, {.seed = 5, .device = what.device});
  StageRunner runner(engine);
  MemoryCounter& counter = MemoryCounter::current();
  PathLog log;
  const PathScope scope(&log);
  for (int step = 0; step < steps; ++step) {
    const auto source = [&](int micro) {
      const int seed = 100 * step + 10 * micro + (mesh.has("dp") ? mesh["dp"].coord() : 0);
      const at::Tensor all = (at::arange(what.sequences * (what.model.context + 1)) * 7 + seed * 13)
                                 .remainder(what.model.vocabulary)
                                 .view({what.sequences, what.model.context + 1});
      MicroBatch batch{.ids = all.narrow(1, 0, what.model.context).contiguous(),
                       .labels = all.narrow(1, 1, what.model.context).contiguous()};
      if (is_meta) batch.ids = at::empty_like(batch.ids, what.device), batch.labels = at::empty_like(batch.ids);
      batch.context = {.step = step, .micro_batch = micro, .loss_scale = 1e-2};
      return batch;
    };
    engine.table(what.num_micro_batches);
    log.clear();
    const MemoryCounter::Moved before = tiers->traffic();
    const int64_t live = counter.live_bytes();
    counter.reset_peak();
    double loss = 0;
    if (what.has_table) {
      loss = runner.run_step(what.num_micro_batches, source);
    } else {
      engine.begin_step(what.num_micro_batches);
      for (int micro = 0; micro < what.num_micro_batches; ++micro) {
        const MicroBatch batch = source(micro);
        const at::Tensor one = model.run({batch.ids, batch.labels}, batch.context)[0];
        backward(one, engine.strategy().loss_layout);
        loss += one.item<double>();
      }
      engine.finish_step();
    }
    found.peak = counter.peak_bytes() - live;
    found.host = counter.peak_bytes(Tier::host);
    found.disk = counter.peak_bytes(Tier::disk);
    found.left = counter.live_bytes() - live;
    found.traffic = tiers->traffic();
    found.traffic.to_host -= before.to_host;
    found.traffic.from_host -= before.from_host;
    found.traffic.to_disk -= before.to_disk;
    found.traffic.from_disk -= before.from_disk;
    found.losses.push_back(loss);
    if (is_meta) continue;
    for (const at::Tensor& parameter : engine.parameters()) found.gradients.push_back(parameter.grad().clone());
  }
  found.paths = log.counts();
  return found;
}

std::vector<Found> run(const Case& what, Tier tier) {
  const TemporaryFolder folder;
  std::vector<Found> ranks(static_cast<size_t>(num_ranks(what.axes)));
  on_mesh(what.axes, [&](const Mesh& mesh) {
    ranks[static_cast<size_t>(mesh.rank())] = run_rank(what, tier, mesh, folder.path());
  });
  return ranks;
}

int64_t count(const Found& found, const char* path) {
  const auto at = found.paths.find(path);
  return at == found.paths.end() ? 0 : at->second;
}

void expect_same_bits(const Found& got, const Found& want) {
  EXPECT_EQ(got.losses, want.losses);
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (size_t i = 0; i < got.gradients.size(); ++i) EXPECT_TRUE(at::equal(got.gradients[i], want.gradients[i])) << i;
}

/// Every rank moves something, and computes what it computes without.
void changes_no_bit(const Case& what, std::initializer_list<Tier> tiers = {Tier::host, Tier::disk}) {
  const std::vector<Found> want = run(what, Tier::device);
  for (const Tier tier : tiers) {
    SCOPED_TRACE(name(tier));
    const std::vector<Found> got = run(what, tier);
    for (size_t rank = 0; rank < got.size(); ++rank) {
      SCOPED_TRACE(rank);
      expect_same_bits(got[rank], want[rank]);
      EXPECT_EQ(count(want[rank], kStore), 0);
      EXPECT_GT(count(got[rank], kStore), 0);
      EXPECT_EQ(count(got[rank], kLoad), count(got[rank], kStore));
      EXPECT_GE(count(got[rank], kUnpack), count(got[rank], kLoad));
      EXPECT_EQ(count(got[rank], kLate), 0);
      const MemoryCounter::Moved& moved = got[rank].traffic;
      EXPECT_GT(moved.to_host, 0);
      EXPECT_EQ(moved.from_host, moved.to_host);
      EXPECT_EQ(moved.to_disk, tier == Tier::disk ? moved.to_host : 0);
      EXPECT_EQ(moved.from_disk, moved.to_disk);
      if (got.size() > 1) continue;  // what peers send comes and goes
      EXPECT_EQ(got[rank].left, 0) << "bytes are left on the device";
    }
  }
}

TEST(Activations, ChangeNoBit) {
  for (const ModelConfig& model : {gpt2(), llama(), experts()}) {
    for (const int num_micro_batches : {1, 3}) {
      changes_no_bit({.model = model, .num_micro_batches = num_micro_batches});
    }
  }
}

TEST(Activations, ChangeNoBitInBf16) {
  for (const ModelConfig& model : {gpt2(), llama()}) {
    Case what{.model = model, .sequences = 4};
    what.choice.compute_dtype = at::kBFloat16;
    changes_no_bit(what, {Tier::host});
  }
}

TEST(Activations, ChangeNoBitOnTwoRanks) {
  for (const std::string technique : {"ddp", "zero3"}) {
    Case what{.axes = {{"dp", 2}}, .num_micro_batches = 2, .protects_host = false};
    what.choice.data_parallel = technique_of(technique);
    changes_no_bit(what);
  }
}

TEST(Activations, ChangeNoBitBesideRecompute) {
  for (const std::string recomputed : {"selective", "full"}) {
    Case what{.num_micro_batches = 2, .sequences = 4};
    what.choice.recompute = recompute_of(recomputed);
    changes_no_bit(what);
  }
}

TEST(Activations, ChangeNoBitInAPipeline) {
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    changes_no_bit(with_pipeline({}, schedule, 2));
  }
}

/// The first step has no table: units are evicted when their forward ends, and fetched when their backward begins.
TEST(Activations, ChangeNoBitInRecordedSteps) {
  changes_no_bit({.model = llama(), .num_micro_batches = 2, .has_table = false});
}

// ---- memory ----

/// Everything is long: small tensors, which stay, are less than a hundredth.
Case long_case(const ModelConfig& model) {
  Case what{.model = model, .sequences = 2};
  what.model.context = 256;
  return what;
}

/// What the device has less at its peak, which is in the backward of the last block, is what has moved, except for the
/// block that is fetched ahead. A rehearsal on meta tensors finds the same peaks.
TEST(Activations, TakeTheDeviceLessAtItsPeak) {
  for (const ModelConfig& model : {gpt2(6), llama(6), experts()}) {
    for (const std::string recomputed : {"none", "full"}) {
      Case what = long_case(model);
      what.choice.recompute = recompute_of(recomputed);
      Case dry = what;
      dry.device = at::kMeta;
      const Found stays = run(what, Tier::device)[0];
      EXPECT_EQ(run(dry, Tier::device)[0].peak, stays.peak);
      for (const Tier tier : {Tier::host, Tier::disk}) {
        SCOPED_TRACE(fmt::format("{} to {}, recomputes {}", model.arch.name, name(tier), recomputed));
        const Found moves = run(what, tier)[0];
        const Found rehearsed = run(dry, tier)[0];
        const int64_t num_moved = model.layers - 1;  // the backward of the last block is near
        EXPECT_GT(moves.traffic.to_host, 0);
        EXPECT_EQ(stays.peak - moves.peak, moves.traffic.to_host / num_moved * (num_moved - 1));
        EXPECT_EQ(rehearsed.peak, moves.peak);
        EXPECT_EQ(rehearsed.host, moves.host);
        EXPECT_EQ(rehearsed.disk, moves.disk);
        EXPECT_EQ(rehearsed.traffic.to_host, moves.traffic.to_host);
        EXPECT_EQ(rehearsed.traffic.from_disk, moves.traffic.from_disk);
        EXPECT_EQ(tier == Tier::host ? moves.host : moves.disk, moves.traffic.to_host);
      }
    }
  }
}

// ---- a user's module ----

struct Whole : torch::nn::Module {};

/// Units of a user's own, one after another, which end in a sum of squares.
struct Net {
  using Layer = std::function<at::Tensor(at::Tensor)>;
  /// `layers[i]` is unit i.
  Net(const Mesh& given, const std::vector<torch::nn::Sequential>& layers, Tier tier,
      const std::vector<Layer>& own_forward = {})
      : mesh(given), folder(std::make_unique<TemporaryFolder>()) {
    std::vector<ModuleAdapter::Unit> units;
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto name = "u" + std::to_string(i);
      whole->register_module(name, layers[i]);
      const bool is_last = i + 1 == layers.size();
      const Layer run = i < own_forward.size() && own_forward[i] ? own_forward[i] : [layer = layers[i]](at::Tensor x) {
        return torch::nn::Sequential(layer)->forward(std::move(x));
      };
      units.push_back({.name = name, .modules = {layers[i].ptr()}, .forward = [run, is_last](Tensors x) -> Tensors {
                         at::Tensor y = run(std::exchange(x[0], at::Tensor()));
                         return {is_last ? y.square().sum() : y};
                       }});
    }
    uint64_t seed = 0;
    for (at::Tensor& weight : whole->parameters()) weight.data().copy_(0.2 * random_tensor(weight.sizes(), ++seed));
    model = std::make_unique<ModuleAdapter>(whole, std::move(units), mesh);
    Strategy strategy = ddp(*model, mesh);
    tiers = std::make_shared<Tiers>(
        Tiers::Options{.disk_dirs = {folder->path()}, .owner = "rank_0", .protects_host = true});
    if (tier != Tier::device) {
      strategy.tiers = tiers;
      move_activations(strategy, tier);
    }
    engine = std::make_unique<Engine>(*model, mesh, strategy);
  }

  at::Tensor forward(const at::Tensor& x, int micro_batch = 0, Phase phase = Phase::forward) {
    return model->run({x}, {.micro_batch = micro_batch, .phase = phase})[0];
  }
  /// Two steps of two micro-batches; the forwards come before the backwards.
  void train(const at::Tensor& x) {
    at::manual_seed(7);
    for (int step = 0; step < 2; ++step) {
      engine->begin_step(2);
      std::vector<at::Tensor> losses;
      for (int micro = 0; micro < 2; ++micro) losses.push_back(forward(x + micro, micro));
      for (at::Tensor& loss : losses) {
        loss.backward();
        loss = at::Tensor();
      }
      engine->finish_step();
    }
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& weight : engine->parameters()) all.push_back(weight.grad().clone());
    return all;
  }

  Mesh mesh;
  std::unique_ptr<TemporaryFolder> folder;
  std::shared_ptr<Whole> whole = std::make_shared<Whole>();
  std::unique_ptr<ModuleAdapter> model;
  std::shared_ptr<Tiers> tiers;
  std::unique_ptr<Engine> engine;
};

void alone(const std::function<void(const Mesh&)>& body) { on_mesh({{"dp", 1}}, body); }

torch::nn::Sequential mlp(int64_t in, int64_t hidden) {
  return torch::nn::Sequential(torch::nn::Linear(in, hidden), torch::nn::Tanh(), torch::nn::Linear(hidden, in));
}
std::vector<torch::nn::Sequential> mlps(size_t count) {
  std::vector<torch::nn::Sequential> all;
  for (size_t i = 0; i < count; ++i) all.push_back(mlp(48, 96));
  return all;
}

/// A linear layer saves its input and tanh its output, which the next layer saves too: one storage. The weights and the
/// batch, which others hold, stay.
TEST(Activations, MoveTheBytesOfTheShapes) {
  alone([](const Mesh& mesh) {
    constexpr int64_t kRows = 40;
    Net net(mesh, mlps(6), Tier::host);
    const at::Tensor x = random_tensor({kRows, 48}, 1).to(at::kFloat);
    int64_t before = 0;
    PathLog log;
    const PathScope scope(&log);
    for (int step = 0; step < 2; ++step) {
      before = net.tiers->traffic().to_host;
      log.clear();
      net.engine->begin_step();
      net.forward(x).backward();
      net.engine->finish_step();
    }
    EXPECT_THAT(
        to_string(*net.engine->recorded(1)),
        StartsWith("F0.0 Ea0.0 F1.0 Ea1.0 F2.0 Ea2.0 F3.0 Ea3.0 F4.0 F5.0 B5.0 R5.0 La3.0 B4.0 R4.0 La2.0 B3.0"));
    EXPECT_EQ(net.tiers->traffic().to_host - before, 4 * kRows * (4 * 96 + 3 * 48));
    EXPECT_EQ(log.counts()[kStore], 7);
    EXPECT_EQ(log.counts()[kLoad], 7);
    EXPECT_EQ(log.counts()[kUnpack], 4 * 3 - 1);
  });
}

/// The output of a unit that ends in tanh is saved by it and, as an input, by the next one: it moves once, with the
/// second, and comes back for the first of the two backwards.
TEST(Activations, MoveWhatTwoUnitsSaveOnce) {
  alone([](const Mesh& mesh) {
    constexpr int64_t kRows = 40;
    std::vector<torch::nn::Sequential> layers;
    for (int i = 0; i < 6; ++i) layers.emplace_back(torch::nn::Linear(48, 48), torch::nn::Tanh());
    Net net(mesh, layers, Tier::host);
    const at::Tensor x = random_tensor({kRows, 48}, 1).to(at::kFloat);
    PathLog log;
    const PathScope scope(&log);
    for (int step = 0; step < 2; ++step) {
      log.clear();
      net.engine->begin_step();
      net.forward(x).backward();
      net.engine->finish_step();
    }
    // The outputs of units 0 to 2; that of 3 is saved by unit 4 too, whose backward is near.
    EXPECT_EQ(log.counts()[kStore], 3);
    EXPECT_EQ(log.counts()[kLoad], 3);
    EXPECT_EQ(log.counts()[kUnpack], 2 * 3);
    EXPECT_EQ(log.counts()[kLate], 0);
  });
}

/// Convolutions, batch norm with its buffers, changes in place, pools with integer indices, views, dropout of torch.
TEST(Activations, ChangeNoBitOfAUsersModule) {
  const auto layers = [] {
    torch::nn::Sequential stem(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 8, 3).padding(1)),
                               torch::nn::BatchNorm2d(8), torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)),
                               torch::nn::Dropout(0.3), torch::nn::MaxPool2d(2));
    torch::nn::Sequential middle(torch::nn::Conv2d(8, 8, 3), torch::nn::GELU());
    return std::vector<torch::nn::Sequential>{stem, middle, mlp(24, 48), mlp(24, 48),
                                              torch::nn::Sequential(torch::nn::Linear(24, 3))};
  };
  const auto run = [&](Tier tier) {
    std::vector<at::Tensor> found;
    alone([&](const Mesh& mesh) {
      const auto given = layers();
      const auto flat = [middle = given[1]](at::Tensor x) {
        x = torch::nn::Sequential(middle)->forward(x);
        return x.transpose(1, 3).reshape({-1, 24}) + x.transpose(1, 3).reshape({-1, 24}).roll(1, 0);
      };
      Net net(mesh, given, tier, {{}, flat});
      PathLog log;
      const PathScope scope(&log);
      net.train(random_tensor({6, 2, 16, 16}, 3).to(at::kFloat));
      found = net.gradients();
      for (const at::Tensor& buffer : net.whole->buffers()) found.push_back(buffer.clone());
      EXPECT_EQ(log.counts()[kStore] > 0, tier != Tier::device);
      EXPECT_EQ(log.counts()[kLate], 0);
    });
    return found;
  };
  const auto want = run(Tier::device);
  for (const Tier tier : {Tier::host, Tier::disk}) {
    const auto got = run(tier);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  }
}

/// As torch does without hooks, for what moves, what stays because it is small, and what somebody holds.
TEST(Activations, ASavedTensorThatIsChangedInPlaceIsAnError) {
  for (const int64_t rows : {1, 40}) {
    for (const Tier tier : {Tier::device, Tier::host}) {
      alone([&](const Mesh& mesh) {
        at::Tensor saved;
        const auto keep = [&saved](const at::Tensor& x) {
          saved = x.tanh();
          return saved * 2;
        };
        auto layers = mlps(6);
        Net net(mesh, layers, tier, {{}, keep});
        net.engine->begin_step();
        const at::Tensor loss = net.forward(random_tensor({rows, 48}, 1).to(at::kFloat));
        saved.detach().add_(1);
        EXPECT_THAT(message_of<c10::Error>([&] { loss.backward(); }),
                    HasSubstr("has been modified by an inplace operation"))
            << rows << " rows, " << name(tier);
      });
    }
  }
}

/// Graphs that never have a backward, evaluations and exceptions leave nothing on any tier but blocks for later use.
TEST(Activations, AForwardWithoutBackwardLeavesNothing) {
  std::map<Tier, int64_t> left;
  for (const Tier tier : {Tier::device, Tier::host}) {
    alone([&](const Mesh& mesh) {
      MemoryCounter& counter = MemoryCounter::current();
      Net net(mesh, mlps(6), tier);
      const at::Tensor x = random_tensor({40, 48}, 1).to(at::kFloat);
      const auto step = [&] {
        net.engine->begin_step();
        net.forward(x).backward();
        net.engine->finish_step();
      };
      for (int i = 0; i < 3; ++i) step();  // what the recorded one has stored more is given back
      const auto want = net.gradients();
      const int64_t live = counter.live_bytes(), host = counter.live_bytes(Tier::host);
      for (int i = 0; i < 3; ++i) {
        net.engine->begin_step();
        const int64_t begun = counter.live_bytes();
        { const at::Tensor loss = net.forward(x); }
        EXPECT_EQ(counter.live_bytes(), begun);
        EXPECT_EQ(counter.live_bytes(Tier::host), host);
      }
      const int64_t stored = net.tiers->traffic().to_host;
      { const at::Tensor loss = net.forward(x, 0, Phase::evaluate); }
      EXPECT_EQ(net.tiers->traffic().to_host, stored);
      step();
      const auto got = net.gradients();
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i]));
      left[tier] = counter.live_bytes() - live;
      EXPECT_EQ(counter.live_bytes(Tier::host), host);
    });
  }
  EXPECT_EQ(left[Tier::host], left[Tier::device]) << "what the steps left, none of it is ours";
}

/// A graph that is kept gives the same gradients twice, and may outlive the engine.
TEST(Activations, AGraphCanBeKept) {
  alone([](const Mesh& mesh) {
    at::Tensor loss;
    std::vector<at::Tensor> wants;
    {
      Net net(mesh, mlps(6), Tier::disk);
      at::Tensor x = random_tensor({40, 48}, 1).to(at::kFloat).requires_grad_();
      net.engine->begin_step();
      loss = net.forward(x);
      loss.backward({}, /*retain_graph=*/true);
      const at::Tensor first = x.grad().clone();
      x.mutable_grad() = at::Tensor();
      loss.backward({}, /*retain_graph=*/true);
      EXPECT_TRUE(at::equal(x.grad(), first));
      EXPECT_GT(net.tiers->traffic().from_disk, 0);
    }
    loss = at::Tensor();
  });
}

// ---- without an engine ----

/// A forward that saves its output.
struct Tanh {
  std::shared_ptr<Tiers> tiers = std::make_shared<Tiers>(Tiers::Options{.protects_host = true});
  Activations activations{tiers, Tier::host};
  PathLog log;
  PathScope scope{&log};
  at::Tensor x = random_tensor({40, 48}, 1).to(at::kFloat).requires_grad_();

  at::Tensor forward() {
    const Activations::Scope saves(&activations, 0, 0, true);
    return x.tanh().sum();
  }
  void expect_gradient(const at::Tensor& loss) {
    loss.backward();
    const at::Tensor plain = x.detach().clone().requires_grad_();
    plain.tanh().sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), plain.grad()));
  }
};

TEST(Activations, StayIfTheyAreFetchedWhileTheyAreStored) {
  Tanh tanh;
  const at::Tensor loss = tanh.forward();
  tanh.activations.evict(0, 0);
  tanh.activations.fetch(0, 0);
  tanh.expect_gradient(loss);
  EXPECT_EQ(tanh.log.counts(), (PathCounts{{kStore, 1}, {"activations: kept", 1}, {kUnpack, 1}}));
}

TEST(Activations, AreLoadedByABackwardThatComesTooEarly) {
  Tanh tanh;
  const at::Tensor loss = tanh.forward();
  tanh.activations.evict(0, 0);
  tanh.activations.settle();
  tanh.expect_gradient(loss);
  EXPECT_EQ(tanh.log.counts(), (PathCounts{{kStore, 1}, {kLate, 1}, {kLoad, 1}, {kUnpack, 1}}));
}

/// A storage that others hold at the eviction of its unit moves at the next one of the micro-batch, if it is free then.
TEST(Activations, MoveWhenNobodyElseHoldsThem) {
  Tanh tanh;
  at::Tensor held, loss;
  {
    const Activations::Scope saves(&tanh.activations, 0, 0, true);
    held = tanh.x.tanh();
    loss = held.sum();
  }
  tanh.activations.evict(0, 0);
  tanh.activations.evict(1, 1);
  EXPECT_EQ(tanh.log.counts()[kStore], 0);
  held = at::Tensor();
  tanh.activations.evict(1, 0);
  EXPECT_EQ(tanh.log.counts()[kStore], 1);
  tanh.activations.settle();
  tanh.activations.fetch(0, 0);
  tanh.expect_gradient(loss);
  EXPECT_EQ(tanh.log.counts()[kLoad], 1);
}

/// A storage that two units save comes back for the first of their backwards.
TEST(Activations, ComeBackForTheFirstOfTwoUnits) {
  Tanh tanh;
  at::Tensor held, loss;
  {
    const Activations::Scope saves(&tanh.activations, 0, 0, true);
    held = tanh.x.tanh();
  }
  {
    const Activations::Scope saves(&tanh.activations, 1, 0, true);
    loss = held.square().sum();
  }
  tanh.activations.evict(0, 0);
  held = at::Tensor();
  tanh.activations.evict(1, 0);
  tanh.activations.settle();
  tanh.activations.fetch(1, 0);
  EXPECT_EQ(tanh.log.counts(), (PathCounts{{kStore, 1}, {kLoad, 1}}));
  loss.backward();
  EXPECT_EQ(tanh.log.counts(), (PathCounts{{kStore, 1}, {kLoad, 1}, {kUnpack, 2}}));
}

/// The innermost scope counts: what it does not capture stays.
TEST(Activations, StayInAUnitThatDoesNotMoveThem) {
  Tanh tanh;
  at::Tensor loss;
  {
    const Activations::Scope outer(&tanh.activations, 0, 0, true);
    const Activations::Scope inner(&tanh.activations, 1, 0, false);
    loss = tanh.x.tanh().sum();
  }
  tanh.activations.evict(0, 0);
  tanh.expect_gradient(loss);
  EXPECT_TRUE(tanh.log.counts().empty());
}

// ---- engines of autograd ----

torch::autograd::Engine* replaced = nullptr;

struct OtherEngine final : torch::autograd::Engine {
  ~OtherEngine() override { stop(); }
};

/// What Python's torch does when it is loaded.
TEST(Activations, RefuseAnotherEngineOfAutograd) {
  static OtherEngine other;
  replaced = &torch::autograd::Engine::get_default_engine();
  torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return other; });
  const auto tiers = std::make_shared<Tiers>(Tiers::Options{});
  EXPECT_THAT(message_of<UsageError>([&] { const Activations activations(tiers, Tier::host); }),
              HasSubstr("another autograd engine is installed"));
  torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return *replaced; });
  const Activations activations(tiers, Tier::host);
}

}  // namespace
}  // namespace caravan::testing::activations_test
