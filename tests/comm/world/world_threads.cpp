#include "tests/comm/world/world_threads.h"

#include <exception>
#include <thread>
#include <vector>

#include "caravan/comm/backends/peer_failure.h"

namespace caravan::testing {
namespace {

struct Failures {
  std::exception_ptr cause;
  std::exception_ptr echo;
};

void run_rank(const RankInfo& info, const std::shared_ptr<Store>& store, const CommOptions& options,
              const RankBody& body, const MakeWorld& make, Failures& failures) {
  std::shared_ptr<Communicator> world;
  try {
    world = make(info, store, options);
    body(world);
  } catch (const PeerFailure& exception) {
    failures.echo = std::current_exception();
    if (world != nullptr) world->abort(exception.what());
  } catch (const std::exception& exception) {
    failures.cause = std::current_exception();
    if (world != nullptr) world->abort(exception.what());
  }
}

}  // namespace

void run_thread_worlds(int num_ranks, const RankBody& body, const CommOptions& options, const MakeWorld& make) {
  const auto store = local_store();
  std::vector<Failures> failures(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    RankInfo info;
    info.rank = rank;
    info.world_size = num_ranks;
    info.local_rank = rank;
    info.local_world_size = num_ranks;
    threads.emplace_back([=, &body, &options, &make, &failures] {
      run_rank(info, store, options, body, make, failures[static_cast<size_t>(rank)]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Failures& failure : failures) {
    if (failure.cause != nullptr) std::rethrow_exception(failure.cause);
  }
  for (const Failures& failure : failures) {
    if (failure.echo != nullptr) std::rethrow_exception(failure.echo);
  }
}

}  // namespace caravan::testing
