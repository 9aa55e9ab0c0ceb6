// Optimizers of one's own that need whole matrices, under techniques that shard them, against one process of plain
// torch; and schedulers that follow a metric.
#include <algorithm>
#include <gmock/gmock.h>
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/optim/optimizer.h"
#include "caravan/session/trials.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"
#include "tests/needs.h"

namespace caravan::testing::whole_parameters_test {
namespace {

namespace fs = std::filesystem;
namespace optim = torch::optim;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kRows = 24;
/// Of fp32 and up to 8 steps, each of which adds up rows in another order. Measured: up to 1.4e-6.
constexpr double kTolerance = 2e-6;

/// Every parameter has a shape of its own, by which it is found.
torch::nn::Sequential make_net(bool has_images = false) {
  torch::nn::Sequential net(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 7), torch::nn::Tanh(),
                            torch::nn::Linear(7, 5));
  if (has_images) {
    net = torch::nn::Sequential(torch::nn::Unflatten(torch::nn::UnflattenOptions(1, {1, 3})),
                                torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 6, 2)), torch::nn::Flatten(),
                                torch::nn::Linear(12, 5));
  }
  const at::NoGradGuard no_grad;
  double shift = 0;
  for (at::Tensor& weight : net->parameters()) {
    weight.copy_(at::arange(weight.numel(), at::kFloat).add(shift += 0.7).sin().mul(0.5).view(weight.sizes()));
  }
  return net;
}

at::Tensor mean_of(const at::Tensor& output, const at::Tensor& y) { return at::cross_entropy_loss(output, y); }

std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor x = at::arange(kRows * 3, at::kFloat).add(static_cast<double>(step)).mul(0.37).sin();
  return {x.view({kRows, 3}), at::arange(kRows, at::kLong).add(step).remainder(5)};
}

/// Muon with momentum for what has two dims, SGD for the rest.
struct MyMuon : optim::Optimizer {
  static constexpr bool is_elementwise = false;
  explicit MyMuon(std::vector<at::Tensor> parameters)
      : Optimizer({optim::OptimizerParamGroup(std::move(parameters))}, std::make_unique<optim::SGDOptions>(0.05)) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const at::NoGradGuard no_grad;
    ++steps;
    for (at::Tensor& p : param_groups()[0].params()) {
      at::Tensor& v = velocity[p.unsafeGetTensorImpl()];
      if (!v.defined()) v = at::zeros_like(p);
      v.mul_(0.9).add_(p.grad());
      p.sub_(p.dim() < 2 ? v : orthogonal(v), param_groups()[0].options().get_lr());
    }
    return {};
  }
  void visit_state(StateVisitor& visit) {
    visit.number("steps", steps);
    for (at::Tensor& p : param_groups()[0].params()) visit.moment("velocity", p, velocity[p.unsafeGetTensorImpl()]);
  }
  static at::Tensor orthogonal(at::Tensor x) {
    x = x / (x.norm() + 1e-7);
    for (int i = 0; i < 3; ++i) {
      const at::Tensor square = x.mm(x.t());
      x = 1.875 * x + (-1.25 * square + 0.375 * square.mm(square)).mm(x);
    }
    return x;
  }

  std::map<void*, at::Tensor> velocity{};
  int64_t steps = 0;
};

