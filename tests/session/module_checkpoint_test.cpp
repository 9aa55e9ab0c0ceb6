#include "caravan/session/module_checkpoint.h"

#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <map>
#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/module/adapter.h"
#include "caravan/session/optimizer_record.h"
#include "caravan/session/optimizer_state.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"

namespace caravan::testing::module_checkpoint_test {
namespace {

namespace fs = std::filesystem;
namespace optim = torch::optim;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 12;

torch::nn::Sequential make_net(int64_t width = 5, bool has_buffers = false) {
  torch::nn::Sequential net(torch::nn::Linear(3, width), torch::nn::Tanh(), torch::nn::Linear(width, 1));
  if (has_buffers) net->push_back(torch::nn::BatchNorm1d(1));
  double shift = 0;
  const at::NoGradGuard no_grad;
  for (at::Tensor& weight : net->parameters()) {
    weight.copy_(at::arange(weight.numel(), at::kFloat).add(shift += 0.7).sin().view(weight.sizes()));
  }
  return net;
}

/// How a test makes its engine and its optimizer.
using MakeEngine = std::function<std::unique_ptr<Engine>(Module&, const Mesh&)>;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<at::Tensor>&)>;

template <class E>
MakeEngine engine(const auto& options) {
  return [=](Module& model, const Mesh& mesh) { return std::make_unique<E>(model, mesh, options); };
}

const std::map<std::string, MakeEngine> kEngines{{"ddp", engine<Ddp>(DdpOptions{})},
                                                 {"ddp_bf16", engine<Ddp>(DdpOptions{.compute_dtype = at::kBFloat16})},
                                                 {"zero1", engine<Zero>(ZeroOptions{.stage = 1})},
                                                 {"zero2", engine<Zero>(ZeroOptions{.stage = 2})},
                                                 {"fsdp", engine<Fsdp>(FsdpOptions{})},
                                                 {"fsdp_apart", engine<Fsdp>(FsdpOptions{.share = Share::off})}};

template <class O>
MakeOptimizer optimizer(const auto& options) {
  return [=](const std::vector<at::Tensor>& parameters) { return std::make_unique<O>(parameters, options); };
}

const std::map<std::string, MakeOptimizer> kOptimizers{
    {"sgd", optimizer<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).dampening(0.5))},
    {"plain", optimizer<optim::SGD>(optim::SGDOptions(0.05))},
    {"adam", optimizer<optim::Adam>(optim::AdamOptions(0.02).amsgrad(true))},
    {"adamw", optimizer<optim::AdamW>(optim::AdamWOptions(0.02))},
    {"adagrad", optimizer<optim::Adagrad>(optim::AdagradOptions(0.05).initial_accumulator_value(0.1))},
    {"rmsprop", optimizer<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true))}};

/// One rank of a program.
struct Program {
  Program(const Mesh& on, const std::string& engine_name, const std::string& optimizer_name, int64_t width = 5,
          bool has_buffers = false)
      : mesh(on),
        net(make_net(width, has_buffers)),
        model(net.ptr(), mesh),
        engine(kEngines.at(engine_name)(model, mesh)),
        optimizer(kOptimizers.at(optimizer_name)(engine->parameters())) {}

  /// The loss of a forward pass outside of a step, over all rows.
  double loss() {
    const at::NoGradGuard no_grad;
    return run(inputs()).sub(targets()).square().sum().item<double>();
  }
  void step() {
    optimizer->zero_grad();
    engine->begin_step();
    const at::Tensor x = inputs().chunk(mesh.size())[mesh.rank()], y = targets().chunk(mesh.size())[mesh.rank()];
    (run(x).sub(y).square().sum() / kRows).backward();
    engine->finish_step();
    optimizer->step();
  }
  at::Tensor run(const at::Tensor& x) {
    return model(x.to(model.parameters().front()->unsharded().scalar_type()), {}).to(at::kFloat);
  }
  static at::Tensor inputs() { return at::arange(kRows * 3, at::kFloat).mul(0.31).cos().view({kRows, 3}); }
  static at::Tensor targets() { return inputs().sum(1, /*keepdim=*/true).sin(); }

  Mesh mesh;
  torch::nn::Sequential net;
  ModuleAdapter model;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<optim::Optimizer> optimizer;
};

