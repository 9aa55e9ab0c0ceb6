// parallelize(), prove(), rehearse() and inspect() of modules of one's own, on ranks that are threads.
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <mutex>
#include <unistd.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/models/model.h"
#include "caravan/optim/optimizer.h"
#include "caravan/session/trials.h"
#include "tests/needs.h"

namespace caravan::testing::parallelize_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 24;

/// The same values on every rank.
template <class Net>
Net with_values(Net net) {
  const at::NoGradGuard no_grad;
  double seed = 0;
  for (at::Tensor& p : net->parameters()) {
    p.copy_(at::arange(p.numel(), at::kDouble).add(++seed).mul(0.7).sin().mul(0.5).view(p.sizes()));
  }
  return net;
}

torch::nn::Sequential make_net() {
  return with_values(torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8),
                                           torch::nn::Tanh(), torch::nn::Linear(8, 5)));
}

at::Tensor sum_of(const at::Tensor& output, const at::Tensor& y) {
  return at::cross_entropy_loss(output, y, {}, at::Reduction::Sum) / kRows;
}
at::Tensor mean_of(const at::Tensor& output, const at::Tensor& y) { return at::cross_entropy_loss(output, y); }

StepData batch_of(bool average) {
  const at::Tensor x = at::arange(kRows * 3, at::kFloat).mul(0.37).sin().view({kRows, 3});
  return {x, at::arange(kRows, at::kLong).remainder(5), average ? mean_of : sum_of};
}

struct Case {
  std::string name;
  std::vector<AxisSize> axes;
  std::vector<Technique> techniques;
  int64_t micro_batches = 1;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int ranks : {1, 2, 3, 4}) {
    const std::vector<AxisSize> dp{{"dp", ranks}};
    all.push_back({"no technique", dp, {}});
    all.push_back({"ddp", dp, {ddp()}, 2});
    all.push_back({"zero1", dp, {zero({.stage = 1})}});
    all.push_back({"zero2", dp, {zero({.stage = 2})}, 2});
    all.push_back({"fsdp", dp, {fsdp({.units = {"*"}})}, 2});
    all.push_back({"fsdp recompute", dp, {recompute({.modules = {"2"}}), fsdp({.reshard_after_forward = false})}});
    if (ranks == 1) continue;
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1"}) {
      all.push_back({schedule, {{"pp", ranks}, {"dp", 1}}, {pipeline({.schedule = schedule, .micro_batches = 4})}});
    }
  }
  all.push_back({"hsdp", {{"dp", 4}}, {fsdp({.shard = 2})}, 3});
  all.push_back({"interleaved fsdp",
                 {{"pp", 2}, {"dp", 2}},
                 {fsdp(), pipeline({.schedule = "interleaved", .stages_per_rank = 2})},
                 4});
  all.push_back({"1f1b zero1 recompute", {{"pp", 2}, {"dp", 2}}, {recompute(), pipeline(), zero()}, 6});
  return all;
}

int num_ranks(const std::vector<AxisSize>& axes) {
  int ranks = 1;
  for (const AxisSize& axis : axes) ranks *= axis.size;
  return ranks;
}

