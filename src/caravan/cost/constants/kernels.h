#pragma once

#include <array>
#include <string_view>

namespace caravan::fitted {

// Sources in brackets: cost/constants.h.

// Matrix products

inline constexpr double kBoost = 0.945;     ///< rate of one tile at full clock, of the best product seen [recalled]
inline constexpr double kWholeWaves = 0.5;  ///< 1: tiles run in whole waves; 0: spread evenly (stream-k) [recalled]
inline constexpr double kSplitK = 2048;     ///< depth beyond which a product with few tiles is cut along k [recalled]
/// Tiles among which libraries choose, and their rates [recalled: profiles of CUTLASS].
struct Tile {
  double m, n, rate;
};
inline constexpr std::array<Tile, 4> kTiles{{{256, 128, 1.0}, {128, 128, 0.95}, {128, 64, 0.80}, {64, 64, 0.60}}};
/// Rate of small products in a batch [fitted: megatron_sc21]. On an H100 they reach 0.16 to 0.39 of the rate of large
/// ones, because they take the time of their bytes.
inline constexpr double kBatched = 0.66;

/// Kernels that move bytes at a share of the rate of others [measured: torch, bf16, on an H100: 2.0 and 1.27 of
/// 2.9 TB/s; those of backward are assumed alike]. Of published runs they are counted among others.
struct SlowKernel {
  std::string_view what;  ///< begin of KernelWork::what
  double share;
};
inline constexpr std::array<SlowKernel, 5> kSlowKernels{{{"native_layer_norm", 0.69},
                                                         {"layer_norm", 0.69},
                                                         {"rms_norm", 0.69},
                                                         {"_softmax", 0.44},
                                                         {"_log_softmax", 0.44}}};

// Attention: rate, of that of large products, for heads of 128 and long sequences

struct AttentionRate {
  double forward = 0, backward = 0;
};
// [published: Dao et al., arXiv 2205.14135, 2307.08691; Shah et al., arXiv 2407.08608]
inline constexpr AttentionRate kFlash1{0.45, 0.38}, kFlash2{0.72, 0.60}, kFlash2Hopper{0.46, 0.40}, kCudnn{0.72, 0.62};
inline constexpr double kAttentionRamp = 512;  ///< s keys reach s / (s + this) [recalled]
inline constexpr int kAttentionKernels = 3;    ///< [counted]

}  // namespace caravan::fitted
