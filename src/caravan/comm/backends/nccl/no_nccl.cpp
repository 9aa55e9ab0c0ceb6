#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/nccl/nccl.h"

namespace caravan {

std::shared_ptr<Communicator> make_nccl_world(const RankInfo& info, const std::shared_ptr<Store>& /*store*/,
                                              const CommOptions& /*options*/) {
  throw UsageError({.op = "comm",
                    .subject = "backend \"nccl\"",
                    .fact = "it is not built",
                    .where = fmt::format("rank {} of {}", info.rank, info.world_size),
                    .action = "choose gloo, or configure with -DCARAVAN_NCCL=ON and a libtorch with CUDA"});
}

}  // namespace caravan