/// Runs `body` on the mesh, and returns the error of a rank, "" if there is none.
std::string on_mesh(const std::vector<AxisSize>& axes, const std::function<void(const Mesh&)>& body) {
  try {
    run_thread_ranks(num_ranks(axes),
                     [&](const std::shared_ptr<Communicator>& world) { body(Mesh::create(world, axes)); });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

ModuleProof proof_of(const Case& one, bool average, const StepData& batch) {
  ModuleProof proof;
  std::mutex lock;
  const std::string error = on_mesh(one.axes, [&](const Mesh& mesh) {
    const torch::nn::Sequential net = make_net();
    const ModuleProof found =
        prove(net, mesh, one.techniques, batch, {.micro_batches = one.micro_batches, .average = average});
    const std::lock_guard guard(lock);
    proof = found;
  });
  EXPECT_EQ(error, "") << one.name;
  return proof;
}

TEST(Parallelize, GradientsAreThoseOfOneProcess) {
  needs({"ddp", "zero1", "zero2", "zero3", "hsdp", "1f1b", "gpipe", "zb-h1", "interleaved", "modules", "full"});
  for (const bool average : {false, true}) {
    for (const Case& one : cases()) {
      const ModuleProof proof = proof_of(one, average, batch_of(average));
      EXPECT_TRUE(proof.holds()) << one.name << ", " << to_string(one.axes) << ": " << proof.to_string();
      EXPECT_EQ(proof.num_parameters, 6) << one.name;
    }
  }
}

TEST(Parallelize, TheOrderOfTechniquesDoesNotMatter) {
  needs({"1f1b", "zero3", "full"});
  std::vector<Technique> techniques{pipeline({.micro_batches = 4}), fsdp(), recompute()};
  for (int i = 0; i < 3; ++i) {
    std::rotate(techniques.begin(), techniques.begin() + 1, techniques.end());
    const ModuleProof proof = proof_of({"rotated", {{"pp", 2}, {"dp", 2}}, techniques}, true, batch_of(true));
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  }
}

/// Three times too large on ranks that have a part of the batch.
TEST(Parallelize, AProofNamesTheFactorOfAWrongLoss) {
  StepData batch = batch_of(false);
  batch.loss = [](const at::Tensor& output, const at::Tensor& y) {
    return sum_of(output, y) * (y.size(0) == kRows ? 1 : 3);
  };
  const ModuleProof proof = proof_of({"ddp", {{"dp", 3}}, {}}, false, batch);
  EXPECT_FALSE(proof.holds());
  ASSERT_TRUE(proof.factor) << proof.to_string();
  EXPECT_NEAR(*proof.factor, 3, 1e-3);
  EXPECT_THAT(proof.to_string(), HasSubstr("3.000 times that of one process"));
}

/// The gradients of a loop of one's own, of which it takes `micro_batches` a step.
void expect_own_loop(const Case& one, bool average) {
  const StepData batch = batch_of(average);
  torch::nn::Sequential alone = make_net();
  batch.loss(alone->forward(batch.x), batch.y).backward();
  const std::string error = on_mesh(one.axes, [&](const Mesh& mesh) {
    const torch::nn::Sequential net = make_net();
    ParallelModel model(net, mesh, one.techniques, {.micro_batches = one.micro_batches, .average = average});
    for (int step = 0; step < 3; ++step) {  // the first one is recorded, later ones follow it
      const auto x = rows_of(batch.x, mesh).tensor_split(one.micro_batches);
      const auto y = rows_of(batch.y, mesh).tensor_split(one.micro_batches);
      for (size_t m = 0; m < x.size(); ++m) batch.loss(model(x[m]), y[m]).backward();
      if (step == 1) {  // evaluations between steps
        const at::NoGradGuard no_grad;
        EXPECT_LE((model(batch.x) - alone->forward(batch.x)).abs().max().item<double>(), 1e-5) << one.name;
      }
    }
    const auto want = alone->named_parameters();
    for (const Parameter* parameter : model.module().parameters()) {
      const Box box = local_box(parameter->global_shape(), parameter->sharded_layout(), model.mesh());
      at::Tensor piece = want[parameter->name()].grad();
      for (size_t dim = 0; dim < box.size.size(); ++dim) {
        piece = piece.narrow(static_cast<int64_t>(dim), box.offset[dim], box.size[dim]);
      }
      if (piece.numel() == 0) continue;
      const double apart = (parameter->sharded().grad() - piece).norm().item<double>();
      EXPECT_LE(apart, 2e-5 * (piece.norm().item<double>() + 0.1)) << one.name << ": " << parameter->name();
    }
  });
  EXPECT_EQ(error, "") << one.name;
}

TEST(Parallelize, ALoopOfItsOwnReducesWithTheLastBackward) {
  needs({"ddp", "zero2", "zero3", "hsdp", "full"});
  for (const bool average : {false, true}) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int64_t micro_batches : {1, 2}) {
        const std::vector<AxisSize> dp{{"dp", ranks}};
        expect_own_loop({"ddp", dp, {ddp()}, micro_batches}, average);
        expect_own_loop({"zero2", dp, {zero({.stage = 2})}, micro_batches}, average);
        expect_own_loop({"fsdp recompute", dp, {fsdp(), recompute()}, micro_batches}, average);
      }
    }
    expect_own_loop({"hsdp", {{"dp", 4}}, {fsdp({.shard = 2})}, 2}, average);
  }
}