/// Trains `steps` steps on `ranks` ranks, from the checkpoint of `from` if there is one, and saves to `to`. Returns the
/// loss before and after.
std::pair<double, double> train(int ranks, const std::string& engine, const std::string& optimizer, int64_t steps,
                                const fs::path& from, const fs::path& to) {
  std::pair<double, double> losses;
  on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
    Program program(mesh, engine, optimizer);
    ModuleCheckpoint checkpoint(to, *program.engine, program.optimizer.get());
    Progress at;
    if (!from.empty()) at = checkpoint.load(find_checkpoint(from));
    const double before = program.loss();
    for (int64_t i = 0; i < steps; ++i, ++at.step, ++at.counters["samples"]) program.step();
    checkpoint.save(at);
    const double after = program.loss();
    if (mesh.rank() == 0) losses = {before, after};
  });
  return losses;
}

/// All tensors of a checkpoint, whole.
std::map<std::string, at::Tensor> all_of(const fs::path& run) {
  CheckpointReader reader(find_checkpoint(run));
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    all[name] = at::empty(tensor.shape, tensor.dtype == "I64" ? at::kLong : at::kFloat);
    reader.read(name, {std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape}, all[name]);
  }
  return all;
}

void expect_equal(const fs::path& one, const fs::path& other) {
  const auto first = all_of(one), second = all_of(other);
  EXPECT_EQ(first.size(), second.size());
  for (const auto& [name, tensor] : first) {
    ASSERT_TRUE(second.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor, second.at(name))) << name;
  }
}

TEST(ModuleCheckpoint, ResumesEveryOptimizerBitForBit) {
  for (const auto& [name, unused] : kOptimizers) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    train(1, "ddp", name, 3, "", folder / "half");
    train(1, "ddp", name, 3, folder / "half", folder / "resumed");
    train(1, "ddp", name, 6, "", folder / "whole");
    expect_equal(folder / "whole", folder / "resumed");
    EXPECT_EQ(CheckpointReader(folder / "resumed" / "step_000006").info().counters,
              (std::map<std::string, int64_t>{{"samples", 6}}));
    // Before the first step there is no state to keep.
    train(1, "ddp", name, 0, "", folder / "none");
    train(1, "ddp", name, 6, folder / "none", folder / "from_none");
    expect_equal(folder / "whole", folder / "from_none");
  }
}

/// What one arrangement of ranks saved, every other loads: bit for bit, and goes on as one process does.
TEST(ModuleCheckpoint, HasNoLayout) {
  for (const std::string optimizer : {"adamw", "sgd"}) {
    const TemporaryFolder folder;
    train(1, "ddp", optimizer, 3, "", folder / "half");
    const double loss = train(1, "ddp", optimizer, 3, folder / "half", folder / "whole").second;
    int number = 0;
    for (const auto& [writer, ranks] : std::map<std::string, int>{{"ddp", 2}, {"fsdp", 2}, {"zero1", 3}}) {
      const fs::path written = folder / (writer + "_written");
      const double before = train(ranks, writer, optimizer, 3, "", written).second;
      for (const auto& [reader, unused] : kEngines) {
        for (const int others : {1, 3}) {
          SCOPED_TRACE(optimizer + ": " + writer + std::to_string(ranks) + " to " + reader + std::to_string(others));
          const fs::path copy = folder / std::to_string(number++);
          // A loss of about 13 is summed in another order, or computed with 8 bits.
          const double tolerance = reader == "ddp_bf16" ? 0.15 : 1e-5;
          EXPECT_NEAR(train(others, reader, optimizer, 0, written, copy).first, before, tolerance);
          expect_equal(written, copy);
          EXPECT_NEAR(train(others, reader, optimizer, 3, written, copy / "on").second, loss, 10 * tolerance);
        }
      }
    }
  }
}

