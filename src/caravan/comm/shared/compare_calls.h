#pragma once

#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// What fits into a line of a call and must be equal on all ranks: verb, op, dtype and root, as far as the verb has
/// them.
uint64_t call_signature(const Operation& operation) noexcept;
/// The sizes that must be equal on all ranks: a count, or a hash of all parts' counts.
uint64_t size_signature(const Operation& operation) noexcept;

/// Throws the mismatch error, the same on every rank, of the calls that the ranks show whole in `round`.
[[noreturn]] void throw_difference(const Seat& seat, const Descriptor& own, uint64_t round);

}  // namespace caravan::shared