TEST(Parallelize, AMeanIsNoticedInTheFirstStep) {
  const StepData batch = batch_of(true);
  for (const bool own_loop : {false, true}) {
    const auto train = [&](const std::vector<AxisSize>& axes, const ParallelOptions& options) {
      return on_mesh(axes, [&](const Mesh& mesh) {
        ParallelModel model(make_net(), mesh, {}, options);
        const at::Tensor x = rows_of(batch.x, mesh), y = rows_of(batch.y, mesh);
        if (own_loop) {
          mean_of(model(x), y).backward();
        } else {
          model.step(x, y, mean_of);
        }
      });
    };
    EXPECT_THAT(train({{"dp", 3}}, {}), AllOf(HasSubstr("NllLossBackward0"), HasSubstr("3 times too large"),
                                              HasSubstr("ParallelOptions::average")));
    EXPECT_EQ(train({{"dp", 3}}, {.average = true}), "");
    EXPECT_EQ(train({{"dp", 1}}, {}), "");
  }
  const auto squares = [](const at::Tensor& output, const at::Tensor&) { return output.square().mean(); };
  EXPECT_THAT(on_mesh({{"dp", 2}},
                      [&](const Mesh& mesh) { ParallelModel(make_net(), mesh, {}).step(batch.x, batch.y, squares); }),
              HasSubstr("MeanBackward0"));
}

TEST(Parallelize, ChoicesThatDoNotFitAreNamed) {
  needs({"ddp", "zero3", "diloco", "1f1b", "modules"});
  const auto error_of = [&](const std::vector<AxisSize>& axes, const std::vector<Technique>& techniques,
                            const ParallelOptions& options = {}) {
    return on_mesh(axes, [&](const Mesh& mesh) { ParallelModel(make_net(), mesh, techniques, options); });
  };
  EXPECT_THAT(error_of({{"dp", 2}}, {ddp(), fsdp()}), HasSubstr("data_parallel: is chosen twice"));
  EXPECT_THAT(error_of({{"dp", 1}, {"tp", 2}}, {}), HasSubstr("only models of this library"));
  EXPECT_THAT(error_of({{"tp", 2}}, {}), HasSubstr("has no axis dp"));
  EXPECT_THAT(
      error_of({{"dp", 2}}, {fsdp({.units = {"blocks.*"}})}),
      AllOf(HasSubstr("blocks.*: fits none of the module's units, which are 0, 1, 2, 3, 4"), HasSubstr("in_units()")));
  EXPECT_THAT(error_of({{"dp", 2}}, {recompute({.modules = {"9"}})}), HasSubstr("in_units()"));
  EXPECT_THAT(error_of({{"dp", 2}}, {mixed_precision({.compute = "fp16"})}), HasSubstr("use 'bf16'"));
  EXPECT_THAT(error_of({{"dp", 2}}, {Setting("data_parallel", "diloco")}), HasSubstr("steps in a way of its own"));
  EXPECT_THAT(error_of({{"dp", 2}}, {}, {.micro_batches = 0}), HasSubstr("micro_batches: is 0"));
  EXPECT_THAT(error_of({{"pp", 2}, {"dp", 1}}, {pipeline({.micro_batches = 4})}, {.micro_batches = 2}),
              HasSubstr("is 2, and 4 for the pipeline"));
  EXPECT_THROW(zero({.stage = 3}), UsageError);
  EXPECT_THROW(pipeline({.schedule = "1f1"}), UsageError);
}

TEST(Parallelize, StepsThatDoNotFitAreNamed) {
  needs({"1f1b"});
  const StepData batch = batch_of(true);
  EXPECT_THAT(on_mesh({{"pp", 2}, {"dp", 1}},
                      [&](const Mesh& mesh) {
                        ParallelModel model(make_net(), mesh, {}, {.micro_batches = 2});
                        model(batch.x);
                      }),
              HasSubstr("call step(), or evaluate()"));
  EXPECT_THAT(on_mesh({{"dp", 1}},
                      [&](const Mesh& mesh) {
                        ParallelModel model(make_net(), mesh, {});
                        model(batch.x);
                        model(batch.x);
                      }),
              HasSubstr("1 of 1 micro-batches had no backward"));
  EXPECT_THAT(on_mesh({{"dp", 1}},
                      [&](const Mesh& mesh) {
                        ParallelModel(make_net(), mesh, {}, {.micro_batches = 5})
                            .step(batch.x.narrow(0, 0, 4), batch.y.narrow(0, 0, 4), sum_of);
                      }),
              HasSubstr("got 4 and 4 rows for 5 micro-batches"));
  EXPECT_THAT(
      on_mesh({{"dp", 1}}, [&](const Mesh& mesh) { ParallelModel(make_net(), mesh, {}).step(batch.x, batch.y); }),
      HasSubstr("pass a function"));
}