/// Shampoo (Gupta et al., 2018) for matrices, SGD for the rest: what it keeps of [m, n] are [m, m] and [n, n].
struct Shampoo : optim::Optimizer {
  static constexpr bool is_elementwise = false;
  struct State {
    at::Tensor left{}, right{};  ///< fp64
    at::Tensor count{};          ///< int64, without dims
    at::Tensor half{};           ///< bf16: count / 2, twice
  };
  explicit Shampoo(std::vector<at::Tensor> parameters)
      : Optimizer({optim::OptimizerParamGroup(std::move(parameters))}, std::make_unique<optim::SGDOptions>(0.05)) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : param_groups()[0].params()) {
      State& of = states[p.unsafeGetTensorImpl()];
      const at::Tensor g = p.dim() == 2 ? p.grad().to(at::kDouble) : at::Tensor();
      if (p.dim() == 2 && !of.left.defined()) {
        of.left = at::eye(p.size(0), at::kDouble).mul(0.01);
        of.right = at::eye(p.size(1), at::kDouble).mul(0.01);
        of.count = at::zeros({}, at::kLong);
        of.half = at::zeros({2}, at::kBFloat16);
      }
      if (p.dim() == 2) {
        of.left.add_(g.mm(g.t()));
        of.right.add_(g.t().mm(g));
        of.count.add_(1);
        of.half.add_(0.5);
      }
      p.sub_(p.dim() == 2 ? root(of.left).mm(g).mm(root(of.right)).to(at::kFloat) : p.grad(), 0.05);
    }
    return {};
  }
  void visit_state(StateVisitor& visit) {
    for (at::Tensor& p : param_groups()[0].params()) {
      if (p.dim() != 2) continue;
      State& of = states[p.unsafeGetTensorImpl()];
      visit.state("left", p, of.left);
      visit.state("right", p, of.right);
      visit.state("count", p, of.count);
      visit.state("half", p, of.half);
    }
  }
  void expect_steps(int64_t steps) {
    for (auto& [key, of] : states) {
      if (!of.left.defined() || of.left.numel() == 0) continue;  // of one dim, or of another stage
      EXPECT_EQ(of.count.dim(), 0);
      EXPECT_EQ(of.count.item<int64_t>(), steps);
      EXPECT_TRUE(of.half.equal(at::full({2}, 0.5 * static_cast<double>(steps), at::kBFloat16)));
    }
  }
  static at::Tensor root(const at::Tensor& square) {  // to the power of -1/4
    const auto [values, vectors] = at::linalg_eigh(square);
    return vectors.mul(values.pow(-0.25)).mm(vectors.t());
  }

  std::map<void*, State> states{};
};

enum class Kind : uint8_t { sgd, muon, shampoo };

/// One of them, of any tensors.
struct Either {
  Either(Kind kind, const std::vector<at::Tensor>& parameters) {
    if (kind == Kind::shampoo) shampoo = std::make_unique<Shampoo>(parameters);
    if (kind == Kind::muon) muon = std::make_unique<MyMuon>(parameters);
    if (kind == Kind::sgd) sgd = std::make_unique<optim::SGD>(parameters, optim::SGDOptions(0.1).momentum(0.9));
  }
  void step() {
    if (shampoo) shampoo->step();
    if (muon) muon->step();
    if (sgd) sgd->step();
  }
  void attach_to(ParallelModel& model) {
    if (shampoo) model.attach("shampoo", *shampoo);
    if (muon) model.attach("muon", *muon);
    if (sgd) model.attach(*sgd);
  }
  std::unique_ptr<Shampoo> shampoo;
  std::unique_ptr<MyMuon> muon;
  std::unique_ptr<optim::SGD> sgd;
};

/// Values by name, and the gradients of each step by shape, of one process of plain torch.
struct Alone {
  std::map<std::string, at::Tensor> values{};
  std::vector<std::map<std::vector<int64_t>, at::Tensor>> gradients{};
};

Alone train_alone(Kind kind, int64_t steps, bool has_images = false) {
  Alone alone;
  torch::nn::Sequential net = make_net(has_images);
  Either optimizer(kind, net->parameters());
  for (int64_t step = 0; step < steps; ++step) {
    net->zero_grad();
    const auto [x, y] = batch(step);
    mean_of(net->forward(x), y).backward();
    auto& gradients = alone.gradients.emplace_back();
    for (const at::Tensor& p : net->parameters()) gradients[p.sizes().vec()] = p.grad().clone();
    optimizer.step();
  }
  for (const auto& p : net->named_parameters()) alone.values[p.key()] = p.value().detach().clone();
  return alone;
}

struct Arrangement {
  std::string name;
  std::vector<AxisSize> axes;
  std::vector<Technique> techniques;
  int64_t micro_batches = 1;
};

