#include "caravan/comm/backends/messages/message_communicator.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "tests/comm/reference.h"
#include "tests/comm/store/counting_store.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::message_communicator_test {
namespace {

using messages::Transfer;

/// Messages between the threads of this process. Tags are bounded, as in MPI.
class Wires {
 public:
  static constexpr int kLargestTag = 8 * 64;
  using Path = std::tuple<int, int, int>;  // from, to, tag

  void send(const Path& path, const std::byte* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    messages_[path].emplace_back(data, data + bytes);
    arrived_.notify_all();
  }
  /// Reserves the number of the next message on `path` for a receive.
  size_t expect(const Path& path) {
    const std::lock_guard lock(mutex_);
    return expected_[path]++;
  }
  bool receive(const Path& path, size_t number, std::byte* data, size_t bytes, const std::atomic<bool>& interrupted) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return interrupted || messages_[path].size() > number; });
    if (messages_[path].size() <= number) return false;
    EXPECT_EQ(messages_[path][number].size(), bytes);
    std::ranges::copy(messages_[path][number], data);
    return true;
  }
  void wake() {
    const std::lock_guard lock(mutex_);
    arrived_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Path, std::vector<std::vector<std::byte>>> messages_;
  std::map<Path, size_t> expected_;
};

class Sent final : public Transfer {
 public:
  bool wait() override { return true; }
  void interrupt() noexcept override {}
};

class Received final : public Transfer {
 public:
  Received(Wires& wires, const Wires::Path& path, std::byte* data, size_t bytes)
      : wires_(wires), path_(path), number_(wires.expect(path)), data_(data), bytes_(bytes) {}
  bool wait() override { return wires_.receive(path_, number_, data_, bytes_, interrupted_); }
  void interrupt() noexcept override {
    interrupted_ = true;
    wires_.wake();
  }

 private:
  Wires& wires_;
  Wires::Path path_;
  size_t number_;
  std::byte* data_;
  size_t bytes_;
  std::atomic<bool> interrupted_ = false;
};

class WireTransport final : public messages::Transport {
 public:
  WireTransport(std::shared_ptr<Wires> wires, int rank) : wires_(std::move(wires)), rank_(rank) {}
  std::unique_ptr<Transfer> send(const std::byte* data, size_t bytes, int world_rank, int tag) override {
    if (tag > Wires::kLargestTag) throw std::runtime_error("there is no such tag");
    wires_->send({rank_, world_rank, tag}, data, bytes);
    return std::make_unique<Sent>();
  }
  std::unique_ptr<Transfer> recv(std::byte* data, size_t bytes, int world_rank, int tag) override {
    if (tag > Wires::kLargestTag) throw std::runtime_error("there is no such tag");
    return std::make_unique<Received>(*wires_, Wires::Path{world_rank, rank_, tag}, data, bytes);
  }

 private:
  std::shared_ptr<Wires> wires_;
  int rank_;
};

/// Runs `body` on threads over worlds that `wires` and `store` connect.
void run_wired_ranks(int num_ranks, const std::shared_ptr<Store>& store, const CommOptions& options,
                     const RankBody& body) {
  const auto wires = std::make_shared<Wires>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([=, &options, &body] {
      auto engine = std::make_shared<messages::MessageEngine>("wires", std::make_shared<WireTransport>(wires, rank),
                                                              store, rank, num_ranks, options);
      try {
        body(messages::MessageCommunicator::make_world(std::move(engine)));
      } catch (const std::exception& exception) {
        ADD_FAILURE() << "rank " << rank << ": " << exception.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<int> all_ranks(const Communicator& comm) {
  std::vector<int> ranks;
  for (int rank = 0; rank < comm.size(); ++rank) ranks.push_back(rank);
  return ranks;
}

/// A program that splits and destroys communicators as long as it runs: neither tags nor the store's memory may end.
TEST(MessageCommunicator, SplitsWithoutEndLeaveNothingBehind) {
  const auto store = std::make_shared<CountingStore>();
  run_wired_ranks(3, store, {.timeout = std::chrono::seconds(20)}, [](const std::shared_ptr<Communicator>& world) {
    const std::vector<int> others = world->rank() == 0 ? std::vector<int>{0} : std::vector<int>{1, 2};
    for (int turn = 0; turn < 300; ++turn) {
      const auto all = world->split(all_ranks(*world), "all");
      const auto part = all->split(others, "part");
      int64_t sum = part->rank() + turn;
      part->all_reduce({&sum, 1, Dtype::int64}, {&sum, 1, Dtype::int64, {}}, ReduceOp::sum);
      ASSERT_EQ(sum, part->size() == 1 ? turn : 2 * turn + 1);
    }
  });
  EXPECT_EQ(store->num_keys(), 0U);
}

/// Where calls are not compared, a message may never be received. Its tag must not be used again.
TEST(MessageCommunicator, AnUnmatchedSendDoesNotReachTheNextCommunicator) {
  const CommOptions unchecked{.timeout = std::chrono::seconds(20), .check = false};
  run_wired_ranks(2, local_store(), unchecked, [](const std::shared_ptr<Communicator>& world) {
    int64_t number = 41;
    if (world->rank() == 0) {
      world->split(all_ranks(*world), "first")->send({&number, 1, Dtype::int64}, 1);
    } else {
      world->split(all_ranks(*world), "first");
    }
    const auto second = world->split(all_ranks(*world), "second");
    if (world->rank() == 0) {
      number = 42;
      second->send({&number, 1, Dtype::int64}, 1);
    } else {
      second->recv({&number, 1, Dtype::int64, {}}, 0);
    }
    EXPECT_EQ(number, 42);
  });
}

}  // namespace
}  // namespace caravan::testing::message_communicator_test
