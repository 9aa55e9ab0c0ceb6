// parallelize() with offload and tiles: modules of one's own and models of the library, on ranks that are threads.
#include <algorithm>
#include <cstdlib>
#include <gmock/gmock.h>
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/models/model.h"
#include "caravan/optim/optimizer.h"
#include "caravan/session/trials.h"
#include "tests/data/support.h"
#include "tests/needs.h"
#include "tests/techniques/product.h"

namespace caravan::testing::parallel_offload_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 192, kWidth = 48;  // a micro-batch of a rank has activations that move
constexpr int kSteps = 3;

/// A layer of nobody's library, which uses a parameter of its own twice.
struct GateImpl : torch::nn::Module {
  torch::nn::Linear proj{register_module("proj", torch::nn::Linear(kWidth, kWidth))};
  at::Tensor scale = register_parameter("scale", at::zeros({kWidth}));
  at::Tensor forward(const at::Tensor& x) { return x * scale + proj(x).tanh() * scale; }
};
TORCH_MODULE(Gate);

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, kWidth))};
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))};
  Gate gate{register_module("gate", Gate())};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kWidth, 5))};
};
TORCH_MODULE(Net);

/// The same values on every rank. Of one that is trained `partly` the norm is frozen, and the gate does not use all of
/// its parameters.
Trainable make_net(bool partly = false) {
  Net net;
  const at::NoGradGuard no_grad;
  double seed = 0;
  for (at::Tensor& p : net->parameters()) {
    p.copy_(at::arange(p.numel(), at::kDouble).add(++seed).mul(0.7).sin().mul(0.5).view(p.sizes()));
  }
  if (partly) net->norm->weight.set_requires_grad(false);
  if (partly) net->norm->bias.set_requires_grad(false);
  const auto first = [first = net->first](const at::Tensor& x) mutable {
    return first(x.to(first->weight.scalar_type()));  // of mixed_precision()
  };
  const auto gate = [gate = net->gate, partly](const at::Tensor& x) mutable {
    return partly ? x * gate->scale : gate(x);
  };
  return in_units(net, {unit("first", {net->first.ptr()}, first), unit("norm", net->norm),
                        unit("gate", {net->gate.ptr()}, gate), unit("head", net->head)});
}

at::Tensor mean_of(const at::Tensor& output, const at::Tensor& y) {
  return at::cross_entropy_loss(output.to(at::kFloat), y);
}
at::Tensor batch_x(int step) { return at::arange(kRows * 6, at::kFloat).add(step).mul(0.37).sin().view({kRows, 6}); }
at::Tensor batch_y(int step) { return at::arange(kRows, at::kLong).add(step).remainder(5); }

/// Updates a model, by an optimizer of torch or of the library.
struct Updates {
  std::unique_ptr<torch::optim::Optimizer> of_torch{};
  std::unique_ptr<Optimizer> own{};
  void step() const { own ? own->step(1e-2) : static_cast<void>(of_torch->step()); }
  void attach_to(ParallelModel& model) const { own ? model.attach(*own) : model.attach(*of_torch); }
};

Updates make_updates(const std::string& kind, ParallelModel& model) {
  if (kind == "AdamW") return {.own = std::make_unique<AdamW>(model.engine().state())};
  if (kind == "Sgd") return {.own = std::make_unique<Sgd>(model.engine().state(), SgdOptions{.momentum = 0.9})};
  if (kind == "torch AdamW") {
    return {.of_torch = std::make_unique<torch::optim::AdamW>(model.parameters(), torch::optim::AdamWOptions(1e-2))};
  }
  return {.of_torch =
              std::make_unique<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9))};
}

struct Case {
  std::vector<AxisSize> axes{{"dp", 1}};
  std::vector<Technique> techniques{};
  int64_t micro_batches = 1;
  std::string optimizer = "AdamW";
  bool own_loop = false;
  bool partly = false;
};

/// What a run leaves: the parameters of each rank by name, losses and norms; and what shows how it got there.
struct Result {
  std::string error{};
  std::map<std::string, at::Tensor> tensors{};
  std::map<std::string, int64_t> paths{};
  MemoryCounter::Moved moved{};
  std::array<int64_t, kNumTiers> parameters{}, gradients{}, moments{};  ///< live bytes, of all ranks
  int64_t count(const std::string& path) const { return paths.contains(path) ? paths.at(path) : 0; }
};

