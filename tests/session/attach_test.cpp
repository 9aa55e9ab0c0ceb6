// What a program attaches to its checkpoints by name: values, generators, samplers, and an optimizer of its own.
#include <cmath>
#include <gmock/gmock.h>
#include <map>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/data/samplers/sequential.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include "caravan/base/error.h"
#include "caravan/session/parallelize.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"
#include "tests/needs.h"

namespace caravan::testing::attach_test {
namespace {

namespace fs = std::filesystem;
namespace optim = torch::optim;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kRows = 12;

torch::nn::Sequential make_net(int64_t width = 5) {
  torch::nn::Sequential net(torch::nn::Linear(3, width), torch::nn::Tanh(), torch::nn::Linear(width, 1));
  const at::NoGradGuard no_grad;
  double shift = 0;
  for (at::Tensor& weight : net->parameters()) {
    weight.copy_(at::arange(weight.numel(), at::kFloat).add(shift += 0.7).sin().view(weight.sizes()));
  }
  return net;
}

at::Tensor mean_of(const at::Tensor& output, const at::Tensor& y) { return (output - y).square().mean(); }

/// An optimizer of the program's own, with a moment for each parameter and a count of steps.
struct Damped : optim::Optimizer {
  static constexpr bool is_elementwise = true;
  explicit Damped(const std::vector<std::vector<at::Tensor>>& groups, double lr = 0.1)
      : Optimizer(groups_of(groups, lr), std::make_unique<optim::SGDOptions>(lr)) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const at::NoGradGuard no_grad;
    ++steps;
    for (auto& group : param_groups()) {
      for (at::Tensor& p : group.params()) {
        if (!p.grad().defined()) continue;
        at::Tensor& v = velocity[p.unsafeGetTensorImpl()];
        if (!v.defined()) v = at::zeros_like(p);
        v.mul_(0.9).add_(p.grad());
        p.sub_(v, group.options().get_lr() / std::sqrt(static_cast<double>(steps)));
      }
    }
    return {};
  }
  void visit_state(StateVisitor& visit) {
    visit.number("steps", steps);
    for (auto& group : param_groups()) {
      for (at::Tensor& p : group.params()) visit.moment("velocity", p, velocity[p.unsafeGetTensorImpl()]);
    }
  }

  std::map<void*, at::Tensor> velocity{};
  int64_t steps = 0;

