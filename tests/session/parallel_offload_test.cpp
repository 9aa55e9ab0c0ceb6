// parallelize() with offload and tiles: modules of one's own and models of the library, on ranks that are threads.
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

/// The same values on every rank.
Trainable make_net() {
  Net net;
  const at::NoGradGuard no_grad;
  double seed = 0;
  for (at::Tensor& p : net->parameters()) {
    p.copy_(at::arange(p.numel(), at::kDouble).add(++seed).mul(0.7).sin().mul(0.5).view(p.sizes()));
  }
  const auto first = [first = net->first](const at::Tensor& x) mutable {
    return first(x.to(first->weight.scalar_type()));  // of mixed_precision()
  };
  return in_units(net, {unit("first", {net->first.ptr()}, first), unit("norm", net->norm), unit("gate", net->gate),
                        unit("head", net->head)});
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
};

/// What a run leaves: the parameters of each rank by name, losses and norms; and what shows how it got there.
struct Result {
  std::map<std::string, at::Tensor> tensors{};
  std::map<std::string, int64_t> paths{};
  MemoryCounter::Moved moved{};
  std::array<int64_t, kNumTiers> parameters{}, gradients{}, moments{};  ///< live bytes
};

void add_parameters(Result& result, ParallelModel& model) {
  const FlatState& flat = model.engine().state();
  for (const Parameter* parameter : model.module().parameters()) {
    const std::string name = parameter->name() + " on " + std::to_string(model.mesh().rank());
    result.tensors[name] = flat.layout.read(flat.values, *parameter).clone();
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

/// A step, its loss and its norm, whose clipping changes every step.
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
  updates.step();
  return {loss, norm};
}

Result run(const Case& one) {
  Result result;
  std::mutex lock;
  PathLog paths;
  const std::string error = on_mesh(one.axes, [&](const Mesh& mesh) {
    const PathScope counted(&paths);
    ParallelModel model(make_net(), mesh, one.techniques, {.micro_batches = one.micro_batches, .average = true});
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
    result.moved = memory.moved();
    for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
      const auto at = static_cast<size_t>(tier);
      result.parameters[at] = memory.live_bytes(MemoryKind::parameters, tier);
      result.gradients[at] = memory.live_bytes(MemoryKind::gradients, tier);
      result.moments[at] = memory.live_bytes(MemoryKind::optimizer, tier);
    }
  });
  EXPECT_EQ(error, "");
  result.paths = paths.counts();
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

/// The last rank of a run has its state where it was told to, and a step has moved it.
void expect_away(const Result& got, const std::string& kind, Tier tier) {
  const auto at = static_cast<size_t>(tier);
  const bool is_disk = tier == Tier::disk, is_all = kind == "all";
  if (kind == "parameters" || is_all) {
    EXPECT_GT(got.parameters[at], 0);
    EXPECT_GT(got.paths.at("schedule: fetch"), 0);
    EXPECT_GT(got.moved.from_host, 0);
  }
  if (kind == "gradients" || is_all) {
    EXPECT_GT(got.gradients[at], 0);
    EXPECT_GT(got.paths.at(is_disk ? "gradients stored on disk" : "gradients stored on host"), 0);
  }
  if (kind == "activations" || is_all) {
    EXPECT_GT(got.paths.at("schedule: evict"), 0);
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
              EXPECT_GT(got.paths.at("optimizer on the host"), 0);
            }
          }
        }
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
  const Rehearsal without = rehearse(make_net(), {.dp = 2}, {fsdp()}, batch, {}, {.average = true});
  const Rehearsal with = rehearse(make_net(), {.dp = 2}, {fsdp(), tiers("all", "disk")}, batch, {}, {.average = true});
  EXPECT_LT(with.peak.total(), without.peak.total());
  EXPECT_GT(with.disk_bytes, 0);
  EXPECT_THAT(inspect(make_net(), {.dp = 2}, {fsdp(), tiers("all", "disk")}, batch, {}, {.average = true}),
              HasSubstr("on disk"));
}

}  // namespace
}  // namespace caravan::testing::parallel_offload_test