/// Trains to step `steps`, from the checkpoint of `from` if there is one, with a rate that begins at `lr` and halves
/// every 3 steps. Returns the rate at the end.
double train_with_schedule(int ranks, const std::string& engine, const std::string& optimizer, double lr, int64_t steps,
                           const fs::path& from, const fs::path& to) {
  double last = 0;
  on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
    Program program(mesh, engine, optimizer);
    optim::OptimizerOptions& options = program.optimizer->param_groups()[0].options();
    options.set_lr(lr);
    optim::StepLR scheduler(*program.optimizer, 3, 0.5);
    ModuleCheckpoint checkpoint(to, *program.engine, program.optimizer.get());
    checkpoint.add_scheduler(scheduler);
    Progress at;
    if (!from.empty()) at = checkpoint.load(find_checkpoint(from));
    for (; at.step < steps; ++at.step) {
      program.step();
      scheduler.step();
    }
    checkpoint.save(at);
    if (mesh.rank() == 0) last = options.get_lr();
  });
  return last;
}

/// Also if the program that goes on begins with another rate: the schedule has come to that of the checkpoint.
TEST(ModuleCheckpoint, ASchedulerGoesOnWhereItWas) {
  for (const std::string optimizer : {"sgd", "adamw"}) {
    for (const auto& [engine, ranks] : std::vector<std::pair<std::string, int>>{{"ddp", 1}, {"ddp", 2}, {"fsdp", 2}}) {
      SCOPED_TRACE(optimizer + " " + engine + std::to_string(ranks));
      const TemporaryFolder folder;
      const double lr = train_with_schedule(ranks, engine, optimizer, 0.1, 10, "", folder / "whole");
      EXPECT_LT(lr, 0.02);
      train_with_schedule(ranks, engine, optimizer, 0.1, 5, "", folder / "half");
      for (const double start : {0.1, 0.7}) {
        const fs::path resumed = folder / ("resumed" + std::to_string(start));
        EXPECT_EQ(train_with_schedule(ranks, engine, optimizer, start, 10, folder / "half", resumed), lr);
        expect_equal(folder / "whole", resumed);
        EXPECT_EQ(CheckpointReader(find_checkpoint(resumed)).info().optimizer,
                  CheckpointReader(find_checkpoint(folder / "whole")).info().optimizer);
      }
    }
  }
}

/// The error of loading the checkpoint of `run` into a program of one rank.
std::string load_error(const fs::path& run, const std::string& optimizer, int64_t width = 5, bool has_buffers = false) {
  std::string message;
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", optimizer, width, has_buffers);
    const double before = program.loss();
    ModuleCheckpoint checkpoint(run, *program.engine, program.optimizer.get());
    message = message_of<DataError>([&] { checkpoint.load(); });
    EXPECT_EQ(program.loss(), before);
  });
  return message;
}

TEST(ModuleCheckpoint, AForgottenSchedulerIsRefused) {
  const TemporaryFolder folder;
  train_with_schedule(1, "ddp", "sgd", 0.1, 2, "", folder / "run");
  EXPECT_THAT(load_error(folder / "run", "sgd"),
              AllOf(HasSubstr("schedulers: the checkpoint has the steps of 1, but the program has added 0"),
                    HasSubstr("add_scheduler()")));
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "sgd");
    optim::StepLR scheduler(*program.optimizer, 3);
    ModuleCheckpoint module_only(folder / "other", *program.engine);
    EXPECT_THAT(message_of<UsageError>([&] { module_only.add_scheduler(scheduler); }),
                HasSubstr("there is no optimizer"));
  });
}

/// The weights in one group, the biases in another.
std::unique_ptr<optim::SGD> two_groups(Engine& engine, double lr_of_weights, double lr_of_biases, double decay) {
  std::vector<at::Tensor> weights, biases;
  for (const at::Tensor& tensor : engine.parameters()) (tensor.dim() > 1 ? weights : biases).push_back(tensor);
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(weights,
                      std::make_unique<optim::SGDOptions>(optim::SGDOptions(lr_of_weights).weight_decay(decay)));
  groups.emplace_back(biases, std::make_unique<optim::SGDOptions>(lr_of_biases));
  return std::make_unique<optim::SGD>(groups, optim::SGDOptions(0.5));
}