std::vector<Arrangement> arrangements() {
  std::vector<Arrangement> all;
  for (const int ranks : {1, 2, 3, 4}) {
    const std::vector<AxisSize> dp{{"dp", ranks}};
    const std::string at = " on " + std::to_string(ranks);
    all.push_back({"ddp" + at, dp, {ddp()}});
    all.push_back({"zero1" + at, dp, {zero({.stage = 1})}});
    all.push_back({"zero2" + at, dp, {zero({.stage = 2})}, 2});
    all.push_back({"fsdp" + at, dp, {fsdp()}});
  }
  all.push_back({"hsdp", {{"dp", 4}}, {fsdp({.shard = 2})}});
  all.push_back({"stages", {{"pp", 2}, {"dp", 2}}, {pipeline(), fsdp()}, 2});
  return all;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm().item<double>() / (b.norm().item<double>() + 1e-3);
}

/// Trains to `steps` from the checkpoint in `run`, if there is one, and saves.
void train(const Arrangement& on, Kind kind, int64_t steps, const fs::path& run, const Alone* alone = nullptr,
           bool has_images = false) {
  std::mutex lock;
  std::map<std::vector<int64_t>, int> owners;
  on_ranks(on.axes, [&](const Mesh& mesh) {
    torch::nn::Sequential net = make_net(has_images);
    ParallelModel model(net, mesh, on.techniques, {.micro_batches = on.micro_batches, .average = true});
    const std::vector<at::Tensor> whole = model.whole_parameters();
    Either optimizer(kind, whole);
    optimizer.attach_to(model);
    Progress now = model.load(run);
    const int64_t first = now.step;
    if (optimizer.shampoo) optimizer.shampoo->expect_steps(first);
    for (; now.step < steps; ++now.step) {
      const auto [x, y] = batch(now.step);
      model.step(rows_of(x, mesh), rows_of(y, mesh), mean_of);
      model.update_whole([&] {
        for (const at::Tensor& p : whole) {
          if (alone == nullptr || p.numel() == 0) continue;  // of another stage
          const at::Tensor& want = alone->gradients[static_cast<size_t>(now.step)].at(p.sizes().vec());
          EXPECT_LE(difference(p.grad(), want), kTolerance) << on.name << ", step " << now.step;
          const std::lock_guard guard(lock);
          owners[p.sizes().vec()] += now.step == first ? 1 : 0;
        }
        optimizer.step();
      });
    }
    model.save(run, now);
  });
  if (alone == nullptr || on.name == "stages") return;
  EXPECT_EQ(owners.size(), alone->values.size()) << on.name;
  const int copies = on.name.starts_with("ddp") ? ranks_of(on.axes) : 1;
  for (const auto& [shape, count] : owners) EXPECT_EQ(count, copies) << on.name;
}

/// The largest relative difference from the values of one process, and what has it.
std::string compare(const fs::path& checkpoint, const std::map<std::string, at::Tensor>& values) {
  CheckpointReader reader(checkpoint);
  std::string differing;
  for (const auto& [name, value] : values) {
    const double found = difference(read_whole(reader, name, value), value);
    if (!(found <= kTolerance)) differing += name + " by " + std::to_string(found) + " ";
  }
  return differing;
}

TEST(WholeParameters, GradientsAndValuesAreThoseOfOneProcess) {
  needs({"ddp", "zero1", "zero2", "zero3", "hsdp", "1f1b"});
  for (const Kind kind : {Kind::sgd, Kind::muon}) {
    const Alone alone = train_alone(kind, 4);
    for (const Arrangement& on : arrangements()) {
      const TemporaryFolder folder;
      train(on, kind, 4, folder / "run", &alone);
      EXPECT_EQ(compare(folder / "run" / "step_000004", alone.values), "") << on.name;
    }
  }
  // Matrices of more dims, of which each rank has two kernels.
  const TemporaryFolder folder;
  const Alone alone = train_alone(Kind::sgd, 4, /*has_images=*/true);
  train({"images", {{"dp", 3}}, {fsdp()}}, Kind::sgd, 4, folder / "run", &alone, /*has_images=*/true);
  EXPECT_EQ(compare(folder / "run" / "step_000004", alone.values), "");
}

