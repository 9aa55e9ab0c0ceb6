#include "caravan/techniques/data/sharded.h"

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

void check_prefetch(const std::string& name, int prefetch) {
  if (prefetch >= 0 && prefetch <= 2) return;
  throw UsageError({name, "prefetch", fmt::format("{} units", prefetch), "", prefetch < 0 ? "use 0" : "use 2"});
}

bool is_shared(const std::string& name, const Mesh& mesh, const MeshAxis& axis, Share share) {
  if (share == Share::off || axis.size() == 1) return false;
  int64_t can = axis.comm().shares_memory() ? 1 : 0;
  const Buffer buffer{&can, 1, Dtype::int64};
  mesh.world().all_reduce(buffer, buffer, ReduceOp::min, "shared memory");
  if (share == Share::on && can == 0) {
    throw UsageError({name, "share", fmt::format("the ranks of axis {} do not share memory", axis.name()), axis.where(),
                      "use \"auto\" or \"off\", or ranks of one host with comm.backend = \"shm\""});
  }
  return can == 1;
}

}  // namespace caravan
