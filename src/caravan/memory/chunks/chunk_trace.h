#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/base/memory/tier.h"

namespace caravan {

/// What a use does with the contents of a chunk.
enum class ChunkAccess : uint8_t {
  read,
  modify,     ///< reads and changes them
  overwrite,  ///< writes all of them and reads nothing: the old ones need not be fetched
  consume,    ///< reads them for the last time: they need not be kept
};

struct ChunkUse {
  int moment = 0;
  int chunk = 0;
  ChunkAccess access = ChunkAccess::read;
  bool is_on_host = false;  ///< the computation runs there; else on the device
  bool operator==(const ChunkUse&) const noexcept = default;
};

/// The uses of chunks in a step, or in several, as the first step records them or a table of actions implies them. A
/// moment is the time between two changes of what must be on the device: an event of a schedule.
///
/// Host memory has room for every chunk. At the beginning all contents are there; at the end they must be again.
struct ChunkTrace {
  std::vector<int64_t> chunk_bytes{};  ///< by chunk
  /// By moment: device memory for chunks. It varies: what is not in chunks (activations) leaves more or less.
  std::vector<int64_t> budget_bytes{};
  std::vector<ChunkUse> uses{};  ///< moments ascending; a chunk at most once a moment

  int num_moments() const noexcept { return static_cast<int>(budget_bytes.size()); }
  /// Bytes of the chunks that each moment uses on the device: the least that its budget can be.
  std::vector<int64_t> used_bytes() const;
  /// Throws UsageError: naming moment, bytes and budget if the uses of a moment exceed it; naming chunk and moment if
  /// uses are out of order, or read what has been consumed.
  void validate() const;
};

/// The same uses `count` times in a row.
ChunkTrace repeat(const ChunkTrace& step, int count);

/// A training step in chunks, from which its trace follows: forward through the units, backward in reverse, update.
struct ChunkStep {
  std::vector<std::vector<int>> units{};  ///< parameter chunks that each unit reads, in forward order
  int num_chunks = 0;                     ///< of parameters
  int64_t chunk_bytes = 0;                ///< of a chunk of parameters or gradients
  int64_t state_bytes = 0;  ///< of all chunks of optimizer state (master copy, moments) of a parameter chunk
  int recompute = 0;        ///< number of units whose forward is repeated together, in the backward; 0: none
  /// Gradients replace the parameters in their chunks. Else they have chunks of their own, whose memory is gone after
  /// the update; so it is for more than one micro-batch.
  bool reuses_chunks = true;
  int num_micro_batches = 1;
  /// The first chunks have their states on the device and are updated there; the others are updated on the host.
  int updated_on_device = 0;
};

/// Device memory for chunks during a step.
struct StepBudget {
  int64_t device_bytes = 0;              ///< when nothing but chunks is there: in the update
  std::vector<int64_t> forward_bytes{};  ///< by unit; empty: device_bytes
  std::vector<int64_t> backward_bytes{};
};

/// A moment for each forward, repeated forward and backward of a unit, and one for the update of each chunk. Chunks are
/// numbered: parameters, then gradients if they have chunks of their own, then the states of each chunk that is updated
/// on the device, as one. Throws UsageError for more than one micro-batch with gradients that replace parameters.
ChunkTrace trace_of(const ChunkStep& step, const StepBudget& budget);

/// How many chunks can have their states on the device for the whole step: those that fit into what forward and
/// backward leave of the least budget, when all parameter chunks of the rank are there too (PatrickStar's margin).
int states_in_margin(const ChunkStep& step, const StepBudget& budget) noexcept;

/// The step of one of `num_ranks` ranks that share the chunks (ChunkLayout::home): its chunk g is the one of group g.
/// While a unit computes, the other ranks' chunks of its groups are gathered beside it, which its budget leaves out; in
/// a backward with gradients in chunks of their own also the other ranks' gradients.
struct RankStep {
  ChunkStep step{};
  StepBudget budget{};
};
RankStep step_of_rank(const ChunkStep& whole, const StepBudget& budget, int num_ranks);

}  // namespace caravan