TEST(ModuleCheckpoint, GroupsKeepTheirLearningRates) {
  const TemporaryFolder folder;
  constexpr double kOdd = 0.1 + 0.2;  // no decimal of a few digits
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    Program program(mesh, "fsdp", "plain");
    const auto optimizer = two_groups(*program.engine, kOdd, 0.25, 0.125);
    ModuleCheckpoint(folder / "run", *program.engine, optimizer.get()).save({.step = 1});
  });
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "plain");
    const auto load = [&](optim::Optimizer& optimizer) {
      ModuleCheckpoint(folder / "other", *program.engine, &optimizer).load(folder / "run" / "step_000001");
    };
    const auto same = two_groups(*program.engine, 1, 1, 0.125);
    load(*same);
    EXPECT_EQ(same->param_groups()[0].options().get_lr(), kOdd);
    EXPECT_EQ(same->param_groups()[1].options().get_lr(), 0.25);
    const auto other = two_groups(*program.engine, 1, 1, 0.5);
    EXPECT_THAT(message_of<DataError>([&] { load(*other); }),
                HasSubstr("weight_decay is 0.5 in the program, and 0.125 in the checkpoint (0.weight and 1 more)"));
    EXPECT_EQ(other->param_groups()[0].options().get_lr(), 1);
  });
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "plain");
    const auto saved = two_groups(*program.engine, 0.5, 0.25, 0);
    ModuleCheckpoint(folder / "rates", *program.engine, saved.get()).save({.step = 1});
  });
  EXPECT_THAT(
      load_error(folder / "rates", "plain"),
      AllOf(HasSubstr("group 0 of 1 in the program was group 1 of 2 (0.bias and 1 more)"), HasSubstr("before load()")));
}

/// Checkpoints of earlier versions do not know the groups, but the learning rates of their parameters.
TEST(ModuleCheckpoint, GroupsOfEarlierVersionsAreTakenByTheirRates) {
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "plain");
    const auto one = two_groups(*program.engine, 0.5, 0.25, 0);
    const std::vector<Parameter*> parameters = program.engine->model().parameters();
    const OptimizerState two_rates(*one, parameters), one_rate(*program.optimizer, parameters);
    OptimizerRecord saved = record_of(two_rates, parameters, mesh.world());
    for (OptimizerRecord::Group& group : saved.groups) group.options.erase("group");
    check_record(saved, record_of(two_rates, parameters, mesh.world()), two_rates, parameters);
    EXPECT_THAT(message_of<DataError>(
                    [&] { check_record(saved, record_of(one_rate, parameters, mesh.world()), one_rate, parameters); }),
                AllOf(HasSubstr("group 0: was saved with learning rate 0.5 for 2.weight and 0.25 for 2.bias"),
                      HasSubstr("the groups of the program that saved it")));
  });
}

/// The messages of E that `body` throws on each of two ranks.
template <class E>
std::vector<std::string> messages_on_two_ranks(const std::function<void(const Mesh&, Program&)>& body) {
  std::vector<std::string> messages(2);
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "sgd");
    messages[static_cast<size_t>(mesh.rank())] = message_of<E>([&] { body(mesh, program); });
    mesh.world().barrier("after it");
  });
  return messages;
}

/// Rank 0 alone looks at the folder, and one rank may read other files: the peers throw the same instead of waiting.
TEST(ModuleCheckpoint, WhatOneRankFindsAllRanksThrow) {
  using ::testing::Each;
  const TemporaryFolder folder;
  train(1, "ddp", "sgd", 1, "", folder / "run");
  const auto save_to = [](const fs::path& run) {
    return [=](const Mesh&, Program& program) {
      ModuleCheckpoint(run, *program.engine, program.optimizer.get()).save({});
    };
  };
  EXPECT_THAT(messages_on_two_ranks<UsageError>(save_to(folder / "run")),
              Each(AllOf(HasSubstr("holds step_000001, which this run has not loaded"), HasSubstr("rank 0"))));
  write_file(folder / "file", "");
  EXPECT_THAT(messages_on_two_ranks<DataError>(save_to(folder / "file" / "run")),
              Each(AllOf(HasSubstr("cannot be made"), HasSubstr("rank 0"))));
  EXPECT_THAT(messages_on_two_ranks<DataError>([&](const Mesh& mesh, Program& program) {
                ModuleCheckpoint checkpoint(folder / "other", *program.engine, program.optimizer.get());
                checkpoint.load(folder / (mesh.rank() == 0 ? "run" : "nowhere") / "step_000001");
              }),
              Each(AllOf(HasSubstr("nowhere/step_000001"), HasSubstr("rank 1"))));
  train(1, "ddp", "sgd", 1, folder / "run", folder / "second");  // step 2
  EXPECT_THAT(messages_on_two_ranks<UsageError>([&](const Mesh& mesh, Program& program) {
                ModuleCheckpoint checkpoint(folder / "other", *program.engine, program.optimizer.get());
                checkpoint.load(find_checkpoint(folder / (mesh.rank() == 0 ? "run" : "second")));
              }),
              Each(HasSubstr("the checkpoint")));
}