void add_parameters(Result& result, ParallelModel& model) {
  const FlatState& flat = model.engine().state();
  for (const Parameter* parameter : model.module().parameters()) {
    const std::string name = parameter->name() + " on " + std::to_string(model.mesh().rank());
    result.tensors[name] = flat.layout.read(flat.values, *parameter).clone();
    if (!parameter->requires_grad()) continue;
    result.tensors["gradient of " + name] = flat.layout.read(flat.gradients, *parameter).clone();
  }
}

std::string on_mesh(const std::vector<AxisSize>& axes, const std::function<void(const Mesh&)>& body) {
  int ranks = 1;
  for (const AxisSize& axis : axes) ranks *= axis.size;
  try {
    run_thread_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) { body(Mesh::create(world, axes)); });
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// A step, its loss, and the sum of its norms before and after the clipping that every step has.
std::pair<double, double> step_once(const Case& one, ParallelModel& model, const Updates& updates, int step) {
  const at::Tensor x = rows_of(batch_x(step), model.mesh()), y = rows_of(batch_y(step), model.mesh());
  double loss = 0;
  if (one.own_loop) {
    const auto xs = x.tensor_split(one.micro_batches), ys = y.tensor_split(one.micro_batches);
    for (size_t m = 0; m < xs.size(); ++m) {
      const at::Tensor part = mean_of(model(xs[m]), ys[m]);
      part.backward();
      loss += part.item<double>();
    }
  } else {
    loss = model.step(x, y, mean_of);
  }
  const double norm = model.clip_grad_norm(0.3);
  const double clipped = model.clip_grad_norm(0.3);
  updates.step();
  return {loss, norm + clipped};
}

Result try_run(const Case& one) {
  Result result;
  std::mutex lock;
  PathLog paths;
  const std::string error = on_mesh(one.axes, [&](const Mesh& mesh) {
    const PathScope counted(&paths);
    ParallelModel model(make_net(one.partly), mesh, one.techniques,
                        {.micro_batches = one.micro_batches, .average = true, .find_unused_parameters = one.partly});
    const Updates updates = make_updates(one.optimizer, model);
    std::vector<double> numbers;
    for (int step = 0; step < kSteps; ++step) {
      const auto [loss, norm] = step_once(one, model, updates, step);
      numbers.insert(numbers.end(), {loss, norm});
      const at::NoGradGuard no_grad;
      numbers.push_back(model.evaluate(batch_x(9)).sum().item<double>());  // an evaluation between steps
    }
    const std::lock_guard guard(lock);
    add_parameters(result, model);
    result.tensors["numbers on " + std::to_string(mesh.rank())] = at::tensor(numbers, at::kDouble);
    const MemoryCounter& memory = MemoryCounter::current();
    const MemoryCounter::Moved moved = memory.moved();
    result.moved.to_host += moved.to_host;
    result.moved.from_host += moved.from_host;
    result.moved.to_disk += moved.to_disk;
    result.moved.from_disk += moved.from_disk;
    for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
      const auto at = static_cast<size_t>(tier);
      result.parameters[at] += memory.live_bytes(MemoryKind::parameters, tier);
      result.gradients[at] += memory.live_bytes(MemoryKind::gradients, tier);
      result.moments[at] += memory.live_bytes(MemoryKind::optimizer, tier);
    }
  });
  result.error = error;
  result.paths = paths.counts();
  return result;
}

Result run(const Case& one) {
  Result result = try_run(one);
  EXPECT_EQ(result.error, "");
  return result;
}

void expect_equal(const Result& got, const Result& want) {
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, tensor] : want.tensors) EXPECT_TRUE(at::equal(got.tensors.at(name), tensor)) << name;
}

class ParallelOffloadTest : public ::testing::Test {
 protected:
  // Host memory may be touched by copies and the optimizer only: else the process dies.
  ParallelOffloadTest() { setenv("CARAVAN_PROTECT_HOST", "1", 1); }
  ~ParallelOffloadTest() override { unsetenv("CARAVAN_PROTECT_HOST"); }

  Setting tiers(const std::string& kind, const std::string& tier) const {
    OffloadChoice choice;
    for (const auto& [name, place] : {std::pair("parameters", &choice.parameters),
                                      {"gradients", &choice.gradients},
                                      {"optimizer", &choice.optimizer},
                                      {"activations", &choice.activations}}) {
      if (kind == name || kind == "all") *place = tier;
    }
    if (tier == "disk") choice.disk_dirs = {folder_ / "tiers"};
    return offload(choice);
  }