/// State is that of the owner, is saved once and whole, and goes to any other arrangement.
TEST(WholeParameters, GoOnFromACheckpoint) {
  needs({"ddp", "zero1", "zero3", "1f1b"});
  const std::vector<Arrangement> all{{"fsdp", {{"dp", 3}}, {fsdp()}},
                                     {"zero1", {{"dp", 2}}, {zero()}},
                                     {"ddp", {{"dp", 1}}, {ddp()}},
                                     {"stages", {{"pp", 2}, {"dp", 2}}, {pipeline(), fsdp()}, 2}};
  for (const Kind kind : {Kind::sgd, Kind::muon}) {
    const Alone alone = train_alone(kind, 6);
    for (size_t i = 0; i < all.size(); ++i) {
      const TemporaryFolder folder;
      train(all[i], kind, 3, folder / "run");
      const CheckpointReader reader(folder / "run" / "step_000003");
      for (const auto& [name, tensor] : alone.values) {
        const std::string moment =
            (kind == Kind::sgd ? "optimizer.sgd.momentum_buffer." : "attached.muon.moment.velocity.") + name;
        ASSERT_TRUE(reader.manifest().tensors.contains(moment)) << moment;
        EXPECT_EQ(reader.manifest().tensors.at(moment).shape, tensor.sizes().vec());
      }
      fs::copy(folder / "run", folder / "other", fs::copy_options::recursive);
      train(all[i], kind, 6, folder / "run", &alone);
      EXPECT_EQ(compare(folder / "run" / "step_000006", alone.values), "") << all[i].name;
      const Arrangement& other = all[(i + 1) % all.size()];
      train(other, kind, 6, folder / "other", &alone);
      EXPECT_EQ(compare(folder / "other" / "step_000006", alone.values), "") << all[i].name << " to " << other.name;
    }
  }
}

/// State of any shape and dtype, on the owners, from layout to layout; first before there is any.
TEST(WholeParameters, PreconditionersGoOnFromACheckpoint) {
  needs({"ddp", "zero1", "zero3", "1f1b"});
  const Arrangement fsdp_2{"fsdp", {{"dp", 2}}, {fsdp()}};
  const Arrangement stages{"stages", {{"pp", 2}, {"dp", 2}}, {pipeline(), fsdp()}, 2};
  const std::vector<Arrangement> all{fsdp_2, {"ddp", {{"dp", 1}}, {ddp()}}, {"zero1", {{"dp", 3}}, {zero()}}, fsdp_2,
                                     stages, {"ddp", {{"dp", 2}}, {ddp()}}};
  const TemporaryFolder folder;
  train(stages, Kind::shampoo, 0, folder / "run");
  int64_t steps = 0;
  for (const Arrangement& on : all) {
    steps += 2;
    const Alone alone = train_alone(Kind::shampoo, steps);
    train(on, Kind::shampoo, steps, folder / "run", &alone);
    const fs::path checkpoint = folder / "run" / checkpoint_name(steps);
    EXPECT_EQ(compare(checkpoint, alone.values), "") << on.name << " to step " << steps;
    const auto tensors = CheckpointReader(checkpoint).manifest().tensors;
    EXPECT_EQ(tensors.at("attached.shampoo.state.left.0.weight").shape, (std::vector<int64_t>{8, 8}));
    EXPECT_EQ(tensors.at("attached.shampoo.state.right.0.weight").shape, (std::vector<int64_t>{3, 3}));
    EXPECT_EQ(tensors.at("attached.shampoo.scalar.count.0.weight").dtype, "I64");
    EXPECT_EQ(tensors.at("attached.shampoo.state.half.4.weight").dtype, "BF16");
  }
}

/// The errors of all ranks.
std::vector<std::string> errors_of(const std::vector<Technique>& techniques,
                                   const std::function<void(ParallelModel&)>& body,
                                   const std::vector<AxisSize>& axes = {{"dp", 2}}) {
  std::vector<std::string> errors(static_cast<size_t>(ranks_of(axes)));
  on_ranks(axes, [&](const Mesh& mesh) {
    ParallelModel model(make_net(), mesh, techniques, {.average = true});
    errors[static_cast<size_t>(mesh.rank())] = message_of<Error>([&] {
      body(model);
      throw UsageError({"test", "", "came through", "", ""});
    });
    mesh.world().barrier("after it");
  });
  return errors;
}

