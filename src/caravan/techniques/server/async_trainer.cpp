#include "caravan/techniques/server/async_trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <thread>

#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

using Clock = std::chrono::steady_clock;

/// The values of a worker may change while it computes only if its unsharded parameters are a separate version. And
/// pushes must go to ranks of the world, which no other axis cuts again.
void check_strategy(const Engine& engine) {
  const Strategy& strategy = engine.strategy();
  const auto refuse = [&](const std::string& subject, const std::string& fact) {
    throw UsageError({"async_trainer", subject, fact, engine.mesh().where(),
                      "use param_server() with is_synchronous = false over an axis of at least 2 ranks"});
  };
  if (strategy.unsharded_memory != UnshardedMemory::versions) {
    refuse(strategy.name, "computes with the values themselves, which servers change");
  }
  for (const Bucket& bucket : engine.state().layout.buckets()) {
    const std::string& name = engine.state().layout.slots()[bucket.first_slot].parameter->name();
    if (bucket.fill.size() != 1) refuse(name, fmt::format("is gathered over {} axes", bucket.fill.size()));
    const MeshAxis& axis = bucket.fill.front().axis;
    if (axis.size() != engine.mesh().size()) refuse(name, "is gathered over axis " + axis.name() + " of fewer ranks");
  }
}

std::shared_ptr<Communicator> split_all(const Engine& engine, const char* name) {
  check_strategy(engine);  // before anything is allocated
  std::vector<int> all(static_cast<size_t>(engine.mesh().size()));
  std::iota(all.begin(), all.end(), 0);
  return engine.mesh().world().split(all, name);
}

}  // namespace

AsyncTrainer::AsyncTrainer(Engine& engine, Optimizer& optimizer, AsyncOptions options)
    : engine_(engine),
      optimizer_(optimizer),
      options_(std::move(options)),
      links_{.pushes = split_all(engine, "pushes"), .values = split_all(engine, "values")},
      questions_(split_all(engine, "steps")),
      server_(engine.state(), optimizer, links_,
              {.staleness = options_.staleness, .learning_rate = options_.learning_rate}),
      worker_(engine.state(), server_, links_, options_.clip_norm),
      control_(*questions_),
      runner_(engine),
      clocks_(static_cast<size_t>(engine.mesh().size()), 0) {
  const auto refuse = [](const char* option, const std::string& fact, const char* valid) {
    throw UsageError({"async_trainer", option, fact, "", valid});
  };
  if (!options_.learning_rate) refuse("learning_rate", "is not given", "give a function of the step");
  if (options_.staleness < 0 && options_.staleness != kUnbounded) {
    refuse("staleness", fmt::format("{} steps", options_.staleness), "use 0 or more, or kUnbounded");
  }
  if (options_.num_micro_batches < 1) {
    refuse("num_micro_batches", fmt::format("{} micro-batches", options_.num_micro_batches), "use 1 or more");
  }
  engine.table(options_.num_micro_batches);  // the ranks compare it before the first step
}

int64_t AsyncTrainer::bytes_sent() const noexcept {
  int64_t bytes = 0;
  for (const auto& comm : {links_.pushes, links_.values, questions_}) bytes += comm->traffic().total_bytes();
  return bytes;
}

void AsyncTrainer::push(const Bucket& bucket, const at::Tensor& gradients) { worker_.push(bucket, gradients); }

void AsyncTrainer::pull(const Bucket& bucket) {
  wait_until([&] { return worker_.has_values(bucket); }, "values");
}

void AsyncTrainer::poll() {
  if (options_.on_event) options_.on_event();
  serve();
}

bool AsyncTrainer::serve() {
  const bool has_served = server_.poll();
  return control_.poll() || has_served;
}