 private:
  static std::vector<optim::OptimizerParamGroup> groups_of(const std::vector<std::vector<at::Tensor>>& groups,
                                                           double lr) {
    std::vector<optim::OptimizerParamGroup> all;
    for (const auto& group : groups) all.emplace_back(group, std::make_unique<optim::SGDOptions>(lr));
    return all;
  }
};

at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

/// A type with save() and load().
struct Note {
  std::string words{};
  std::string save() const { return words; }
  void load(const std::string& text) { words = text; }
};

struct Arrangement {
  std::string name;
  std::vector<AxisSize> axes;
  Technique technique;
  int64_t micro_batches = 1;
};

/// What a run ends with.
struct Ended {
  std::vector<double> losses;
  double rate = 0;
};

/// Trains to `steps` from the checkpoint in `run`, if there is one, and saves. Batches are noise, which every rank
/// draws whole, and the model's average of losses is part of what it learns from.
Ended train(const Arrangement& on, int64_t steps, const fs::path& run) {
  Ended ended;
  on_ranks(on.axes, [&](const Mesh& mesh) {
    const torch::nn::Sequential net = make_net();
    ParallelModel model(net, mesh, {on.technique}, {.micro_batches = on.micro_batches, .average = true});
    Damped optimizer({model.parameters()});
    optim::StepLR scheduler(optimizer, 2, 0.5);
    at::Generator noise = generator(3);
    double average = 1;
    float least = 9;
    int count = 0;
    bool is_warm = false;
    std::string words = "none";
    Note note;
    at::Tensor history = at::zeros({6}, at::kDouble);
    model.attach("optimizer", optimizer);
    model.attach(scheduler);
    model.attach("noise", noise);
    model.attach("average", average);
    model.attach("least", least);
    model.attach("count", count);
    model.attach("is_warm", is_warm);
    model.attach("words", words);
    model.attach("note", note);
    model.attach("history", history);
    Progress now = model.load(run);
    if (now.step > 0) {
      EXPECT_EQ(count, now.step);
      EXPECT_TRUE(is_warm);
      EXPECT_EQ(words, "step " + std::to_string(now.step));
      EXPECT_EQ(note.words, words + "\n");
      EXPECT_EQ(optimizer.steps, now.step);
      EXPECT_GT(history[now.step - 1].item<double>(), 0);
      EXPECT_NEAR(least, history.narrow(0, 0, now.step).min().item<double>(), 1e-6);
    }
    while (now.step < steps) {
      const at::Tensor x = at::rand({kRows, 3}, noise) * average, y = x.sum(1, /*keepdim=*/true).sin();
      const double loss = model.step(rows_of(x, mesh), rows_of(y, mesh), mean_of);
      optimizer.step();
      scheduler.step();
      history[now.step] = loss;
      average = 0.5 * average + 0.5 * (1 + loss);
      least = std::min(least, static_cast<float>(loss));
      count = static_cast<int>(++now.step);
      is_warm = true;
      words = "step " + std::to_string(count);
      note.words = words + "\n";
    }
    model.save(run, now);
    if (mesh.rank() != 0) return;
    for (int64_t i = 0; i < steps; ++i) ended.losses.push_back(history[i].item<double>());
    ended.rate = optimizer.param_groups()[0].options().get_lr();
  });
  return ended;
}

TEST(Attach, AProgramGoesOnBitForBit) {
  needs({"ddp", "zero3", "1f1b"});
  const TemporaryFolder folder;
  const Arrangement one{"one", {{"dp", 1}}, ddp()}, three{"three", {{"dp", 3}}, fsdp()};
  const std::vector<Arrangement> all{one,
                                     {"ddp", {{"dp", 2}}, ddp()},
                                     {"fsdp", {{"dp", 2}}, fsdp()},
                                     {"stages", {{"pp", 2}, {"dp", 1}}, pipeline(), 2}};
  const Ended alone = train(one, 6, folder / "alone");
  for (const Arrangement& on : all) {
    SCOPED_TRACE(on.name);
    const Ended whole = train(on, 6, folder / (on.name + "_whole"));
    train(on, 3, folder / on.name);
    fs::copy(folder / on.name, folder / (on.name + "_other"), fs::copy_options::recursive);
    const Ended resumed = train(on, 6, folder / on.name);
    EXPECT_EQ(resumed.losses, whole.losses) << "bit for bit";
    EXPECT_EQ(resumed.rate, whole.rate) << "a scheduler goes on";
    EXPECT_LT(resumed.rate, 0.03);
    // On other ranks, where sums have another order: to the rounding of fp32.
    const Ended other = train(on.name == "one" ? three : one, 6, folder / (on.name + "_other"));
    ASSERT_EQ(other.losses.size(), alone.losses.size());
    for (size_t i = 0; i < alone.losses.size(); ++i) EXPECT_NEAR(other.losses[i] / alone.losses[i], 1, 1e-5) << i;
  }
}

/// The error of E on each of two ranks.
template <class E>
std::vector<std::string> errors_of(const std::function<void(ParallelModel& model)>& body,
                                   const Technique& technique = ddp()) {
  std::vector<std::string> errors(2);
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    ParallelModel model(make_net(), mesh, {technique}, {.average = true});
    errors[static_cast<size_t>(mesh.rank())] = message_of<E>([&] { body(model); });
    mesh.world().barrier("after it");
  });
  return errors;
}