double step(ParallelModel& model) {
  const auto [x, y] = batch(0);
  return model.step(rows_of(x, model.mesh()), rows_of(y, model.mesh()), mean_of);
}

/// What keeps one tensor for each parameter, of some shape on each rank.
struct Keeper {
  static constexpr bool is_elementwise = true;  // which is not so
  std::vector<at::Tensor> parameters, tensors;
  void visit_state(StateVisitor& visit) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      is_moment ? visit.moment("left", parameters[i], tensors[i]) : visit.state("left", parameters[i], tensors[i]);
    }
  }
  bool is_moment = false;
};

TEST(WholeParameters, StateThatDoesNotFitIsNamed) {
  needs({"ddp", "zero3"});
  const TemporaryFolder folder;
  const auto with = [&](const std::string& run, const std::vector<int64_t>& first, const std::vector<int64_t>& other,
                        bool is_moment = false) {
    return [=, &folder](ParallelModel& model) {
      Keeper keeper{.parameters = model.parameters(), .tensors = {}, .is_moment = is_moment};
      for (size_t i = 0; i < keeper.parameters.size(); ++i) {
        keeper.tensors.push_back(at::zeros(model.mesh().rank() == 0 ? first : other));
      }
      model.attach("keeper", keeper);
      model.load(folder / run);
      model.save(folder / run, {.step = 1});
    };
  };
  EXPECT_THAT(
      errors_of({fsdp()}, with("cut", {2, 2}, {2, 2})),
      Each(AllOf(HasSubstr("keeper, left of 4.weight"), HasSubstr("needs 4.weight whole, and it is sharded over dp by"),
                 HasSubstr("whole_parameters()"))));
  EXPECT_THAT(
      errors_of({ddp()}, with("unlike", {2, 2}, {2})),
      Each(AllOf(HasSubstr("keeper, left of 0.weight"), HasSubstr("is F32 [2, 2] on rank 0 and F32 [2] on rank 1"))));
  EXPECT_THAT(errors_of({ddp()}, with("moment", {2, 2}, {2, 2}, /*is_moment=*/true)),
              Each(HasSubstr("visit.state() in place of visit.moment()")));
  EXPECT_THAT(errors_of({ddp()}, with("run", {2, 2}, {2, 2})), Each(HasSubstr("came through")));
  EXPECT_THAT(errors_of({ddp()}, with("run", {3, 3}, {3, 3})),
              Each(HasSubstr("keeper.state.left.0.weight: was saved as F32 [2, 2], and is F32 [3, 3] in the program")));
  EXPECT_THAT(errors_of({ddp()},
                        [&](ParallelModel& model) {
                          ModuleCheckpoint(folder / "run", model.engine()).load();
                          with("other", {3, 3}, {3, 3})(model);
                        }),
              Each(HasSubstr("came through")))
      << "the weights alone";
}

TEST(WholeParameters, AnUpdateThatIsForgottenIsNamed) {
  needs({"zero3"});
  const TemporaryFolder folder;
  const auto steps = [&](const std::vector<int>& updates, int loads_at = -1) {
    return [=, &folder](ParallelModel& model) {
      optim::SGD optimizer(model.whole_parameters(), 0.1);
      for (int i = 0; i < 8; ++i) {
        if (i == loads_at) model.load(folder / "none");
        step(model);
        optimizer.step();
        if (std::ranges::find(updates, i) != updates.end()) model.update_whole([&] { optimizer.step(); });
      }
    };
  };
  EXPECT_THAT(errors_of({fsdp()}, steps({})),
              Each(AllOf(HasSubstr("update_whole: was not called after 3 steps in a row"), HasSubstr("[] {}"))));
  EXPECT_THAT(errors_of({fsdp()}, steps({0, 1})), Each(HasSubstr("was not called after 3 steps in a row")));
  EXPECT_THAT(errors_of({fsdp()}, steps({2, 5})), Each(HasSubstr("came through"))) << "two are left out on purpose";
  EXPECT_THAT(errors_of({fsdp()}, steps({2, 7}, 5)), Each(HasSubstr("came through"))) << "a load starts anew";
  EXPECT_THAT(errors_of({fsdp()}, [](ParallelModel& model) { model.update_whole([] {}); }),
              Each(HasSubstr("make it from whole_parameters()")));
  EXPECT_THAT(errors_of({fsdp()},
                        [&](ParallelModel& model) {
                          model.load(folder / "none");
                          model.whole_parameters();
                        }),
              Each(HasSubstr("whole_parameters: comes after load() or save()")));
}

