#pragma once

#include "caravan/comm/backends/shared/shared_task.h"

namespace caravan::shared {

/// The verb and, if it has them, op, dtype and root, in 64 bits: must be equal on all ranks.
uint64_t call_signature(const Operation& operation) noexcept;
/// The count, or a hash of the counts of all ranks: must be equal on all ranks.
uint64_t size_signature(const Operation& operation) noexcept;

/// Throws the mismatch error for the full calls that the ranks have published in `round`; the same error on every rank.
[[noreturn]] void throw_difference(const RankState& state, const Descriptor& own, uint64_t round);

}  // namespace caravan::shared