  TemporaryFolder folder_;
};

/// The ranks of a run have their state where they were told to, and steps have moved it.
void expect_away(const Result& got, const std::string& kind, Tier tier) {
  const auto at = static_cast<size_t>(tier);
  const bool is_disk = tier == Tier::disk, is_all = kind == "all";
  if (kind == "parameters" || is_all) {
    EXPECT_GT(got.parameters[at], 0);
    EXPECT_GT(got.count("parameters loaded from " + std::string(name(tier))), 0);
    EXPECT_GT(got.moved.from_host, 0);
  }
  if (kind == "gradients" || is_all) {
    EXPECT_GT(got.gradients[at], 0);
    EXPECT_GT(got.count("gradients stored on " + std::string(name(tier))), 0);
  }
  if (kind == "activations" || is_all) {
    EXPECT_GT(got.count("activations: store"), 0);
    EXPECT_GT(got.count("activations: load"), 0);
    EXPECT_GT(got.moved.to_host, 0);
  }
  if (kind == "optimizer" || is_all) {
    EXPECT_GT(got.parameters[at], 0);
  }
  if (is_disk) {
    EXPECT_GT(got.moved.to_disk, 0);
    EXPECT_GT(got.moved.from_disk, 0);
  }
}

TEST_F(ParallelOffloadTest, EveryKindOnEachTierHasTheBitsOfNone) {
  needs({"ddp", "zero1", "zero2", "zero3"});
  const std::vector<std::pair<const char*, Technique>> techniques{
      {"ddp", ddp()}, {"zero1", zero()}, {"zero2", zero({.stage = 2})}, {"fsdp", fsdp()}};
  int count = 0;
  for (const int ranks : {1, 2}) {
    for (const auto& [name, technique] : techniques) {
      for (const int64_t micro_batches : {1, 3}) {
        Case one{.axes = {{"dp", ranks}}, .techniques = {technique}, .micro_batches = micro_batches};
        std::map<std::pair<std::string, bool>, Result> without;
        for (const char* kind : {"parameters", "gradients", "optimizer", "activations", "all"}) {
          for (const Tier tier : {Tier::host, Tier::disk}) {
            // torch's optimizers update what has memory.
            const bool takes_torch = tier == Tier::host || std::string(kind) == "activations";
            const std::vector<std::string> optimizers =
                takes_torch ? std::vector<std::string>{"torch AdamW", "AdamW", "torch SGD", "Sgd"}
                            : std::vector<std::string>{"AdamW", "Sgd"};
            one.optimizer = optimizers[static_cast<size_t>(count) % optimizers.size()];
            one.own_loop = count++ % 3 == 0;
            SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks) + " ranks, " + kind + " on " +
                         std::string(caravan::name(tier)) + ", " + std::to_string(micro_batches) + " micro-batches, " +
                         one.optimizer + (one.own_loop ? ", own loop" : ""));
            const auto [found, is_new] = without.try_emplace({one.optimizer, one.own_loop});
            if (is_new) found->second = run(one);
            Case with = one;
            with.techniques.push_back(tiers(kind, std::string(caravan::name(tier))));
            const Result got = run(with);
            expect_equal(got, found->second);
            expect_away(got, kind, tier);
            const bool is_own = one.optimizer == "AdamW" || one.optimizer == "Sgd";
            if (is_own && (std::string(kind) == "optimizer" || std::string(kind) == "all")) {
              EXPECT_GT(got.moments[static_cast<size_t>(tier)], 0);
              EXPECT_GT(got.count("optimizer on the host"), 0);
            }
          }
        }
      }
    }
  }
}

TEST_F(ParallelOffloadTest, WithFrozenAndUnusedParameters) {
  needs({"ddp", "zero1", "zero3"});
  for (const Technique& technique : {Technique(ddp()), Technique(zero()), Technique(fsdp())}) {
    for (const char* tier : {"host", "disk"}) {
      for (const bool own_loop : {false, true}) {
        SCOPED_TRACE(std::get<Setting>(technique).name() + " on " + tier + (own_loop ? ", own loop" : ""));
        const Case one{.axes = {{"dp", 2}},
                       .techniques = {technique},
                       .micro_batches = 2,
                       .optimizer = own_loop ? "Sgd" : "AdamW",
                       .own_loop = own_loop,
                       .partly = true};
        Case with = one;
        with.techniques.push_back(tiers("all", tier));
        expect_equal(run(with), run(one));
      }
    }
  }
}