TEST(Attach, NamesThatOnlyOneSideHasAreNamed) {
  needs({"ddp"});
  const TemporaryFolder folder;
  int64_t epoch = 3;
  double best = 0.5;
  EXPECT_THAT(errors_of<UsageError>([&](ParallelModel& model) {
                model.attach("epoch", epoch);
                model.attach("best", best);
                model.save(folder / "run", {.step = 1});
                throw UsageError({"test", "", "saved", "", ""});
              }),
              Each(HasSubstr("saved")));
  EXPECT_THAT(errors_of<DataError>([&](ParallelModel& model) {
                model.attach("epochs", epoch);
                model.attach("best", best);
                model.load(folder / "run");
              }),
              Each(AllOf(HasSubstr("it lacks 'epochs' (the nearest is 'epoch')"),
                         HasSubstr("the program has not attached 'epoch' (the nearest is 'epochs')"),
                         HasSubstr("under the same names"))));
  EXPECT_THAT(errors_of<DataError>([&](ParallelModel& model) {
                std::string text;
                model.attach("epoch", epoch);
                model.attach("best", text);
                model.load(folder / "run");
              }),
              Each(HasSubstr("best: was saved as F64 [1], and is U8 [0] in the program")));
  EXPECT_EQ(best, 0.5);
  // The module alone is loaded by a program that attaches nothing.
  on_ranks({{"dp", 1}},
           [&](const Mesh& mesh) { EXPECT_EQ(ParallelModel(make_net(), mesh, {}).load(folder / "run").step, 1); });
}

TEST(Attach, WhatCannotBeKeptIsRefused) {
  needs({"ddp"});
  const TemporaryFolder folder;
  int64_t number = 0;
  const auto attach = [&](const std::string& name) {
    return [&number, name](ParallelModel& model) {
      model.attach("epoch", number);
      model.attach(name, number);
    };
  };
  EXPECT_THAT(errors_of<UsageError>(attach("epoch")), Each(HasSubstr("'epoch' is attached already")));
  EXPECT_THAT(errors_of<UsageError>(attach("my epoch")), Each(HasSubstr("'my epoch': is not a name of letters")));
  const auto save = [&](const at::Tensor& tensor) {
    return errors_of<UsageError>([&](ParallelModel& model) {
      at::Tensor own = tensor;
      model.attach("state", own);
      model.save(folder / "run", {.step = 1});
    });
  };
  EXPECT_THAT(save({}), Each(HasSubstr("state: is an undefined tensor")));
  EXPECT_THAT(save(at::zeros({2}, at::kComplexFloat)), Each(HasSubstr("has the dtype ComplexFloat")));
  EXPECT_THAT(save(at::eye(2).to_sparse()), Each(HasSubstr("is not a dense tensor")));
  // Ranks that differ, and one that fails.
  EXPECT_THAT(errors_of<UsageError>([&](ParallelModel& model) {
                int64_t own = 7 + model.mesh().rank();
                model.attach("epoch", own);
                model.save(folder / "run", {.step = 1});
              }),
              Each(HasSubstr("epoch: is 7 on rank 0 and 8 on rank 1")));
  EXPECT_THAT(errors_of<InternalError>([&](ParallelModel& model) {
                const auto fail = [&]() -> std::string {
                  if (model.mesh().rank() == 1) throw std::runtime_error("no state");
                  return "";
                };
                model.attach("own", Kept(fail, [](const std::string&) {}));
                model.save(folder / "run", {.step = 1});
              }),
              Each(HasSubstr("no state")));
  EXPECT_FALSE(fs::exists(folder / "run" / "step_000001"));
}

/// A load of the program's own that fails leaves the model as it was.
TEST(Attach, WhatALoadThrowsIsNamed) {
  needs({"ddp"});
  const TemporaryFolder folder;
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    ParallelModel model(make_net(), mesh, {});
    std::string text = "old";
    model.attach("own", text);
    model.save(folder / "run", {.step = 1});
  });
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    ParallelModel model(make_net(), mesh, {});
    const at::NoGradGuard no_grad;
    model.parameters()[0].fill_(2);
    model.attach("own", Kept([] { return std::string(); },
                             [](const std::string& text) { throw std::runtime_error("cannot read " + text); }));
    EXPECT_THAT(message_of<DataError>([&] { model.load(folder / "run"); }),
                HasSubstr("own: cannot be loaded: cannot read old"));
    EXPECT_EQ(model.parameters()[0].min().item<float>(), 2);
  });
}

