#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/mpi_library.h"
#include "caravan/comm/nccl.h"

namespace caravan {

bool nccl_is_built() noexcept { return false; }

std::shared_ptr<Communicator> make_nccl_world(const RankInfo& info, const std::shared_ptr<Store>& /*store*/,
                                              const CommOptions& /*options*/) {
  std::vector<std::string> built{"thread", "shm", "gloo", "shm+gloo"};
  if (!mpi::built().empty()) built.insert(built.end(), {"mpi", "shm+mpi"});
  throw UsageError({.op = "comm",
                    .subject = "backend \"nccl\"",
                    .fact = fmt::format("it is not built; there are {}", join(built)),
                    .where = fmt::format("rank {} of {}", info.rank, info.world_size),
                    .action = "choose gloo, or configure with -DCARAVAN_NCCL=ON and a libtorch with CUDA"});
}

}  // namespace caravan
