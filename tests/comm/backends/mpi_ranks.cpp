#include "tests/comm/backends/mpi_ranks.h"

#include <exception>

#include "caravan/comm/backends/mpi/mpi.h"

namespace caravan::testing {
namespace {

std::shared_ptr<Store> job_store(const RankInfo& info) {
  static const std::shared_ptr<Store> store = info.world_size == 1 ? local_store() : open_mpi_store(info, {});
  return store;
}

}  // namespace

int num_mpi_ranks() { return RankInfo::from_environment().world_size; }

void run_mpi_ranks(int num_ranks, const RankBody& body, const CommOptions& options) {
  run_mpi_ranks(num_ranks, body, options, make_mpi_world);
}

void run_mpi_ranks(int num_ranks, const RankBody& body, const CommOptions& options, const MakeWorld& make) {
  const RankInfo info = RankInfo::from_environment();
  ASSERT_EQ(num_ranks, info.world_size);
  std::shared_ptr<Communicator> world;
  try {
    world = make(info, job_store(info), options);
    body(world);
  } catch (const std::exception& exception) {
    ADD_FAILURE() << "rank " << info.rank << " threw: " << exception.what();
    if (world != nullptr) world->abort(exception.what());
  }
}

void run_unchecked_mpi_ranks(int num_ranks, const RankBody& body, const CommOptions& options) {
  CommOptions unchecked = options;
  unchecked.check = false;
  run_mpi_ranks(num_ranks, body, unchecked);
}

}  // namespace caravan::testing