/// Serves until `is_done`.
void AsyncTrainer::wait_until(const std::function<bool()>& is_done, const char* what) {
  constexpr int kPolls = 200;  // some tens of microseconds; after that the thread sleeps between polls
  constexpr std::chrono::microseconds kPause{50};
  const Clock::time_point begin = Clock::now();
  Clock::time_point last = begin;  // when the last message arrived
  for (int polls = 0; !is_done(); ++polls) {
    if (serve()) {
      last = Clock::now();
      polls = 0;
    }
    if (polls < kPolls) continue;
    if (Clock::now() - last > options_.timeout) {
      throw CommError({"async_trainer", fmt::format("step {}", clock_ + 1),
                       fmt::format("waits for {}, and no message has arrived from any rank for {} s", what,
                                   std::chrono::duration<double>(options_.timeout).count()),
                       engine_.mesh().where(), "look for a rank that hangs; raise the time-out for slow workers"});
    }
    std::this_thread::sleep_for(kPause);
  }
  waited_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

bool AsyncTrainer::may_go_on(bool wants_drain) {
  control_.ask(clock_, wants_drain);
  std::optional<WorkerClocks::Answer> answer;
  wait_until([&] { return (answer = control_.answer()).has_value(); }, "slower workers");
  return *answer == WorkerClocks::Answer::go;
}

void AsyncTrainer::step(const Rows& rows) {
  int64_t targets = 0;
  const auto counted = [&targets, source = rows(clock_)](int micro_batch) {
    MicroBatch part = source(micro_batch);
    targets += part.labels.ne(kIgnoredLabel).sum().item<int64_t>();
    return part;
  };
  const double loss = runner_.run_step(options_.num_micro_batches, counted, this);
  const double norm = worker_.finish_step();
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    throw NumericsError({"train", std::isfinite(loss) ? "gradient norm" : "loss",
                         fmt::format("is not finite at step {} of worker {} (loss {}, gradient norm {})", clock_ + 1,
                                     engine_.mesh().rank(), loss, norm),
                         engine_.mesh().where(),
                         "lower optimizer.lr, lengthen optimizer.warmup_steps or set optimizer.clip_norm; the last "
                         "checkpoint is untouched"});
  }
  loss_ += loss * static_cast<double>(targets);
  norm_ += norm;
  num_targets_ += targets;
  ++num_steps_;
  ++clock_;
}

SyncReport AsyncTrainer::run(int64_t drain_at, const Rows& rows, const std::function<bool()>& stop_requested) {
  clock_ = clocks_[static_cast<size_t>(engine_.mesh().rank())];
  loss_ = norm_ = 0;
  num_steps_ = num_targets_ = 0;
  engine_.unshard();
  server_.begin(clocks_);
  worker_.begin();
  control_.begin(clocks_, options_.staleness, drain_at);
  bool wants_stop = stop_requested && stop_requested();
  while (may_go_on(wants_stop)) {
    step(rows);
    wants_stop = wants_stop || (stop_requested && stop_requested());
  }
  worker_.stop();
  wait_until([&] { return worker_.is_done() && server_.is_done() && control_.is_done(); }, "the drain");
  return finish(wants_stop);
}

/// Nothing is in flight any more: collectives may run.
SyncReport AsyncTrainer::finish(bool wants_stop) {
  Communicator& world = engine_.mesh().world();
  SyncReport report;
  report.clocks.resize(clocks_.size());
  const Buffer clocks{report.clocks.data(), static_cast<int64_t>(report.clocks.size()), Dtype::int64};
  world.all_gather({&clock_, 1, Dtype::int64}, clocks, {}, "clocks");
  report.staleness = server_.staleness();
  auto& bins = report.staleness.bins();
  const Buffer counts{bins.data(), static_cast<int64_t>(bins.size()), Dtype::int64};
  world.all_reduce(counts, counts, ReduceOp::sum, "staleness");
  std::array<double, 6> sums{loss_,
                             norm_,
                             static_cast<double>(num_steps_),
                             static_cast<double>(num_targets_),
                             wants_stop ? 1.0 : 0.0,
                             static_cast<double>(control_.largest_lead())};  // 0 but on rank 0
  const Buffer numbers{sums.data(), static_cast<int64_t>(sums.size()), Dtype::fp64};
  world.all_reduce(numbers, numbers, ReduceOp::sum, "losses");
  report.loss = sums[0] / std::max(sums[3], 1.0);
  report.grad_norm = sums[1] / std::max(sums[2], 1.0);
  report.stop = sums[4] > 0;
  report.largest_lead = static_cast<int64_t>(sums[5]);
  optimizer_.set_num_steps(optimizer_.num_steps() + static_cast<int64_t>(sums[2]));
  clocks_ = report.clocks;
  return report;
}

}  // namespace caravan
