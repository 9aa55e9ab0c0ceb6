#pragma once

#include <cstdint>
#include <string_view>

namespace caravan {

/// Memory of a rank besides its tensors.
inline constexpr int64_t kProcessBytes = int64_t{160} << 20;

/// Resident anonymous memory of this process; 0 where /proc is missing. Before tensors are allocated these are
/// libtorch's tables (about 60 MiB on a Xeon), code that libraries generated in a rehearsal, texts, and buffers of
/// communicators.
int64_t anonymous_bytes();

/// The resident memory of the processes of a run, anonymous and shared, each page once: `started_bytes` of all of them
/// before their tensors are allocated (anonymous_bytes), `held_bytes` for the tensors of all ranks
/// (Rehearsal::held_bytes), and an overhead. Its upper bounds, from 60 recipes at 1 to 8 ranks with torch 2.13, each
/// with small and with wider models, in MiB:
///
///   the launcher                3, mpirun 4
///   a rank                      3, and 3/10 of what it holds, at most 6: memory kept by BLAS libraries and malloc,
///                               evaluation
int64_t resident_bytes(std::string_view backend, int num_ranks, int64_t started_bytes, int64_t held_bytes) noexcept;

/// The memory for a rank's tensors when `ranks_on_host` share a host of `host_bytes`: 0 if that is 0 (unknown).
int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept;

}  // namespace caravan
