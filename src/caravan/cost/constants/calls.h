#pragma once

namespace caravan::fitted {

// Sources in brackets: cost/constants.h.

/// Seconds for each doubling of the ranks by which the last comes late [fitted: vtrain_single, megatron_sc21].
inline constexpr double kSkewSeconds = 8e-6;
/// Calls of this many ranks or more are summed by the switch [recalled: NVLS of NCCL].
inline constexpr int kSwitchRanks = 4;
inline constexpr double kMessageSeconds = 15e-6;  ///< of a send and its recv [recalled]
inline constexpr double kHostCopies = 80e9;       ///< bytes that a host copies a second, where unknown [recalled]

}  // namespace caravan::fitted