TEST(WholeParameters, WhatOneUpdateThrowsAllRanksThrow) {
  needs({"ddp", "zero3"});
  for (const bool is_cut : {false, true}) {
    EXPECT_THAT(errors_of({is_cut ? fsdp() : ddp()},
                          [&](ParallelModel& model) {
                            const std::vector<at::Tensor> whole = model.whole_parameters();
                            step(model);
                            const std::string error = message_of<Error>([&] {
                              model.update_whole([&] {
                                if (model.mesh().rank() == 1) throw UsageError({"test", "", "no update", "", ""});
                              });
                            });
                            for (const at::Tensor& p : whole) EXPECT_EQ(p.grad().defined(), !is_cut);
                            throw UsageError({"test", "", error, "", ""});
                          }),
                Each(HasSubstr("no update")));
  }
}

/// What one keeps is in parts, what the other keeps in whole tensors.
TEST(WholeParameters, AreSavedBesideAnOptimizerOfThisLibrary) {
  needs({"zero3"});
  const TemporaryFolder folder;
  for (int64_t begun = 0; begun < 2; ++begun) {
    EXPECT_THAT(errors_of({fsdp()},
                          [&](ParallelModel& model) {
                            AdamW adamw(model.engine().state());
                            MyMuon muon(model.whole_parameters());
                            model.attach(adamw);
                            model.attach("muon", muon);
                            Progress now = model.load(folder / "run");
                            EXPECT_EQ(muon.steps, begun);
                            step(model);
                            adamw.step(1e-3);
                            model.update_whole([&] { muon.step(); });
                            model.save(folder / "run", {.step = now.step + 1});
                          }),
                Each(HasSubstr("came through")));
  }
  const CheckpointReader reader(folder / "run" / "step_000002");
  for (const char* moment : {"attached.muon.moment.velocity.0.weight", "optimizer.exp_avg.0.weight"}) {
    ASSERT_TRUE(reader.manifest().tensors.contains(moment)) << moment;
    EXPECT_EQ(reader.manifest().tensors.at(moment).shape, (std::vector<int64_t>{8, 3}));
  }
}

/// One rank owns the only parameter of the first group.
TEST(WholeParameters, TheRateOfAGroupComesBackOnRanksWithoutItsParameters) {
  needs({"zero3"});
  const TemporaryFolder folder;
  for (const bool loads : {false, true}) {
    EXPECT_THAT(errors_of({fsdp()},
                          [&](ParallelModel& model) {
                            std::vector<at::Tensor> first, others;
                            for (const at::Tensor& p : model.whole_parameters()) {
                              (p.sizes() == at::IntArrayRef{8, 3} ? first : others).push_back(p);
                            }
                            optim::SGD sgd({optim::OptimizerParamGroup(first), optim::OptimizerParamGroup(others)},
                                           optim::SGDOptions(0.5));
                            model.attach(sgd);
                            model.load(folder / "run");
                            for (const size_t i : {0U, 1U}) {
                              optim::OptimizerOptions& options = sgd.param_groups()[i].options();
                              const double saved = i == 0 ? 0.03 : 0.07;
                              EXPECT_EQ(options.get_lr(), loads ? saved : 0.5) << i << " " << model.mesh().where();
                              options.set_lr(saved);
                            }
                            if (!loads) model.save(folder / "run", {.step = 1});
                          }),
                Each(HasSubstr("came through")));
  }
}