TEST_F(ParallelOffloadTest, BesidePipelinesRecomputationAndSixteenBits) {
  needs({"1f1b", "zb-h1", "zero3", "zero2", "full"});
  const std::vector<AxisSize> stages{{"pp", 2}, {"dp", 1}};
  const std::vector<Case> cases{
      {.axes = stages, .techniques = {pipeline({.micro_batches = 4})}},
      {.axes = stages, .techniques = {pipeline({.schedule = "zb-h1", .micro_batches = 4}), fsdp()}, .optimizer = "Sgd"},
      {.axes = {{"dp", 2}}, .techniques = {fsdp(), recompute()}, .micro_batches = 2},
      {.axes = {{"dp", 2}}, .techniques = {zero({.stage = 2}), recompute({.modules = {"gate"}})}, .own_loop = true},
      {.axes = {{"dp", 2}}, .techniques = {zero({.stage = 2}), mixed_precision()}, .micro_batches = 2}};
  for (const Case& one : cases) {
    for (const char* tier : {"host", "disk"}) {
      SCOPED_TRACE(to_string(one.axes) + ", " + tier);
      Case with = one;
      with.techniques.push_back(tiers("all", tier));
      expect_equal(run(with), run(one));
    }
  }
}

/// Steps 1 to 4, of which the first two run with other tiers than the last two, which another model does.
TEST_F(ParallelOffloadTest, CheckpointsGoBetweenTiersBitForBit) {
  needs({"zero3"});
  const auto run_to = [&](const std::string& folder, const std::optional<Setting>& away, const std::string& optimizer,
                          int64_t end) {
    Result result;
    std::mutex lock;
    const Case one{.axes = {{"dp", 2}}, .micro_batches = 2, .optimizer = optimizer};
    EXPECT_EQ(on_mesh(one.axes,
                      [&](const Mesh& mesh) {
                        std::vector<Technique> techniques{fsdp()};
                        if (away) techniques.emplace_back(*away);
                        ParallelModel model(make_net(), mesh, techniques, {.micro_batches = 2, .average = true});
                        const Updates updates = make_updates(optimizer, model);
                        updates.attach_to(model);
                        Progress now = model.load(folder_ / folder);
                        for (; now.step < end; ++now.step) step_once(one, model, updates, static_cast<int>(now.step));
                        model.save(folder_ / folder, now);
                        const std::lock_guard guard(lock);
                        add_parameters(result, model);
                      }),
              "");
    return result;
  };
  const std::vector<std::optional<Setting>> places{std::nullopt, tiers("all", "host"), tiers("all", "disk")};
  for (const char* optimizer : {"AdamW", "Sgd", "torch AdamW"}) {
    const size_t used = std::string(optimizer) == "torch AdamW" ? 2 : 3;
    const Result whole = run_to(std::string(optimizer) + " whole", std::nullopt, optimizer, 4);
    for (size_t from = 0; from < used; ++from) {
      for (size_t to = 0; to < used; ++to) {
        const std::string folder = optimizer + std::to_string(from) + std::to_string(to);
        run_to(folder, places[from], optimizer, 2);
        SCOPED_TRACE(folder);
        expect_equal(run_to(folder, places[to], optimizer, 4), whole);
      }
    }
  }
}

/// The error of making a model, and of `use`.
std::string error_of(const std::vector<Technique>& techniques, const std::function<void(ParallelModel&)>& use = {}) {
  return on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    ParallelModel model(make_net(), mesh, techniques, {.average = true});
    if (use) use(model);
  });
}

void step_of(ParallelModel& model) {
  model.step(rows_of(batch_x(0), model.mesh()), rows_of(batch_y(0), model.mesh()), mean_of);
}

