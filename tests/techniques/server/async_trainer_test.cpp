/// A parameter server without a barrier, over thread ranks. If a test depends on which worker is faster, one waits for
/// the other's progress, never for the clock.

#include "caravan/techniques/server/async_trainer.h"

#include <array>
#include <atomic>
#include <gmock/gmock.h>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/models/model.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/server/param_server.h"
#include "tests/engine/parameters.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/one_process.h"

namespace caravan::testing::async_trainer_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Problem kProblem(Architecture::gpt2());

/// The rows of worker `rank` in a step, with the loss its mean over them.
StageRunner::Source rows_of(int rank, int ranks, int64_t step, int micros = 1) {
  const Problem::Batch batch = kProblem.batch(step);
  const int64_t targets = kProblem.part(batch, rank, ranks, 0, 1).labels.ge(0).sum().item<int64_t>();
  return [=](int micro) {
    const Problem::Batch part = kProblem.part(batch, rank, ranks, micro, micros);
    MicroBatch rows{part.ids, part.labels, part.context};
    rows.context.loss_scale = 1.0 / static_cast<double>(targets);
    return rows;
  };
}

Strategy servers_of(Module& model, const Mesh& mesh, int servers, at::ScalarType compute = at::kFloat) {
  return param_server(model, mesh, {.servers = servers, .is_synchronous = false, .compute_dtype = compute});
}

AsyncOptions options_with(double lr, int64_t staleness = kUnbounded) {
  return {.staleness = staleness, .learning_rate = [lr](int64_t) { return lr; }, .timeout = std::chrono::seconds(20)};
}

/// Whole parameters, on every rank.
Named values_of(Engine& engine) {
  const at::NoGradGuard no_grad;
  Named values;
  for (const Parameter* parameter : engine.model().parameters()) {
    values[parameter->name()] = redistribute(parameter->sharded().detach(), parameter->sharded_layout(),
                                             Layout::all(engine.mesh(), Invariant{}), engine.mesh(), parameter->name())
                                    .clone();
  }
  return values;
}

/// The loss over the whole batch of a step, per target.
double whole_loss(Engine& engine, int64_t step) {
  const at::NoGradGuard no_grad;
  engine.begin_evaluation();
  Problem::Batch batch = kProblem.batch(step);
  batch.context.phase = Phase::evaluate;
  const double loss = engine.model().run({batch.ids, batch.labels}, batch.context)[0].item<double>();
  engine.end_evaluation();
  return loss;
}

// ---- one step, against one process ----

/// The starting values after one step of SGD by n workers: each subtracts lr times its own, clipped gradient.
Named one_step(int ranks, double lr, double clip_norm) {
  Named values;
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    Model model(kProblem.config);
    Ddp engine(model, mesh);
    StageRunner runner(engine);
    values = values_of(engine);
    for (int rank = 0; rank < ranks; ++rank) {
      runner.run_step(1, rows_of(rank, ranks, 0));
      const double scale = clip_scale(grad_norm(engine.state(), mesh), clip_norm);
      for (const auto& [name, gradient] : gradients_of(model)) values[name] -= lr * scale * gradient;
    }
  });
  return values;
}

/// What all ranks send until a drain after one step.
int64_t bytes_of_one_step(const Engine& engine, int ranks) {
  int64_t elements = 0;
  int64_t num_shards = 0;
  std::set<int> servers;
  for (const Bucket& bucket : engine.state().layout.buckets()) {
    elements += bucket.unsharded_count;
    for (int rank = 0; rank < ranks; ++rank) {
      if (shard_count(bucket, rank) == 0) continue;
      ++num_shards;
      servers.insert(rank);
    }
  }
  const auto others = static_cast<int64_t>(ranks - 1);
  const int64_t gradients_and_values = others * elements * (4 + 4);
  const int64_t headers = others * 8 * (num_shards + static_cast<int64_t>(servers.size()));  // and the ends
  return gradients_and_values + headers + others * 2 * (16 + 8);                             // and two questions
}

