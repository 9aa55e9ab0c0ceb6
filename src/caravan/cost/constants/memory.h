#pragma once

namespace caravan::fitted {

// Sources in brackets: cost/constants.h.

// Offload

inline constexpr double kHostLinkShare = 0.9;  ///< of the link to the host [recalled]
inline constexpr double kHostAdamRate = 60e9;  ///< bytes per second that a rank's share of Adam on the host moves
                                               ///< [recalled: ZeRO-Offload, arXiv 2101.06840]
inline constexpr double kHostAdamBytes = 28;   ///< that it moves for a parameter [counted]
inline constexpr double kDiskAdamBytes = 24;   ///< of these, from disk and to it [counted]
inline constexpr double kDiskRate = 3e9;       ///< bytes per second of a rank's share of NVMe disks
                                               ///< [recalled: ZeRO-Infinity, arXiv 2104.07857]

// Memory

inline constexpr double kScoreBytes = 5;  ///< unfused attention keeps of a score: softmax, dropout, its mask [counted]
inline constexpr double kEagerScores = 1.6;  ///< as a multiple, with scale and mask apart [counted: 8 bytes]
inline constexpr double kLiveShare = 0.3;    ///< of a layer's activations, alive beside those kept [recalled]
/// The same with recomputation: the layer, and its gradients; ZeRO frees some of them [fitted: logs of Megatron].
inline constexpr double kLiveRecomputed = 2, kLiveRecomputedZero = 1.5;
inline constexpr double kProductsKept = 0.5;    ///< share of products whose results torchtitan keeps [published]
inline constexpr double kBucketElements = 5e8;  ///< of DeepSpeed's buckets, 2 bytes each [published: its defaults]
/// Share of the activations of 1F1B that V-Half and V-Min hold [published: Qi et al., arXiv 2405.15362].
inline constexpr double kHeldVHalf = 0.55, kHeldVMin = 0.4;
inline constexpr double kReservedShare = 1.10;       ///< reserved, of allocated peaks [published: logs, 1.06 to 1.22]
inline constexpr double kContextBytes = 1073741824;  ///< context of CUDA, NCCL [published: 0.5 to 2 GiB]
inline constexpr double kUnknownKind = 1.05;         ///< a published memory that does not say what it counts
inline constexpr double kMostMemory = 0.97;          ///< of the device, that a run which fitted can have used

}  // namespace caravan::fitted
