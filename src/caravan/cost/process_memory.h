#pragma once

#include <cstdint>
#include <string_view>

namespace caravan {

/// What a rank takes beside its tensors.
inline constexpr int64_t kProcessBytes = int64_t{160} << 20;

/// Resident anonymous memory of this process; 0 where /proc is missing. Before tensors are made these are libtorch's
/// tables (about 60 MiB on a Xeon), code that libraries have generated in a rehearsal, texts, buffers of communicators.
int64_t anonymous_bytes();

/// What the processes of a run have resident, anonymous and shared memory, each page once: `started_bytes` of all of
/// them before their tensors are made (anonymous_bytes), `held_bytes` for the tensors of all ranks
/// (Rehearsal::held_bytes), and what comes beside. A table of bounds from above, of 60 recipes at 1 to 8 ranks with
/// torch 2.13, each with small and with wider models, in MiB:
///
///   what starts the ranks       3, mpirun 4
///   a rank                      3, and 3/10 of what it holds, at most 6: what libraries that multiply and malloc keep,
///                               evaluation
///
/// Of experts oneDNN keeps code for each number of rows that it has met, ever more of it, which is not counted.
int64_t resident_bytes(std::string_view backend, int num_ranks, int64_t started_bytes, int64_t held_bytes) noexcept;

/// The memory for a rank's tensors when `ranks_on_host` share a host of `host_bytes`: 0 if that is 0 (unknown).
int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept;

}  // namespace caravan