TEST(AsyncTrainer, OneStepIsTheSumOfTheWorkersUpdates) {
  for (const double clip_norm : {0.0, 0.3}) {
    for (const int ranks : {2, 3}) {
      const Named want = one_step(ranks, 0.5, clip_norm);
      for (int servers = 0; servers <= ranks; ++servers) {
        for (const int micros : {1, 3}) {
          SCOPED_TRACE(fmt::format("{} ranks, {} servers, {} micro-batches", ranks, servers, micros));
          on_mesh({{"dp", ranks}}, [&](const Mesh& mesh) {
            Model model(kProblem.config);
            Engine engine(model, mesh, servers_of(model, mesh, servers));
            Sgd optimizer(engine.state());
            AsyncOptions options = options_with(0.5, 0);  // lock step: no worker reads what another has pushed
            options.num_micro_batches = micros;
            options.clip_norm = clip_norm;
            AsyncTrainer trainer(engine, optimizer, options);
            const SyncReport report =
                trainer.run(1, [&](int64_t step) { return rows_of(mesh.rank(), ranks, step, micros); });
            EXPECT_EQ(report.clocks, std::vector<int64_t>(static_cast<size_t>(ranks), 1));
            EXPECT_EQ(report.pushes(), ranks);
            EXPECT_EQ(optimizer.num_steps(), ranks);
            EXPECT_GT(report.grad_norm, 0);
            int64_t sent = trainer.bytes_sent();
            const Buffer buffer{&sent, 1, Dtype::int64};
            mesh.world().all_reduce(buffer, buffer, ReduceOp::sum);
            EXPECT_EQ(sent, bytes_of_one_step(engine, ranks));
            const Named got = values_of(engine);
            const auto [apart, worst] = distance(got, want);
            EXPECT_LE(apart, 1e-5) << worst;  // another order of fp32 sums
          });
        }
      }
    }
  }
}

// ---- training ----

struct Outcome {
  double first = 0;
  double last = 0;
  StalenessCounts staleness;
  std::vector<int64_t> clocks;
};

constexpr int64_t kSteps = 60;

Outcome trained(int ranks, int servers, int64_t staleness, double clip_norm, at::ScalarType compute) {
  Outcome outcome;
  on_mesh({{"dp", ranks}}, [&](const Mesh& mesh) {
    Model model(kProblem.config);
    Engine engine(model, mesh, servers_of(model, mesh, servers, compute), {.seed = 5});
    AdamW optimizer(engine.state());
    AsyncOptions options = options_with(0.003, staleness);
    options.clip_norm = clip_norm;
    AsyncTrainer trainer(engine, optimizer, options);
    const double first = whole_loss(engine, 0);
    StalenessCounts counts;
    SyncReport report;
    for (const int64_t drain_at : {int64_t{20}, kSteps}) {  // an evaluation in between
      report = trainer.run(drain_at, [&](int64_t step) { return rows_of(mesh.rank(), ranks, step); });
      EXPECT_EQ(report.slowest(), drain_at);
      counts += report.staleness;
      EXPECT_LT(whole_loss(engine, 0), first);
    }
    EXPECT_EQ(optimizer.num_steps(), report.pushes());
    const double last = whole_loss(engine, 0);
    if (mesh.rank() == 0) outcome = {first, last, counts, report.clocks};
  });
  return outcome;
}

/// The same by ddp, whose ranks step together.
double synchronous_loss() {
  double loss = 0;
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    Model model(kProblem.config);
    Engine engine(model, mesh, ddp(model, mesh), {.seed = 5});
    AdamW optimizer(engine.state());
    StageRunner runner(engine);
    for (int64_t step = 0; step < kSteps; ++step) {
      runner.run_step(1, [&](int) {
        const Problem::Batch part = kProblem.part(kProblem.batch(step), mesh.rank(), 2, 0, 1);
        return MicroBatch{part.ids, part.labels, part.context};
      });
      optimizer.step(0.003);
    }
    const double last = whole_loss(engine, 0);
    if (mesh.rank() == 0) loss = last;
  });
  return loss;
}