TEST(WholeParameters, AreRehearsed) {
  needs({"zero3"});
  torch::nn::Sequential net;
  double bytes = 0;
  for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(64, 64));
  for (const at::Tensor& p : net->parameters()) bytes += static_cast<double>(p.nbytes());
  const auto sgd = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions(0.1).momentum(0.9));
  };
  const auto rehearsed = [&](const MakeOptimizer& optimizer) {
    const auto square = [](const at::Tensor& output, const at::Tensor& y) { return (output - y).square().mean(); };
    return rehearse(net, {.dp = 2}, {fsdp()}, {at::zeros({2, 64}), at::zeros({2, 64}), square}, optimizer,
                    {.average = true});
  };
  const Rehearsal parts = rehearsed(sgd), whole = rehearsed(MakeOptimizer::of_whole(sgd));
  const auto kind = [&](MemoryKind of) { return static_cast<double>(whole.peak.of[static_cast<size_t>(of)]) / bytes; };
  EXPECT_NEAR(kind(MemoryKind::parameters), 1, 0.01) << "half of it in parts, half of it whole";
  EXPECT_NEAR(kind(MemoryKind::gradients), 1, 0.01);
  EXPECT_NEAR(kind(MemoryKind::optimizer), 0.5, 0.01);
  EXPECT_NEAR((whole.bytes_sent() - parts.bytes_sent()) / bytes, 0.75, 0.01) << "3 (n - 1) / n over n ranks";
}

TEST(WholeParameters, SplitLayersAndStateOutsideOfTheDeviceAreRefused) {
  needs({"zero3"});
  const auto take = [](ParallelModel& model) { model.whole_parameters(); };
  EXPECT_THAT(errors_of({tensor({{"0.*", {{"tp", Shard{0}}}}})}, take, {{"dp", 1}, {"tp", 2}}),
              Each(AllOf(HasSubstr("0.weight: is split over tp"), HasSubstr("Muon of this library"))));
  EXPECT_THAT(errors_of({fsdp(), offload({.parameters = "host"})}, take), Each(HasSubstr("outside of the device")));
}

struct Silent {
  void visit_state(StateVisitor& /*visit*/) {}
};

/// Keeps the warnings of torch, of all ranks.
struct Warnings : c10::WarningHandler {
  std::mutex mutex{};
  std::vector<std::string> all{};
  void process(const c10::Warning& warning) override {
    const std::scoped_lock lock(mutex);
    all.push_back(warning.msg());
  }
};

/// Two optimizers of parts of the tensors, of which one is stepped outside of update_whole().
TEST(WholeParameters, ATensorThatUpdatesLeaveOutIsTold) {
  needs({"zero1"});
  const auto said = [](const std::function<bool(const at::Tensor&, int rank)>& is_outside, bool twice = false) {
    Warnings warnings;
    const auto errors = errors_of({zero()}, [&](ParallelModel& model) {
      const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
      std::vector<at::Tensor> out, in;
      for (const at::Tensor& p : model.whole_parameters()) (is_outside(p, model.mesh().rank()) ? out : in).push_back(p);
      optim::SGD sgd(out, 0.1), white(in, 0.1);
      for (int i = 0; i < 8; ++i) {
        step(model);
        if (!twice) sgd.step();
        model.update_whole([&] {
          white.step();
          if (twice) sgd.step();
        });
      }
      model.update_whole([] {});
    });
    EXPECT_THAT(errors, Each(HasSubstr("came through")));
    return warnings.all;
  };
  const auto warning =
      AllOf(HasSubstr("update_whole: "), HasSubstr(" was not changed in 3 updates that changed others"),
            HasSubstr("do: step every optimizer of whole_parameters() inside update_whole()"));
  const auto is_bias = [](const at::Tensor& p, int /*rank*/) { return p.sizes() == at::IntArrayRef{7}; };
  EXPECT_THAT(said(is_bias), ElementsAre(AllOf(warning, HasSubstr("2.bias")))) << "once";
  EXPECT_THAT(said([](const at::Tensor& /*p*/, int rank) { return rank == 1; }), ElementsAre(warning))
      << "each rank has tensors of one optimizer";
  EXPECT_THAT(said(is_bias, /*twice=*/true), IsEmpty());
}

