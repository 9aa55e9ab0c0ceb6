#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// The names that make_world takes, whether they are built or not.
inline constexpr std::array<std::string_view, 9> kBackends{"auto",         "thread",   "shm",     "gloo", "mpi",
                                                           "hierarchical", "shm+gloo", "shm+mpi", "nccl"};

/// The names in kBackends that this build has.
std::vector<std::string> built_backends();

/// The message for a back-end that this build does not have.
struct MissingBackend {
  std::string fact;    ///< "not built; there are auto, thread .."
  std::string action;  ///< "choose gloo, or configure with .."
};
/// Nothing if `backend` is built, or is not a back-end.
std::optional<MissingBackend> missing_backend(std::string_view backend);

}  // namespace caravan