TEST_F(ParallelOffloadTest, TorchCannotUpdateWhatIsOnDisk) {
  needs({"ddp"});
  for (const char* kind : {"parameters", "gradients", "optimizer"}) {
    const Setting away = tiers(kind, "disk");
    const std::string what = std::string(kind) == "gradients" ? "gradients" : "parameters";
    EXPECT_THAT(error_of({away}, [](ParallelModel& model) { model.parameters(); }),
                AllOf(HasSubstr(what + " rest on disk"), HasSubstr("AdamW optimizer(model.engine().state())")));
    EXPECT_THAT(error_of({away}, [](ParallelModel& model) { model.whole_parameters(); }), HasSubstr("rest on disk"));
    // Who gets at them all the same does not train nothing, nor with garbage.
    EXPECT_THAT(error_of({away},
                         [](ParallelModel& model) {
                           torch::optim::SGD optimizer(model.engine().parameters(), 0.1);
                           step_of(model);
                           optimizer.step();
                         }),
                AllOf(HasSubstr(what == "gradients" ? "[gradient] head." : "[parameter] head."),
                      HasSubstr("rests on disk"), HasSubstr("caravan/optim/optimizer.h")))
        << kind;
    EXPECT_THAT(error_of({away},
                         [](ParallelModel& model) {
                           torch::optim::SGD optimizer(model.engine().parameters(), 0.1);
                           model.attach(optimizer);
                         }),
                AllOf(HasSubstr("[parallelize] attach"), HasSubstr("rest on disk")));
  }
}

TEST_F(ParallelOffloadTest, ErrorsNameTheWayOut) {
  needs({"ddp", "zero3"});
  EXPECT_THAT(error_of({Setting("offload", "offload_tiers", {{"optimizer", "auto"}, {"device_budget", "1G"}})}),
              AllOf(HasSubstr("offload.optimizer: is \"auto\""), HasSubstr("inspect()")));
  EXPECT_THAT(error_of({offload({.optimizer = "disk"})}), AllOf(HasSubstr("disk_dirs"), HasSubstr("local disks")));
  EXPECT_THAT(error_of({tiers("all", "host"), tiers("all", "host")}), HasSubstr("offload: is chosen twice"));
  EXPECT_THAT(error_of({fsdp({.reshard_after_forward = false}), tiers("parameters", "host")}),
              HasSubstr("gathered again for backward"));
  EXPECT_THAT(error_of({tiling()}), AllOf(HasSubstr("torch::nn::Module are whole tensors"), HasSubstr("in_units")));
  EXPECT_EQ(error_of({tiling({.tiles = 1})}), "");
  EXPECT_THROW(offload({.optimizer = "hots"}), UsageError);
  EXPECT_THROW(offload({.optimizer = "host", .disk_dirs = {"x"}}), UsageError);
  EXPECT_THROW(offload({.device_budget = "much"}), UsageError);
}

TEST_F(ParallelOffloadTest, AStepStaysInsideTheBudget) {
  needs({"zero3"});
  const auto train = [&](const std::string& budget, const OffloadChoice& of = {}) {
    OffloadChoice choice = of;
    choice.device_budget = budget;
    return error_of({fsdp(), offload(choice)}, [](ParallelModel& model) {
      AdamW optimizer(model.engine().state());
      step_of(model);
      optimizer.step(1e-2);
    });
  };
  EXPECT_EQ(train("10M"), "");
  EXPECT_THAT(train("1K"),
              AllOf(HasSubstr("offload.device_budget"), HasSubstr("before the first step, but may use 1")));
  EXPECT_THAT(train("60K"), AllOf(HasSubstr("forward of"), HasSubstr("device_budget")));
  EXPECT_EQ(on_mesh({{"dp", 1}},
                    [](const Mesh& mesh) {
                      { const ParallelModel model(make_net(), mesh, {offload({.device_budget = "1G"})}); }
                      EXPECT_EQ(MemoryCounter::current().budget(), 0) << "the limit is the model's";
                      const ParallelModel model(make_net(), mesh, {offload({.device_budget = "1G"})});
                      EXPECT_THROW(ParallelModel(make_net(), mesh, {offload({.device_budget = "1G"})}), UsageError);
                    }),
            "");
}