TEST(WholeParameters, AnOptimizerThatDoesNotSayIsARiskToTell) {
  needs({"ddp", "zero3"});
  const auto said = [](const Technique& technique, bool takes_whole) {
    Warnings warnings;
    errors_of({technique}, [&](ParallelModel& model) {
      const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
      Silent silent;
      if (takes_whole) model.whole_parameters();
      model.attach("own", silent);
    });
    return warnings.all;
  };
  EXPECT_THAT(said(fsdp(), false),
              ElementsAre(AllOf(HasSubstr("optimizer 'own' does not say"), HasSubstr("0.weight is sharded over dp by"),
                                HasSubstr("whole_parameters()"))))
      << "rank 0 alone says it";
  EXPECT_THAT(said(fsdp(), true), IsEmpty());
  EXPECT_THAT(said(ddp(), false), IsEmpty());
  EXPECT_THAT(errors_of({fsdp()},
                        [](ParallelModel& model) {
                          optim::LBFGS lbfgs(model.whole_parameters());
                          model.attach("lbfgs", lbfgs);
                        }),
              Each(HasSubstr("lbfgs: needs all whole parameters at once")));
}

/// A metric that falls, and rises from step 3 on.
struct Plateaus {
  std::vector<double> rates{};
  std::string error{};
};

Plateaus follow_metric(int ranks, int64_t steps, const fs::path& run, int patience = 1, bool differs = false) {
  Plateaus found;
  on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
    ParallelModel model(make_net(), mesh, {ddp()}, {.average = true});
    optim::SGD optimizer(model.parameters(), optim::SGDOptions(0.1));
    optim::ReduceLROnPlateauScheduler scheduler(optimizer, optim::ReduceLROnPlateauScheduler::min, 0.5F, patience, 1e-4,
                                                optim::ReduceLROnPlateauScheduler::rel, /*cooldown=*/1);
    model.attach(optimizer);
    model.attach("plateau", scheduler);
    const std::string error = message_of<Error>([&] {
      Progress now = model.load(run);
      for (; now.step < steps; ++now.step) {
        step(model);
        optimizer.step();
        scheduler.step(static_cast<float>(now.step < 3 ? 4 - now.step : now.step) +
                       (differs ? static_cast<float>(mesh.rank()) : 0));
        if (mesh.rank() == 0) found.rates.push_back(optimizer.param_groups()[0].options().get_lr());
      }
      model.save(run, now);
      throw UsageError({"test", "", "saved", "", ""});
    });
    if (mesh.rank() == 0) found.error = error;
  });
  return found;
}

TEST(Plateau, GoesOnWhereItWas) {
  needs({"ddp"});
  const TemporaryFolder folder;
  const auto whole = follow_metric(1, 14, folder / "whole").rates;
  EXPECT_LT(whole.back(), 0.02) << "the rate has fallen several times";
  for (const int64_t cut : {2, 4, 5, 7, 8}) {
    const fs::path run = folder / std::to_string(cut);
    const auto first = follow_metric(2, cut, run).rates;
    auto rest = follow_metric(cut % 2 == 0 ? 1 : 3, 14, run).rates;
    rest.insert(rest.begin(), first.begin(), first.end());
    EXPECT_EQ(rest, whole) << "cut at " << cut;
  }
  EXPECT_THAT(follow_metric(1, 15, folder / "2", /*patience=*/3).error,
              AllOf(HasSubstr("plateau: cannot be loaded"), HasSubstr("patience 3"), HasSubstr("patience 1")));
  EXPECT_THAT(follow_metric(2, 3, folder / "unlike", 1, /*differs=*/true).error,
              AllOf(HasSubstr("plateau: is"), HasSubstr("best metric 2, bad epochs 0"), HasSubstr("best metric 3")));
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {  // what stands in, for other options after it
    ParallelModel model(make_net(), mesh, {ddp()}, {.average = true});
    optim::SGD optimizer(model.parameters(), optim::SGDOptions(0.1));
    model.attach(optimizer);
    model.attach("plateau", Kept([] { return std::string(); }, [](const std::string&) {}));
    const Progress now = model.load(folder / "whole");
    model.save(folder / "whole", {.step = now.step + 1});
  });
  const Plateaus anew = follow_metric(1, 17, folder / "whole", /*patience=*/3);
  EXPECT_THAT(anew.error, HasSubstr("saved"));
  EXPECT_EQ(anew.rates, std::vector<double>(2, whole.back()));
}

}  // namespace
}  // namespace caravan::testing::whole_parameters_test