/// Each rank's own stream goes on; on more ranks the new ones begin with theirs.
TEST(Attach, GeneratorsMayDifferBetweenRanks) {
  needs({"ddp"});
  const TemporaryFolder folder;
  const auto draw = [&](int ranks, bool differ, int64_t step, const fs::path& run) {
    std::vector<double> drawn(static_cast<size_t>(ranks));
    on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
      ParallelModel model(make_net(), mesh, {});
      at::Generator noise = generator(differ ? 10 + mesh.rank() : 10);
      model.attach("noise", noise);
      Progress now = model.load(run);
      for (; now.step < step; ++now.step) drawn[mesh.rank()] = at::rand({1}, noise).item<double>();
      model.save(run, now);
    });
    return drawn;
  };
  for (const bool differ : {false, true}) {
    const std::string name = differ ? "own" : "same";
    const auto whole = draw(3, differ, 4, folder / (name + "_whole"));
    draw(2, differ, 2, folder / name);
    const auto more = draw(3, differ, 4, folder / name);
    EXPECT_EQ(more[0], whole[0]);
    EXPECT_EQ(more[1], whole[1]);
    EXPECT_EQ(more[1] == more[0], !differ);
    const auto begun = draw(3, true, 2, folder / (name + "_begun"));
    EXPECT_EQ(more[2], differ ? begun[2] : whole[2]);
  }
}

/// Another list of parameters, another number of groups, another optimizer.
TEST(Attach, AnOptimizerThatDoesNotFitIsNamed) {
  needs({"ddp"});
  const TemporaryFolder folder;
  const auto with = [&](const fs::path& run, int64_t groups, bool loads, const std::string& name = "optimizer") {
    return [=](ParallelModel& model) {
      std::vector<std::vector<at::Tensor>> all(static_cast<size_t>(groups));
      const std::vector<at::Tensor> parameters = model.parameters();
      for (size_t i = 0; i < parameters.size(); ++i) all[i % all.size()].push_back(parameters[i]);
      if (groups == 3) all.pop_back();  // some parameter is left out
      Damped optimizer(all);
      model.attach(name, optimizer);
      if (loads) model.load(run);
      if (!loads) model.save(run, {.step = 1});
      if (!loads) throw DataError({"test", "", "saved", "", ""});
    };
  };
  const fs::path run = folder / "run";
  EXPECT_THAT(errors_of<DataError>(with(run, 2, false)), Each(HasSubstr("saved")));
  EXPECT_THAT(errors_of<DataError>(with(run, 1, true)),
              Each(AllOf(HasSubstr("optimizer.lr: was saved as F64 [2], and is F64 [1]"),
                         HasSubstr("as many groups of parameters"))));
  EXPECT_THAT(errors_of<DataError>(with(run, 3, true)),
              Each(HasSubstr("the program has not attached 'optimizer.moment.velocity.0.weight'")));
  EXPECT_THAT(errors_of<DataError>(with(run, 2, true, "muon")), Each(HasSubstr("it lacks 'muon' (the nearest is")));
  EXPECT_THAT(errors_of<DataError>([&](ParallelModel& model) {
                optim::AdamW adamw(model.parameters());
                model.attach(adamw);
                model.load(run);
              }),
              Each(HasSubstr("the program has not attached 'optimizer'")));
}

struct Whole {
  static constexpr bool is_elementwise = false;
  void visit_state(StateVisitor& /*visit*/) {}
};
TEST(Attach, AnOptimizerThatNeedsWholeParametersIsRefusedShards) {
  needs({"ddp", "zero3"});
  const auto error_with = [](auto optimizer, const Technique& technique) {
    return errors_of<UsageError>(
        [&](ParallelModel& model) {
          model.attach("own", optimizer);
          throw UsageError({"test", "", "attached", "", ""});
        },
        technique);
  };
  EXPECT_THAT(error_with(Whole(), fsdp()),
              Each(AllOf(HasSubstr("own: needs whole parameters, and 0.weight is sharded over dp"),
                         HasSubstr("make it from whole_parameters()"))));
  EXPECT_THAT(error_with(Whole(), ddp()), Each(HasSubstr("attached")));
  EXPECT_THAT(errors_of<UsageError>(
                  [](ParallelModel& model) {
                    optim::LBFGS lbfgs(model.parameters());
                    model.attach("lbfgs", lbfgs);
                  },
                  fsdp()),
              Each(HasSubstr("lbfgs: needs all whole parameters")));
}