TEST_F(ParallelOffloadTest, OptimizersAreNotMixedUp) {
  needs({"ddp"});
  const auto with = [&](const std::string& kind, const std::function<void(ParallelModel&)>& use) {
    return error_of({}, [&](ParallelModel& model) {
      const Updates updates = make_updates(kind, model);
      updates.attach_to(model);
      step_of(model);
      updates.step();
      use(model);
    });
  };
  const auto save = [&](const std::string& folder) {
    return [&, folder](ParallelModel& model) { model.save(folder_ / folder, {.step = 1}); };
  };
  const auto load = [&](const std::string& folder) {
    return [&, folder](ParallelModel& model) { model.load(folder_ / folder); };
  };
  EXPECT_EQ(with("AdamW", save("own")), "");
  EXPECT_EQ(with("torch AdamW", save("torch")), "");
  EXPECT_THAT(with("torch AdamW", load("own")),
              HasSubstr("its state is that of one of this library, but the optimizer is adamw"));
  EXPECT_THAT(with("AdamW", load("torch")),
              HasSubstr("its state is that of adamw, but the optimizer is one of this library"));
  EXPECT_THAT(with("Sgd", load("own")), HasSubstr("optimizer.exp_avg"));
  EXPECT_EQ(error_of({}, load("own")), "") << "the module alone";
  EXPECT_THAT(with("AdamW",
                   [&](ParallelModel& model) {
                     AdamW second(model.engine().state());
                     model.attach(second);
                   }),
              HasSubstr("the model has an optimizer"));
}

/// Of the library, in tiles or not, on the device or not: checkpoints go between all of them.
TEST_F(ParallelOffloadTest, ModelsOfTheLibraryInTiles) {
  needs({"zero3"});
  const ModelConfig config{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 11, .dropout = 0.1};
  const at::Tensor ids = at::arange(8 * 8, at::kLong).mul(7).remainder(11).view({8, 8});
  const at::Tensor labels = at::arange(8 * 8, at::kLong).mul(5).remainder(11).view({8, 8});
  const auto run_to = [&](const std::string& folder, const std::vector<Technique>& more, const std::string& optimizer,
                          int64_t end, int64_t tiles) {
    std::vector<double> losses;
    std::mutex lock;
    EXPECT_EQ(on_mesh({{"dp", 2}},
                      [&](const Mesh& mesh) {
                        const auto net = make_model(config);
                        std::vector<Technique> techniques{Setting("data_parallel", "zero3", {{"share", "off"}})};
                        techniques.insert(techniques.end(), more.begin(), more.end());
                        ParallelModel model(*net, mesh, techniques, {.micro_batches = 2});
                        EXPECT_EQ(model.module().parameters().size() > 60, tiles > 1);
                        const Updates updates = make_updates(optimizer, model);
                        updates.attach_to(model);
                        Progress now = model.load(folder_ / folder);
                        std::vector<double> own;
                        for (; now.step < end; ++now.step) {
                          own.push_back(model.step(ids, labels));
                          own.push_back(model.clip_grad_norm(1));
                          updates.step();
                        }
                        model.save(folder_ / folder, now);
                        const std::lock_guard guard(lock);
                        losses = own;
                      }),
              "");
    return losses;
  };
  const std::vector<Technique> tiled{tiling({.tiles = 3})};
  for (const char* optimizer : {"AdamW", "torch AdamW", "torch SGD"}) {
    SCOPED_TRACE(optimizer);
    const std::string name = optimizer;
    const std::vector<double> whole = run_to(name + " whole", {}, optimizer, 4, 1);
    const std::vector<double> in_tiles = run_to(name + " tiles", tiled, optimizer, 4, 3);
    std::vector<Technique> away = tiled;
    away.emplace_back(tiers("all", name == "AdamW" ? "disk" : "host"));
    EXPECT_EQ(run_to(name + " away", away, optimizer, 4, 3), in_tiles);
    run_to(name + " from tiles", tiled, optimizer, 2, 3);
    const std::vector<double> second = run_to(name + " from tiles", {}, optimizer, 4, 1);
    run_to(name + " from whole", {}, optimizer, 2, 1);
    const std::vector<double> third = run_to(name + " from whole", away, optimizer, 4, 3);
    ASSERT_EQ(whole.size(), 8U);
    ASSERT_EQ(second.size(), 4U);
    ASSERT_EQ(third.size(), 4U);
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(in_tiles[i] / whole[i], 1, 1e-4) << i;  // sums in another order
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(second[i] / whole[4 + i], 1, 1e-4) << i;
      EXPECT_NEAR(third[i] / whole[4 + i], 1, 1e-4) << i;
    }
  }
}