TEST(Parallelize, EvaluatesThroughStages) {
  needs({"1f1b"});
  const StepData batch = batch_of(true);
  const at::Tensor want = make_net()->forward(batch.x).detach();
  EXPECT_EQ(on_mesh({{"pp", 2}, {"dp", 1}},
                    [&](const Mesh& mesh) {
                      ParallelModel model(make_net(), mesh, {}, {.micro_batches = 2, .average = true});
                      const at::Tensor got = model.evaluate(batch.x);
                      EXPECT_LE((got - want).abs().max().item<double>(), 1e-6) << "on every rank";
                    }),
            "");
}

TEST(Parallelize, ClipsByTheNormOfAllRanks) {
  needs({"zero3"});
  const StepData batch = batch_of(true);
  torch::nn::Sequential alone = make_net();
  batch.loss(alone->forward(batch.x), batch.y).backward();
  double squares = 0;
  for (const at::Tensor& p : alone->parameters()) squares += p.grad().square().sum().item<double>();
  EXPECT_EQ(on_mesh({{"dp", 3}},
                    [&](const Mesh& mesh) {
                      ParallelModel model(make_net(), mesh, {fsdp()}, {.average = true});
                      model.step(rows_of(batch.x, mesh), rows_of(batch.y, mesh), batch.loss);
                      const double norm = model.clip_grad_norm(0.01);
                      EXPECT_NEAR(norm / std::sqrt(squares), 1, 1e-5);
                      EXPECT_NEAR(model.clip_grad_norm(0.01), 0.01, 1e-6);
                    }),
            "");
}

TEST(Parallelize, RehearsesWithoutRanksAndLeavesTheNetAsItWas) {
  needs({"ddp", "zero3", "1f1b"});
  torch::nn::Sequential net = make_net();
  const StepData batch = batch_of(true);
  const ParallelOptions average{.average = true};
  const MakeOptimizer adamw = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters));
  };
  const torch::nn::Sequential wide(torch::nn::Linear(64, 512), torch::nn::Linear(512, 5));
  const StepData rows{at::zeros({24, 64}), batch.y, batch.loss};
  const Rehearsal found = rehearse(wide, {.dp = 8, .rank = 3}, {ddp()}, rows, adamw, average);
  const double gradients = 4 * (65 * 512 + 513 * 5);
  EXPECT_NEAR(found.bytes_sent("dp") / (2 * 7 * gradients / 8), 1, 1e-3)
      << "2 (n - 1) / n of the gradients, and padding";
  const Rehearsal sharded = rehearse(wide, {.dp = 8, .rank = 3}, {fsdp()}, rows, adamw, average);
  EXPECT_NEAR(sharded.bytes_sent("dp") / (3 * 7 * gradients / 8), 1, 0.02)
      << "two gathers, one reduction; parts are cut at rows";
  const std::string stages =
      inspect(net, {.dp = 2, .pp = 2}, {fsdp(), pipeline({.micro_batches = 4})}, batch, adamw, average);
  EXPECT_THAT(stages, AllOf(HasSubstr("rank 0 of 4: "), HasSubstr("rank 2 of 4: "),
                            HasSubstr("sends over dp, reduce_scatter"), HasSubstr("sends over pp, send")));
  const torch::nn::Sequential same = make_net();
  for (size_t i = 0; i < net->parameters().size(); ++i)
    EXPECT_TRUE(at::equal(net->parameters()[i], same->parameters()[i]));
  EXPECT_TRUE(net->forward(batch.x).defined());
}

