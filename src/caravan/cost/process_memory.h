#pragma once

#include <cstdint>
#include <string_view>

namespace caravan {

/// What a rank takes beside its tensors.
inline constexpr int64_t kProcessBytes = int64_t{160} << 20;

/// What the processes of a run have resident, anonymous and shared memory: `held_bytes` for the tensors of all ranks
/// (Rehearsal::held_bytes), and what has no storage on the meta device: libraries, their tables and code, texts, threads,
/// communicators, the program that starts the ranks. Round bounds of what was measured with torch 2.13, per rank beside
/// what is held, in MiB, over 60 recipes at 1 to 8 ranks:
///
///   a process, shm or gloo      55 to 66      a process, mpi       66 to 68
///   all threads of a process    60 and 1 for each
///
/// Of experts oneDNN keeps each number of rows that it has met, which is not counted.
int64_t resident_bytes(std::string_view backend, int num_ranks, int64_t held_bytes) noexcept;

/// The memory for a rank's tensors when `ranks_on_host` share a host of `host_bytes`: 0 if that is 0 (unknown).
int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept;

}  // namespace caravan
