/// The rules of a parameter server without messages or tensors: a program of workers and shards, whose parts run in a
/// random order.

#include "caravan/techniques/server/worker_clocks.h"

#include <algorithm>
#include <deque>
#include <random>

#include <gtest/gtest.h>

namespace caravan::testing::worker_clocks_test {
namespace {

using Answer = WorkerClocks::Answer;

constexpr int kShards = 3;

/// Workers that push to kShards shards in every step and read them before the next. Each event is one move: a worker
/// asks, is answered, reads a shard, pushes a gradient; a shard applies a received gradient. A run is an order of
/// moves.
class Simulation {
 public:
  Simulation(const std::vector<int64_t>& clocks, int64_t staleness, int64_t drain_at, std::mt19937& random)
      : random_(random),
        steps_(clocks, staleness, drain_at),
        shards_(kShards, ShardClock(clocks, staleness)),
        workers_(clocks.size()),
        speeds_(clocks.size()) {
    std::uniform_int_distribution<int> speed(1, 20);
    for (size_t i = 0; i < clocks.size(); ++i) {
      workers_[i].clock = clocks[i];
      workers_[i].pulled = kShards;  // as after a drain
      speeds_[i] = speed(random);
    }
  }

  /// Returns false if nothing can move before all are drained.
  bool run() {
    while (!is_over()) {
      std::vector<std::pair<int, int>> moves;  // kind, worker; a fast worker more often
      for (int worker = 0; worker < num_workers(); ++worker) {
        for (int kind = 0; kind < 2; ++kind) {
          if (can_move(kind, worker)) moves.insert(moves.end(), static_cast<size_t>(speed(worker)), {kind, worker});
        }
      }
      if (moves.empty()) return false;
      const auto [kind, worker] = moves[std::uniform_int_distribution<size_t>(0, moves.size() - 1)(random_)];
      kind == 0 ? move_worker(worker) : apply(worker);
    }
    return true;
  }

  int64_t slowest() const { return std::ranges::min(workers_, {}, &Worker::clock).clock; }
  int64_t clock(int worker) const { return workers_[static_cast<size_t>(worker)].clock; }
  int64_t largest_lead() const { return steps_.largest_lead(); }
  int64_t true_lead = 0;     ///< the most that a worker was really ahead when it began a step
  int64_t most_missing = 0;  ///< the most steps of some worker that a reader missed, before its own
  int64_t num_steps = 0;

 private:
  enum class State : uint8_t { between, asking, computing, drained };
  struct Worker {
    int64_t clock = 0;
    State state = State::between;
    int pulled = 0;              ///< shards read for this step
    int pushed = 0;              ///< shards pushed in this step
    std::deque<int> on_the_way;  ///< gradients that their shard has not applied
  };

  int num_workers() const { return static_cast<int>(workers_.size()); }
  int speed(int worker) const { return speeds_[static_cast<size_t>(worker)]; }
  Worker& at(int worker) { return workers_[static_cast<size_t>(worker)]; }
  bool is_over() const {
    return std::ranges::all_of(
        workers_, [](const Worker& worker) { return worker.state == State::drained && worker.on_the_way.empty(); });
  }

  bool can_move(int kind, int worker) {
    Worker& own = at(worker);
    if (kind == 1) return !own.on_the_way.empty();
    if (own.state == State::between) return true;
    if (own.state != State::computing) return false;
    // Reads the shards in their order, each after its own gradient was applied there; then computes and pushes.
    if (own.pulled == kShards) return true;
    return std::ranges::find(own.on_the_way, own.pulled) == own.on_the_way.end() &&
           shards_[static_cast<size_t>(own.pulled)].may_read(worker);
  }

  void move_worker(int worker) {
    Worker& own = at(worker);
    if (own.state == State::between) {
      own.state = State::asking;
      steps_.ask(worker, own.clock);
      for (const auto& [to, answer] : steps_.take_answers()) {
        EXPECT_EQ(at(to).state, State::asking);
        at(to).state = answer == Answer::go ? State::computing : State::drained;
        if (answer == Answer::go) true_lead = std::max(true_lead, at(to).clock - slowest());
      }
    } else if (own.pulled < kShards) {
      ShardClock& shard = shards_[static_cast<size_t>(own.pulled)];
      shard.read(worker);
      most_missing = std::max(most_missing, own.clock - shard.slowest());
      ++own.pulled;
    } else {
      own.on_the_way.push_back(own.pushed++);
      if (own.pushed < kShards) return;
      own.pushed = own.pulled = 0;
      ++own.clock;
      ++num_steps;
      own.state = State::between;
    }
  }

