/// One rank of a shm world that calls collectives forever, in a random order that all ranks share: `kill_rank SEED`.
/// Prints "ready" when the world exists. When a call throws CommError, prints the message and exits with 40.
/// `kill_runs` kills its peers.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/shm.h"
#include "caravan/comm/store/rendezvous.h"

namespace {

using namespace caravan;

constexpr int64_t kMostElements = 200'000;

class Calls {
 public:
  Calls(std::shared_ptr<Communicator> world, uint64_t seed)
      : random_(seed), data_(kMostElements), result_(kMostElements) {
    groups_ = {std::move(world)};
    std::vector<int> all;
    for (int rank = 0; rank < groups_[0]->size(); ++rank) all.push_back(rank);
    groups_.push_back(groups_[0]->split(all, "whole"));
    const int half = groups_[0]->size() / 2;
    const bool first = groups_[0]->rank() < half;
    groups_.push_back(groups_[0]->split(
        first ? std::vector<int>(all.begin(), all.begin() + half) : std::vector<int>(all.begin() + half, all.end()),
        "half"));
  }

  void next() {
    Communicator& comm = *groups_[random_() % groups_.size()];
    const int size = comm.size();
    const int64_t count = size * static_cast<int64_t>(1 + random_() % (random_() % 4 == 0 ? kMostElements / size : 64));
    const int root = static_cast<int>(random_() % static_cast<unsigned>(groups_[0]->size())) % size;
    const Buffer whole{data_.data(), count, Dtype::fp32, {}};
    const Buffer part{result_.data(), count / size, Dtype::fp32, {}};
    const Buffer other{result_.data(), count, Dtype::fp32, {}};
    switch (random_() % 10) {
      case 0: return comm.all_reduce(whole, whole, ReduceOp::sum, "sum");
      case 1: return comm.all_reduce(whole, other, ReduceOp::max, "max");
      case 2: return comm.reduce_scatter(whole, part, ReduceOp::sum, {}, "scatter");
      case 3: return comm.all_gather(part, whole, {}, "gather");
      case 4: return comm.all_to_all(whole, other, {}, {}, "exchange");
      case 5: return comm.broadcast(whole, root, "weights");
      case 6: return comm.reduce(whole, other, ReduceOp::min, root, "reduce");
      case 7: return comm.barrier("all here");
      case 8: return pass_on(comm, whole, other);
      default: return several_at_once(comm, whole, other);
    }
  }

 private:
  static void pass_on(Communicator& comm, const Buffer& out, const Buffer& in) {
    if (comm.size() == 1) return;
    Work sent = comm.send_async(out, (comm.rank() + 1) % comm.size(), "ring");
    comm.recv(in, (comm.rank() + comm.size() - 1) % comm.size(), "ring");
    sent.wait();
  }
  static void several_at_once(Communicator& comm, const Buffer& a, const Buffer& b) {
    std::array<Work, 3> works{comm.all_reduce_async(a, a, ReduceOp::sum, "bucket 0"),
                              comm.all_reduce_async(b, b, ReduceOp::max, "bucket 1"), comm.barrier_async("bucket 2")};
    for (Work& work : works) {
      while (!work.done()) {
      }
      work.wait();
    }
  }

  std::mt19937_64 random_;
  std::vector<float> data_;
  std::vector<float> result_;
  std::vector<std::shared_ptr<Communicator>> groups_;
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  try {
    const RankInfo info = RankInfo::from_environment();
    const auto store = connect_store(info.master_addr, info.master_port, std::chrono::seconds(20), info.key, info.rank);
    Calls calls(make_shm_world(info, store, {.timeout = std::chrono::seconds(60)}), seed);
    std::printf("ready\n");
    std::fflush(stdout);
    for (;;) calls.next();
  } catch (const CommError& error) {
    std::printf("%s\n", error.what());
    return 40;
  } catch (const std::exception& error) {
    std::printf("not a CommError: %s\n", error.what());
    return 41;
  }
}