TEST_F(ParallelOffloadTest, ProvesAndRehearsesIt) {
  needs({"zero3"});
  const StepData batch{batch_x(0), batch_y(0), mean_of};
  EXPECT_EQ(on_mesh({{"dp", 2}},
                    [&](const Mesh& mesh) {
                      const ModuleProof proof = prove(make_net(), mesh, {fsdp(), tiers("all", "disk")}, batch,
                                                      {.micro_batches = 2, .average = true});
                      EXPECT_TRUE(proof.holds()) << proof.to_string();
                      EXPECT_EQ(proof.num_parameters, 9);
                    }),
            "");
  const MakeOptimizer adamw = [](FlatState& state) { return std::make_unique<AdamW>(state); };
  const auto of = [&](const std::vector<Technique>& techniques, const MakeOptimizer& make) {
    return rehearse(make_net(), {.dp = 2}, techniques, batch, make, {.average = true});
  };
  const Setting away = tiers("all", "disk");
  EXPECT_LT(of({fsdp(), away}, adamw).peak.total(), of({fsdp()}, adamw).peak.total());
  const int64_t values = 6 * kWidth + kWidth * kWidth + 5 * kWidth + 5 * kWidth + 5;
  EXPECT_GE(of({fsdp(), away}, adamw).disk_bytes, 4 * values * 4 / 2) << "values, gradients and two moments";
  EXPECT_LE(of({fsdp(), away}, {}).disk_bytes, of({fsdp(), away}, adamw).disk_bytes - 2 * 4 * values / 2);
  EXPECT_THAT(inspect(make_net(), {.dp = 2}, {fsdp(), away}, batch, adamw, {.average = true}), HasSubstr("on disk"));
  const MakeOptimizer of_torch = [](auto parameters) { return std::make_unique<torch::optim::AdamW>(parameters); };
  EXPECT_THROW(of({fsdp(), away}, of_torch), UsageError);
  EXPECT_GT(of({fsdp(), tiers("all", "host")}, of_torch).host.total(), 0);
}

/// Each tier of each kind, and of all, beside all of these. `ctest -L product` runs it.
TEST_F(ParallelOffloadTest, DISABLED_EveryCombination) {
  const std::vector<std::pair<const char*, Technique>> data{
      {"ddp", ddp()}, {"zero1", zero()}, {"zero2", zero({.stage = 2})}, {"zero3", fsdp()}};
  int64_t ran = 0, total = 0;
  std::map<std::string, int64_t> refusals;
  for (const auto& [name, technique] : data) {
    for (int choice = 0; choice < 64; ++choice) {
      const bool accumulates = choice & 1, recomputes = choice & 2, has_stages = choice & 4, is_split = choice & 8;
      Case one{.axes = {{"dp", 2}},
               .techniques = {technique},
               .micro_batches = accumulates ? 4 : 3,
               .optimizer = choice & 16 ? "torch AdamW" : "AdamW",
               .own_loop = (choice & 32) != 0};
      if (has_stages) one.axes.insert(one.axes.begin(), {"pp", 2});
      if (has_stages) one.techniques.push_back(pipeline());
      if (is_split) one.axes.push_back({"tp", 2});
      if (recomputes) one.techniques.push_back(recompute());
      if (!accumulates && !has_stages) one.micro_batches = 1;
      const Result without = try_run(one);
      for (const char* kind : {"parameters", "gradients", "optimizer", "activations", "all"}) {
        for (const Tier tier : {Tier::host, Tier::disk}) {
          SCOPED_TRACE(std::string(name) + " " + std::to_string(choice) + ", " + kind + " on " +
                       std::string(caravan::name(tier)));
          Case with = one;
          with.techniques.push_back(tiers(kind, std::string(caravan::name(tier))));
          const Result got = without.error.empty() ? try_run(with) : without;
          ++total;
          if (got.error.empty()) {
            ++ran;
            expect_equal(got, without);
            expect_away(got, kind, tier);
          } else {
            EXPECT_THAT(got.error, HasSubstr("do: "));
            ++refusals[got.error.substr(0, got.error.find('\n'))];
          }
        }
      }
    }
  }
  const int64_t refused = print_product(refusals, total, ran);
  EXPECT_EQ(ran + refused, total);
  const std::vector<std::string> known{"[strategy] model: only models of this library",
                                       "[parallelize] forward: ", "[parallelize] parameters: parameters rest on disk",
                                       "[parallelize] parameters: gradients rest on disk"};
  for (const auto& [reason, count] : refusals) {
    EXPECT_TRUE(std::ranges::any_of(known, [&](const std::string& text) { return reason.starts_with(text); }))
        << reason;
  }
}

}  // namespace
}  // namespace caravan::testing::parallel_offload_test