TEST(ModuleCheckpoint, RanksThatDifferAreNotSaved) {
  using ::testing::Each;
  const TemporaryFolder folder;
  const auto save = [&](Program& program, const Progress& at) {
    ModuleCheckpoint(folder / "run", *program.engine, program.optimizer.get()).save(at);
  };
  EXPECT_THAT(messages_on_two_ranks<UsageError>(
                  [&](const Mesh& mesh, Program& program) { save(program, {.step = 4 + mesh.rank()}); }),
              Each(HasSubstr("step: is 4 on rank 0 and 5 on rank 1")));
  EXPECT_THAT(messages_on_two_ranks<UsageError>([&](const Mesh& mesh, Program& program) {
                program.optimizer->param_groups()[0].options().set_lr(mesh.rank() == 0 ? 0.5 : 0.25);
                save(program, {.step = 4});
              }),
              Each(HasSubstr(": is 0.25 on one rank and 0.5 on another")));
  EXPECT_THAT(messages_on_two_ranks<UsageError>([&](const Mesh&, Program& program) {
                program.optimizer->param_groups()[0].options().set_lr(HUGE_VAL);
                save(program, {.step = 4});
              }),
              Each(HasSubstr(": is inf")));
  EXPECT_THAT(list_checkpoints(folder / "run"), ::testing::IsEmpty());
}

TEST(ModuleCheckpoint, BuffersAreThoseOfRankZero) {
  const TemporaryFolder folder;
  at::Tensor mean;
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "sgd", 5, /*has_buffers=*/true);
    ModuleCheckpoint checkpoint(folder / "run", *program.engine, program.optimizer.get());
    for (int i = 0; i < 3; ++i) program.step();
    if (mesh.rank() == 1) program.net->buffers()[0].add_(1);
    checkpoint.save({.step = 3});
    if (mesh.rank() == 0) mean = program.net->buffers()[0].clone();
  });
  on_ranks({{"dp", 3}}, [&](const Mesh& mesh) {
    Program program(mesh, "fsdp", "sgd", 5, /*has_buffers=*/true);
    ModuleCheckpoint checkpoint(folder / "run", *program.engine, program.optimizer.get());
    EXPECT_EQ(checkpoint.load().step, 3);
    EXPECT_TRUE(at::equal(program.net->buffers()[0], mean));
    EXPECT_EQ(program.net->buffers()[2].item<int64_t>(), 3);  // batches
  });
}

TEST(ModuleCheckpoint, WhatDoesNotFitIsListed) {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  train(2, "fsdp", "sgd", 2, "", run);
  EXPECT_THAT(load_error(run, "adam"), HasSubstr("optimizer: its state is that of sgd, but the optimizer is adam"));
  EXPECT_THAT(load_error(run, "plain"),
              AllOf(HasSubstr("momentum is 0 in the program, and 0.9 in the checkpoint (0.bias and 3 more)"),
                    HasSubstr("dampening is 0 in the program, and 0.5 in the checkpoint (0.bias and 3 more)"),
                    HasSubstr("before load()")));
  EXPECT_THAT(load_error(run, "sgd", 6),
              AllOf(HasSubstr("has in another shape"), HasSubstr("0.bias [5] (wanted [6])")));
  EXPECT_THAT(load_error(run, "sgd", 5, true), HasSubstr("lacks 3.weight, 3.bias, 3.running_mean"));
  train(1, "ddp", "plain", 2, "", folder / "plain");
  EXPECT_THAT(load_error(folder / "plain", "sgd"),
              HasSubstr("momentum is 0.9 in the program, and 0 in the checkpoint"));
  EXPECT_THAT(load_error(folder / "plain", "adam"), HasSubstr("its state is that of sgd, but the optimizer is adam"));
  // Nothing is known of the options where the module alone was saved, but what the optimizer lacks is.
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "sgd");
    ModuleCheckpoint(folder / "module", *program.engine).save({.step = 1});
  });
  EXPECT_THAT(load_error(folder / "module", "sgd"), HasSubstr("lacks optimizer.sgd.momentum_buffer.0.weight"));
  EXPECT_THAT(load_error(folder / "module", "adam"), HasSubstr("lacks optimizer.adam.exp_avg.0.weight"));
}