/// A loss of two forwards, and what does not flow through the outputs: averaged by ranks and losses.
TEST(Parallelize, AveragesTheWholeLoss) {
  const StepData batch = batch_of(true);
  const auto loss_of = [&](const at::Tensor& a, const at::Tensor& b, const torch::nn::Sequential& net,
                           const at::Tensor& y) {
    return mean_of(a, y) + 0.5 * (a - b).square().mean() +
           0.1 * net->ptr<torch::nn::LinearImpl>(0)->weight.square().sum();
  };
  torch::nn::Sequential alone = make_net();
  loss_of(alone->forward(batch.x), alone->forward(batch.x.flip({1})), alone, batch.y).backward();
  const at::Tensor want = alone->ptr<torch::nn::LinearImpl>(0)->weight.grad();
  EXPECT_EQ(on_mesh({{"dp", 3}},
                    [&](const Mesh& mesh) {
                      torch::nn::Sequential net = make_net();
                      ParallelModel model(net, mesh, {}, {.micro_batches = 2, .average = true});
                      const at::Tensor x = rows_of(batch.x, mesh), y = rows_of(batch.y, mesh);
                      for (int step = 0; step < 2; ++step) {
                        model(x);
                        model.abandon_step();  // a batch that is skipped
                        loss_of(model(x), model(x.flip({1})), net, y).backward();
                        const at::Tensor got = net->ptr<torch::nn::LinearImpl>(0)->weight.grad();
                        const double apart = (got - want).norm().item<double>();
                        EXPECT_LE(apart, 2e-5 * want.norm().item<double>()) << "step " << step;
                      }
                    }),
            "");
}

TEST(Parallelize, SavesGoForward) {
  const auto run = std::filesystem::temp_directory_path() / ("caravan_saves_" + std::to_string(getpid()));
  EXPECT_THAT(on_mesh({{"dp", 1}},
                      [&](const Mesh& mesh) {
                        ParallelModel model(make_net(), mesh, {});
                        EXPECT_EQ(model.load(run / "last").step, 0);
                        for (const int64_t step : {5, 10}) {  // two folders in turn
                          model.save(std::filesystem::relative(run) / "last", {.step = step});
                          model.save(run / "best/", {.step = step});
                        }
                        EXPECT_EQ(model.load(run / "last").step, 10);
                        model.save(run / "last", {.step = 7});
                      }),
              HasSubstr("step 7 comes before step 10"));
  EXPECT_TRUE(std::filesystem::exists(run / "last" / "step_000010"));
  EXPECT_TRUE(std::filesystem::exists(run / "best" / "step_000005"));
  std::filesystem::remove_all(run);
}

/// A module with attention of torch, whose mask has no shape function in the wheel.
struct AttendImpl : torch::nn::Module {
  torch::nn::Linear qkv{register_module("qkv", torch::nn::Linear(8, 24))};
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(x).view({x.size(0), x.size(1), 2, 12}).transpose(1, 2).chunk(3, -1);
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true).sum({1, 3}).tanh();
  }
};
TORCH_MODULE(Attend);

TEST(Parallelize, RehearsesAttentionOfTorch) {
  const StepData rows{at::zeros({4, 6, 8}), at::zeros({4, 6}),
                      [](const at::Tensor& output, const at::Tensor& y) { return (output - y).square().sum(); }};
  EXPECT_THAT(inspect(Attend(), {.dp = 2}, {ddp()}, rows), HasSubstr("sends over dp, all_reduce"));
}

/// Of the library, split by all axes: ids and labels are the whole batch on every rank.
TEST(Parallelize, AModelOfTheLibraryHasTheLossOfOneProcess) {
  needs({"ddp", "zero3", "1d", "ring", "experts", "1f1b"});
  const ModelConfig config{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 11, .dropout = 0.1};
  const at::Tensor ids = at::arange(8 * 8, at::kLong).mul(7).remainder(11).view({8, 8});
  at::Tensor labels = at::arange(8 * 8, at::kLong).mul(5).remainder(11).view({8, 8});
  labels[0].fill_(-100);  // ranks have different numbers of targets
  const auto losses = [&](const ModelConfig& of, const std::vector<AxisSize>& axes,
                          const std::vector<Technique>& techniques, int64_t micro_batches) {
    std::vector<double> found;
    std::mutex lock;
    EXPECT_EQ(on_mesh(axes,
                      [&](const Mesh& mesh) {
                        const auto model = make_model(of);
                        ParallelModel parallel(*model, mesh, techniques, {.micro_batches = micro_batches, .seed = 3});
                        AdamW optimizer(parallel.engine().state());
                        std::vector<double> own;
                        for (int step = 0; step < 3; ++step) {
                          own.push_back(parallel.step(ids, labels));
                          own.push_back(parallel.clip_grad_norm(0));
                          optimizer.step(1e-2);
                        }
                        const std::lock_guard guard(lock);
                        found = own;
                      }),
              "");
    return found;
  };
  const auto expect_same = [&](const ModelConfig& of, const std::vector<AxisSize>& axes,
                               const std::vector<Technique>& techniques, int64_t micro_batches) {
    const std::vector<double> want = losses(of, {{"dp", 1}}, {}, 1), got = losses(of, axes, techniques, micro_batches);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i] / want[i], 1, 2e-4) << to_string(axes) << ", number " << i;
  };
  expect_same(config, {{"dp", 2}}, {ddp()}, 2);
  expect_same(config, {{"dp", 4}}, {fsdp()}, 1);
  expect_same(config, {{"dp", 2}, {"tp", 2}}, {fsdp()}, 2);
  expect_same(config, {{"pp", 2}, {"dp", 2}}, {pipeline({.micro_batches = 2})}, 1);
  ModelConfig whole = config;
  whole.dropout = 0;
  expect_same(whole, {{"dp", 2}, {"cp", 2}}, {ddp()}, 1);
}