TEST(AsyncTrainer, LossFallsToThatOfSynchronousSteps) {
  const double want = synchronous_loss();
  for (const auto& [ranks, servers, staleness, clip_norm, compute] :
       std::vector<std::tuple<int, int, int64_t, double, at::ScalarType>>{{2, 0, kUnbounded, 0, at::kFloat},
                                                                          {2, 1, 2, 1, at::kFloat},
                                                                          {3, 2, kUnbounded, 0, at::kBFloat16},
                                                                          {3, 0, 0, 0, at::kFloat},
                                                                          {4, 0, kUnbounded, 1, at::kFloat}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} servers, staleness {}", ranks, servers, staleness));
    const Outcome outcome = trained(ranks, servers, staleness, clip_norm, compute);
    // n workers make n updates a step, so it may be lower; 0.1 nats are the noise of stale gradients.
    EXPECT_LT(outcome.last, want + 0.1) << "from " << outcome.first;
    EXPECT_GT(outcome.staleness.total(), 0);
  }
}

TEST(AsyncTrainer, LockStepHasTheStalenessOfOneStep) {
  const Outcome outcome = trained(3, 2, 0, 0, at::kFloat);
  EXPECT_EQ(outcome.clocks, std::vector<int64_t>(3, kSteps));
  EXPECT_LE(outcome.staleness.used().size(), 3U) << outcome.staleness.to_string();
  EXPECT_GT(outcome.staleness.mean(), 0) << "the updates of the others come in between";
}

// ---- the bound ----

/// Rank 2 of 3 is slow: at each event of its first 4 steps it waits until rank 1 has begun the step `lead` steps after
/// its own. It makes progress while it waits, as rank 1 may need what it sends. Where rank 0 is slower still, rank 2
/// begins a fifth step, which rank 1 need not follow: it drains after 4 steps of the slowest. Returns the largest lead
/// that the run reports. Checks the bound by what the workers have really done.
int64_t lead_with_a_slow_worker(int64_t staleness, int64_t lead) {
  constexpr int64_t kDrainAt = 4;
  std::array<std::atomic<int64_t>, 3> begun{-1, -1, -1};
  std::array<std::atomic<int64_t>, 3> done{};
  int64_t largest = -1;
  on_mesh({{"dp", 3}}, [&](const Mesh& mesh) {
    Model model(kProblem.config);
    Engine engine(model, mesh, servers_of(model, mesh, 1));
    Sgd optimizer(engine.state());
    AsyncOptions options = options_with(0.01, staleness);
    if (mesh.rank() == 2) {
      options.on_event = [&] {
        while (begun[2] < kDrainAt && begun[1] < begun[2] + lead) {
          mesh.world().progress();
          std::this_thread::yield();
        }
      };
    }
    AsyncTrainer trainer(engine, optimizer, options);
    const auto own = static_cast<size_t>(mesh.rank());
    const auto rows = [&](int64_t step) {
      begun[own] = step;
      for (const auto& other : done) EXPECT_TRUE(staleness == kUnbounded || other >= step - staleness);
      return rows_of(mesh.rank(), 3, step);
    };
    const auto after_step = [&] {
      done[own] = begun[own] + 1;
      return false;
    };
    const SyncReport report = trainer.run(kDrainAt, rows, after_step);
    EXPECT_EQ(report.slowest(), kDrainAt);
    EXPECT_GE(report.clocks[1], kDrainAt - 1 + lead);
    if (mesh.rank() == 0) largest = report.largest_lead;
  });
  return largest;
}