TEST(ModuleCheckpoint, TheModuleAloneIsLoadedWithoutAnOptimizer) {
  const TemporaryFolder folder;
  const double loss = train(2, "fsdp", "adamw", 3, "", folder / "run").second;
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "sgd");
    ModuleCheckpoint checkpoint(folder / "other", *program.engine);
    EXPECT_EQ(checkpoint.load().step, 0);  // none yet
    EXPECT_EQ(checkpoint.load(folder / "run" / "step_000003").step, 3);
    EXPECT_NEAR(program.loss(), loss, 1e-5);
    checkpoint.save({.step = 3});
  });
  EXPECT_EQ(all_of(folder / "other").size(), 4U);
}

TEST(ModuleCheckpoint, RunsAreNotMixed) {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "adamw");
    ModuleCheckpoint checkpoint(run, *program.engine, program.optimizer.get());
    for (int64_t step = 1; step <= 4; ++step) checkpoint.save({.step = step});
    EXPECT_EQ(list_checkpoints(run), (std::vector{run / "step_000003", run / "step_000004"}));
    ModuleCheckpoint second(run, *program.engine);
    EXPECT_THAT(message_of<UsageError>([&] { second.save({.step = 5}); }), HasSubstr("is in use by another run"));
  });
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "adamw");
    ModuleCheckpoint checkpoint(run, *program.engine, program.optimizer.get());
    EXPECT_THAT(message_of<UsageError>([&] { checkpoint.save({.step = 1}); }),
                AllOf(HasSubstr("holds step_000004, which this run has not loaded"), HasSubstr("load() it first")));
    EXPECT_EQ(checkpoint.load(run / "step_000003").step, 3);
    EXPECT_TRUE(fs::exists(run / "step_000004.abandoned"));
    checkpoint.save({.step = 4});
    EXPECT_EQ(list_checkpoints(run), (std::vector{run / "step_000003", run / "step_000004"}));
  });
}

TEST(ModuleCheckpoint, RefusesWhatItCannotKeep) {
  const TemporaryFolder folder;
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    Program program(mesh, "ddp", "sgd");
    const auto error_with = [&](optim::Optimizer* optimizer, int64_t keep) {
      return message_of<UsageError>([&] { ModuleCheckpoint(folder / "run", *program.engine, optimizer, keep); });
    };
    optim::LBFGS lbfgs(program.engine->parameters());
    EXPECT_THAT(error_with(&lbfgs, 2), AllOf(HasSubstr("is LBFGS"), HasSubstr("by a name")));
    optim::SGD foreign({at::ones({2}).requires_grad_()}, optim::SGDOptions(0.1));
    EXPECT_THAT(error_with(&foreign, 2), AllOf(HasSubstr("tensor 0 of group 0: is not a parameter of the model"),
                                               HasSubstr("the model's parameters()")));
    EXPECT_THAT(error_with(nullptr, -1), HasSubstr("-1 checkpoints cannot be kept"));
  });
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    struct Named : torch::nn::Module {
      torch::nn::Linear optimizer{register_module("optimizer", torch::nn::Linear(2, 2))};
    };
    const auto net = std::make_shared<Named>();
    ModuleAdapter model(
        net, [net](const Tensors& in) { return Tensors{net->optimizer(in[0])}; }, mesh);
    Ddp ddp(model, mesh);
    EXPECT_THAT(message_of<UsageError>([&] { ModuleCheckpoint(folder / "run", ddp); }),
                HasSubstr("optimizer.weight: is named as training state is in checkpoints"));
  });
}

}  // namespace
}  // namespace caravan::testing::module_checkpoint_test