TEST(Parallelize, RanksThatDoNotAgreeAreNamed) {
  needs({"1f1b"});
  const StepData batch = batch_of(true);
  const ParallelOptions average{.micro_batches = 2, .average = true};
  EXPECT_THAT(on_mesh({{"pp", 2}, {"dp", 1}},
                      [&](const Mesh& mesh) {
                        ParallelModel model(make_net(), mesh, {}, average);
                        const int64_t first = 8 * mesh.rank();
                        model.step(batch.x.narrow(0, first, 8), batch.y.narrow(0, first, 8), mean_of);
                      }),
              AllOf(HasSubstr("x of step(), over pp: differs between ranks"), HasSubstr("the same rows")));
  EXPECT_THAT(on_mesh({{"dp", 2}},
                      [&](const Mesh& mesh) {
                        ParallelModel model(make_net(), mesh, {}, {.average = true});
                        model.step(batch.x.narrow(0, 0, 4 + mesh.rank()), batch.y.narrow(0, 0, 4 + mesh.rank()),
                                   mean_of);
                      }),
              HasSubstr("rows: differs between ranks: 4 and 5"));
  EXPECT_THAT(
      on_mesh({{"dp", 2}},
              [&](const Mesh& mesh) { ParallelModel(make_net(), mesh, {}, {.micro_batches = 1 + mesh.rank()}); }),
      HasSubstr("micro_batches: differs between ranks: 1 and 2"));
}

/// A mean and a sum by what they do, whatever operation makes them.
TEST(Parallelize, AMeanIsNoticedByItsHalves) {
  const StepData batch = batch_of(true);
  const auto error_of = [&](const ParallelOptions& options, const ParallelModel::Loss& loss) {
    return on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
      ParallelModel(make_net(), mesh, {}, options).step(rows_of(batch.x, mesh), rows_of(batch.y, mesh), loss);
    });
  };
  const auto by_hand = [](const at::Tensor& output, const at::Tensor& y) {
    return at::cross_entropy_loss(output, y, {}, at::Reduction::Sum) / y.size(0) * 0.5;
  };
  const auto smooth = [](const at::Tensor& output, const at::Tensor& y) {
    return at::cross_entropy_loss(output, y, {}, at::Reduction::Mean, -100, 0.1);
  };
  EXPECT_THAT(error_of({}, by_hand), HasSubstr("2 times too large"));
  EXPECT_THAT(error_of({}, smooth), HasSubstr("2 times too large"));
  EXPECT_EQ(error_of({.average = true}, by_hand), "");
  EXPECT_EQ(error_of({}, sum_of), "");
  EXPECT_THAT(error_of({.average = true}, sum_of), HasSubstr("is a sum over its rows"));
}

TEST(Parallelize, WeightsThatAreNotFiniteAreNotSaved) {
  const StepData batch = batch_of(true);
  const auto run = std::filesystem::temp_directory_path() / ("caravan_nan_" + std::to_string(getpid()));
  EXPECT_THAT(on_mesh({{"dp", 2}},
                      [&](const Mesh& mesh) {
                        ParallelModel model(make_net(), mesh, {}, {.average = true});
                        const at::NoGradGuard no_grad;
                        if (mesh.rank() == 1) model.parameters().front().fill_(NAN);
                        model.save(run, {.step = 1});
                      }),
              HasSubstr("not finite"));
  EXPECT_FALSE(std::filesystem::exists(run / "step_000001"));
  std::filesystem::remove_all(run);
}

}  // namespace
}  // namespace caravan::testing::parallelize_test
