#pragma once

namespace caravan::fitted {

// Sources in brackets: cost/constants.h.

// Offload

inline constexpr double kHostLinkShare = 0.9;  ///< of the link to the host [recalled]
inline constexpr double kHostAdamRate = 60e9;  ///< bytes per second that a rank's share of Adam on the host moves
                                               ///< [recalled: ZeRO-Offload, arXiv 2101.06840]
inline constexpr double kDiskRate = 3e9;       ///< bytes per second of a rank's share of NVMe disks
                                               ///< [recalled: ZeRO-Infinity, arXiv 2104.07857]

// Memory

inline constexpr double kReservedShare = 1.10;       ///< reserved, of allocated peaks [published: logs, 1.06 to 1.22]
inline constexpr double kProcessBytes = 1073741824;  ///< context of CUDA, NCCL [published: 0.5 to 2 GiB]
inline constexpr double kUnknownKind = 1.05;         ///< a published memory that does not say what it counts
inline constexpr double kMostMemory = 0.97;          ///< of the device, that a run which fitted can have used

}  // namespace caravan::fitted