/// The state of LBFGS is one of all parameters together.
TEST(Attach, LbfgsGoesOnBitForBit) {
  needs({"ddp"});
  const TemporaryFolder folder;
  const auto losses = [&](int64_t steps, const fs::path& run) {
    std::vector<double> all;
    on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
      ParallelModel model(make_net(), mesh, {}, {.average = true});
      optim::LBFGS optimizer(model.parameters(), optim::LBFGSOptions(0.5).max_iter(3));
      model.attach("lbfgs", optimizer);
      Progress now = model.load(run);
      const at::Tensor x = at::arange(kRows * 3, at::kFloat).mul(0.31).cos().view({kRows, 3});
      for (; now.step < steps; ++now.step) {
        double loss = 0;
        optimizer.step([&] {
          loss = model.step(rows_of(x, mesh), rows_of(x.sum(1, true).sin(), mesh), mean_of);
          return at::scalar_tensor(loss);
        });
        if (mesh.rank() == 0) all.push_back(loss);
      }
      model.save(run, now);
    });
    return all;
  };
  const auto whole = losses(5, folder / "whole");
  losses(2, folder / "run");
  const auto rest = losses(5, folder / "run");
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 2, whole.end()));
  EXPECT_LT(whole.back(), 0.5 * whole.front());
  EXPECT_THAT(errors_of<UsageError>([&](ParallelModel& model) {
                optim::LBFGS optimizer(model.parameters());
                model.attach(optimizer);
                model.load(folder / "none");
              }),
              Each(AllOf(HasSubstr("is LBFGS"), HasSubstr("attach(\"lbfgs\", optimizer)"))));
}

/// A type with archives of torch.
TEST(Attach, SamplersOfTorchGoOn) {
  needs({"ddp"});
  const TemporaryFolder folder;
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    ParallelModel model(make_net(), mesh, {});
    torch::data::samplers::SequentialSampler sampler(10);
    sampler.next(4);
    model.attach("sampler", sampler);
    model.save(folder / "run", {.step = 1});
  });
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    ParallelModel model(make_net(), mesh, {});
    torch::data::samplers::SequentialSampler sampler(10);
    model.attach("sampler", sampler);
    model.load(folder / "run");
    EXPECT_EQ(sampler.index(), 4U);
  });
}

TEST(Attach, SavesWhatIsDueOnce) {
  needs({"ddp"});
  const TemporaryFolder folder;
  const auto saved = [&](const SaveWhen& when, const std::string& name) {
    std::vector<int64_t> steps;
    on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
      ParallelModel model(make_net(), mesh, {});
      Progress now = model.load(folder / name);
      while (++now.step <= 7) {
        for (int twice = 0; twice < 2; ++twice) {
          const DueSave due = model.save_if_due(folder / name, now, when);
          EXPECT_FALSE(due.stop);
          if (due.saved && mesh.rank() == 0) steps.push_back(now.step);
          EXPECT_EQ(due.saved.has_value(), due.saved && fs::exists(due.saved->folder / "manifest.json"));
        }
      }
    });
    return steps;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(saved({}, "never"), Steps());
  EXPECT_EQ(saved({.steps = 3}, "steps"), (Steps{3, 6}));
  EXPECT_EQ(saved({.steps = 3, .last_step = 7}, "last"), (Steps{3, 6, 7}));
  EXPECT_EQ(saved({.minutes = 1e-9}, "minutes"), (Steps{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(saved({.minutes = 60}, "hour"), Steps());
  EXPECT_THAT(errors_of<UsageError>(
                  [&](ParallelModel& model) { model.save_if_due(folder / "run", {.step = 1}, {.steps = -1}); }),
              Each(HasSubstr("got steps -1")));
}

/// A list of tensors is not taken for one.
TEST(Attach, AModelTakesListsOfTensors) {
  needs({"ddp"});
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    ParallelModel model(make_net(), mesh, {});
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::ones({4, 3});
    EXPECT_EQ(model(x).sizes(), (std::vector<int64_t>{4, 1}));
    EXPECT_EQ(model({x})[0].sizes(), (std::vector<int64_t>{4, 1})) << "the first output, not the first row";
  });
}

}  // namespace
}  // namespace caravan::testing::attach_test