  void apply(int worker) {
    const int shard = at(worker).on_the_way.front();
    at(worker).on_the_way.pop_front();
    EXPECT_GE(shards_[static_cast<size_t>(shard)].apply(worker), 0);
  }

  std::mt19937& random_;
  WorkerClocks steps_;
  std::vector<ShardClock> shards_;
  std::vector<Worker> workers_;
  std::vector<int> speeds_;
};

TEST(WorkerClocks, RandomSchedulesKeepTheBoundAndEnd) {
  int num_that_lead = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    const int64_t staleness = pick(-1, 4);
    const int num_workers = pick(2, 6);
    std::vector<int64_t> clocks(static_cast<size_t>(num_workers), 0);
    for (int64_t& clock : clocks) clock = staleness == 0 ? 7 : pick(5, 7);  // as resumed
    const int64_t slowest = std::ranges::min(clocks);
    const int64_t drain_at = slowest + pick(1, 12);
    Simulation simulation(clocks, staleness, drain_at, random);
    ASSERT_TRUE(simulation.run()) << "nothing can move, but workers are not drained";
    EXPECT_EQ(simulation.slowest(), drain_at);
    EXPECT_LE(simulation.true_lead, simulation.largest_lead());
    if (staleness == kUnbounded) {
      num_that_lead += simulation.true_lead > 4 ? 1 : 0;
      continue;
    }
    EXPECT_LE(simulation.largest_lead(), staleness);
    EXPECT_LE(simulation.most_missing, staleness);
    if (staleness > 0) continue;
    for (int worker = 0; worker < num_workers; ++worker) EXPECT_EQ(simulation.clock(worker), drain_at);
    EXPECT_EQ(simulation.num_steps, num_workers * (drain_at - slowest));
  }
  EXPECT_GT(num_that_lead, 50) << "without a bound fast workers run ahead";
}

TEST(WorkerClocks, AnswersInTheOrderOfTheSlowest) {
  WorkerClocks clocks({0, 0, 0}, 1, 10);
  clocks.ask(0, 1);
  auto due = clocks.take_answers();
  ASSERT_EQ(due.size(), 1U) << "one step ahead is in the bound";
  clocks.ask(0, 2);
  EXPECT_TRUE(clocks.take_answers().empty()) << "two are not";
  clocks.ask(1, 1);
  ASSERT_EQ(clocks.take_answers().size(), 1U);
  EXPECT_TRUE(clocks.take_answers().empty()) << "each question is answered once";
  clocks.ask(2, 1);
  due = clocks.take_answers();
  ASSERT_EQ(due.size(), 2U);
  EXPECT_EQ(due[0].worker, 0);
  EXPECT_EQ(due[1].worker, 2);
  EXPECT_EQ(clocks.largest_lead(), 1);
}

TEST(WorkerClocks, DrainOnRequest) {
  WorkerClocks clocks({3, 5}, kUnbounded, 100);
  clocks.ask(1, 6);
  EXPECT_EQ(clocks.take_answers().front().answer, Answer::go);
  clocks.ask(0, 4, true);
  EXPECT_EQ(clocks.take_answers().front().answer, Answer::drain);
  EXPECT_FALSE(clocks.is_drained());
  clocks.ask(1, 7);
  EXPECT_EQ(clocks.take_answers().front().answer, Answer::drain);
  EXPECT_TRUE(clocks.is_drained());
  EXPECT_EQ(clocks.slowest(), 4);
}

TEST(ShardClock, StalenessIsTheUpdatesSinceTheRead) {
  ShardClock shard({0, 0}, kUnbounded);
  EXPECT_EQ(shard.apply(0), 0);
  shard.read(0);
  EXPECT_EQ(shard.apply(0), 0);
  EXPECT_EQ(shard.apply(1), 2) << "it computed with the values before both updates of the other";
  shard.read(1);
  EXPECT_EQ(shard.apply(1), 0);
  EXPECT_EQ(shard.version(), 4);
  EXPECT_EQ(shard.slowest(), 2);
}

TEST(ShardClock, ReadersWaitForTheSlowest) {
  ShardClock shard({0, 0}, 1);
  shard.apply(0);
  EXPECT_TRUE(shard.may_read(0));
  shard.apply(0);
  EXPECT_FALSE(shard.may_read(0));
  shard.apply(1);
  EXPECT_TRUE(shard.may_read(0));
}

}  // namespace
}  // namespace caravan::testing::worker_clocks_test