TEST(AsyncTrainer, ABoundHoldsWithASlowWorker) {
  for (const int64_t staleness : {0, 1, 3}) EXPECT_EQ(lead_with_a_slow_worker(staleness, staleness), staleness);
}

TEST(AsyncTrainer, WithoutABoundAFastWorkerContinues) { EXPECT_GE(lead_with_a_slow_worker(kUnbounded, 7), 7); }

TEST(AsyncTrainer, TheLossIsTheMeanOverTheTargetsOfAllWorkers) {
  double want = 0;  // by the only worker that has targets
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    Model model(kProblem.config);
    Engine engine(model, mesh, ddp(model, mesh));
    want = StageRunner(engine).run_step(1, rows_of(1, 2, 0));
  });
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    Model model(kProblem.config);
    Engine engine(model, mesh, servers_of(model, mesh, 0));
    Sgd optimizer(engine.state());
    AsyncTrainer trainer(engine, optimizer, options_with(0, 0));
    // Worker 0 has no targets, as in a row of a chat in which only the user speaks.
    const auto rows = [&](int64_t step) -> StageRunner::Source {
      return [&, all = rows_of(mesh.rank(), 2, step)](int micro) {
        MicroBatch part = all(micro);
        if (mesh.rank() == 0) part.labels = at::full_like(part.labels, kIgnoredLabel);
        return part;
      };
    };
    EXPECT_NEAR(trainer.run(1, rows).loss, want, 1e-6);
  });
}

// ---- the end ----

TEST(AsyncTrainer, AStopOfOneRankDrainsAll) {
  on_mesh({{"dp", 3}}, [](const Mesh& mesh) {
    Model model(kProblem.config);
    Engine engine(model, mesh, servers_of(model, mesh, 0));
    Sgd optimizer(engine.state());
    AsyncTrainer trainer(engine, optimizer, options_with(0.01, 1));
    int64_t begun = 0;
    const auto rows = [&](int64_t step) {
      begun = step;
      return rows_of(mesh.rank(), 3, step);
    };
    const SyncReport report = trainer.run(1000, rows, [&] { return mesh.rank() == 2 && begun == 3; });
    EXPECT_TRUE(report.stop);
    EXPECT_EQ(report.clocks[2], 4);
    EXPECT_LT(report.slowest(), 1000);
    EXPECT_FALSE(trainer.run(report.slowest() + 2, rows).stop) << "goes on";
    EXPECT_EQ(*std::ranges::min_element(trainer.clocks()), report.slowest() + 2);
  });
}

/// Clocks continue where they were: with a bound, the one ahead waits. Worker 1 waits in its last step until worker 0
/// has begun one: else the drain may come first, and worker 0 makes no step.
TEST(AsyncTrainer, ClocksOfAResumedRun) {
  std::atomic<bool> first_begun{false};
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    Model model(kProblem.config);
    Engine engine(model, mesh, servers_of(model, mesh, 1));
    Sgd optimizer(engine.state());
    optimizer.set_num_steps(25);
    std::vector<int64_t> steps;
    AsyncOptions options = options_with(0.01, 2);
    if (mesh.rank() == 1) {
      options.on_event = [&] {
        const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (steps.back() == 13 && !first_begun) {
          mesh.world().progress();
          std::this_thread::yield();
          if (std::chrono::steady_clock::now() > give_up) {
            ADD_FAILURE() << "worker 0 has begun no step for 20 seconds";
            return;
          }
        }
      };
    }
    AsyncTrainer trainer(engine, optimizer, options);
    trainer.set_clocks({15, 10});
    const SyncReport report = trainer.run(14, [&](int64_t step) {
      steps.push_back(step);
      if (mesh.rank() == 0) first_begun = true;
      return rows_of(mesh.rank(), 2, step);
    });
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(steps.front(), mesh.rank() == 0 ? 15 : 10);
    EXPECT_EQ(report.slowest(), 14);
    EXPECT_EQ(optimizer.num_steps(), report.pushes());
    EXPECT_LE(report.largest_lead, 2);
  });
}

