#include "caravan/comm/backends.h"

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/comm/backends/mpi/library.h"

namespace caravan {
namespace {

bool is_built(std::string_view backend) {
  if (backend == "nccl") return CARAVAN_NCCL_IS_BUILT != 0;
  return !backend.ends_with("mpi") || !mpi::built().empty();
}

}  // namespace

std::vector<std::string> built_backends() {
  std::vector<std::string> names;
  for (const std::string_view name : kBackends) {
    if (is_built(name)) names.emplace_back(name);
  }
  return names;
}

std::optional<MissingBackend> missing_backend(std::string_view backend) {
  if (is_built(backend)) return std::nullopt;
  return MissingBackend{fmt::format("not built; there are {}", join(built_backends())),
                        backend == "nccl" ? "choose gloo, or configure with -DCARAVAN_NCCL=ON and a libtorch with CUDA"
                                          : "choose gloo, or configure with -DCARAVAN_MPI=openmpi or mpich"};
}

}  // namespace caravan