TEST(AsyncTrainer, ALostWorkerEndsTheRunOnEveryRank) {
  std::mutex mutex;
  std::map<int, std::string> errors;
  EXPECT_THROW(on_mesh({{"dp", 3}},
                       [&](const Mesh& mesh) {
                         Model model(kProblem.config);
                         Engine engine(model, mesh, servers_of(model, mesh, 0));
                         Sgd optimizer(engine.state());
                         AsyncTrainer trainer(engine, optimizer, options_with(0.01));
                         const auto rows = [&](int64_t step) {
                           if (mesh.rank() == 1 && step == 2) throw DataError({"test", "row 7", "is torn", "", ""});
                           return rows_of(mesh.rank(), 3, step);
                         };
                         try {
                           trainer.run(1000, rows);
                         } catch (const CommError& error) {
                           const std::scoped_lock lock(mutex);
                           errors[mesh.rank()] = error.what();
                           throw;
                         }
                       }),
               DataError);
  for (const int rank : {0, 2}) EXPECT_THAT(errors[rank], AllOf(HasSubstr("rank 1"), HasSubstr("row 7"))) << rank;
}

TEST(AsyncTrainer, NamesTheWorkerWhoseLossIsNotFinite) {
  std::string message;
  try {
    on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
      Model model(kProblem.config);
      Engine engine(model, mesh, servers_of(model, mesh, 0));
      Sgd optimizer(engine.state());
      AsyncOptions options = options_with(0.01);
      options.clip_norm = 1;
      AsyncTrainer trainer(engine, optimizer, options);
      trainer.run(1000, [&](int64_t step) -> StageRunner::Source {
        const auto rows = rows_of(mesh.rank(), 2, step);
        if (mesh.rank() == 0 || step < 2) return rows;
        return [rows](int micro) {
          MicroBatch batch = rows(micro);
          batch.context.loss_scale = std::numeric_limits<double>::infinity();
          return batch;
        };
      });
    });
  } catch (const NumericsError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, AllOf(HasSubstr("is not finite at step 3 of worker 1"), HasSubstr("optimizer.lr")));
}

// ---- what is refused ----

TEST(AsyncTrainer, RefusesInvalidOptions) {
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    const auto message = [&](const Strategy& strategy, Model& model) {
      return message_of<UsageError>([&] {
        Engine engine(model, mesh, strategy);
        Sgd optimizer(engine.state());
        AsyncTrainer trainer(engine, optimizer, options_with(0.1));
      });
    };
    Model model(kProblem.config);
    EXPECT_THAT(message(param_server(model, mesh), model),
                AllOf(HasSubstr("servers change"), HasSubstr("is_synchronous = false")));
    EXPECT_THAT(message(ddp(model, mesh), model), HasSubstr("[async_trainer] ddp"));
    Engine engine(model, mesh, servers_of(model, mesh, 0));
    Sgd optimizer(engine.state());
    const auto refusal = [&](const AsyncOptions& options) {
      return message_of<UsageError>([&] { AsyncTrainer trainer(engine, optimizer, options); });
    };
    EXPECT_THAT(refusal({}), HasSubstr("learning_rate: is not given"));
    const auto rate = [](int64_t) { return 0.1; };
    EXPECT_THAT(refusal({.staleness = -5, .learning_rate = rate}), HasSubstr("staleness: -5 steps"));
    EXPECT_THAT(refusal({.num_micro_batches = 0, .learning_rate = rate}), HasSubstr("use 1 or more"));
    Chain scalars({{{"w", {4, 2}}, {"s", {}}}});
    EXPECT_THAT(message_of<LayoutError>([&] { servers_of(scalars, mesh, 0); }), HasSubstr("give it the shape [1]"));
  });
}

}  // namespace
}  // namespace caravan::testing::async_trainer_test
