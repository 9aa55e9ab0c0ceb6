#pragma once

namespace caravan::fitted {

// What the operations of published runs move, in 16-bit arithmetic. Sources in brackets: cost/constants.h; where none
// stands, [counted].

/// Of unfused attention; bytes for each score of the causal half.
struct SoftmaxWork {
  double forward, backward;
  double kernels;  ///< forward
};
/// Softmax with scale and mask reads 2 and writes 2, dropout 2, 2 and 1.
inline constexpr SoftmaxWork kFusedSoftmax{8, 11, 2};
/// Scale, mask and copies in fp32 besides.
inline constexpr SoftmaxWork kEagerSoftmax{22, 30, 5};

/// Of what is between products, forward. Of `norm` to `residual` elements that are read or written for each feature
/// of a token, two bytes each; else bytes.
struct ElementwiseWork {
  double norm, rms_norm, dropout, residual;
  double activation, gated;  ///< for each feature inside the MLP
  double qkv;       ///< for each feature of queries, keys and values: bias, or copies that make them contiguous
  double rotary;    ///< for each feature of queries and keys
  double backward;  ///< as a multiple of forward [recalled]
  double kernels, of_llama;  ///< forward; backward has twice as many
};
inline constexpr ElementwiseWork kFusedWork{4, 4, 1, 6, 4, 6, 2, 4, 1.6, 12, 10};
/// RMSNorm: copies in fp32, square, mean, scale, cast, weight.
inline constexpr ElementwiseWork kEagerWork{4, 34, 5, 6, 4, 10, 5, 20, 1.9, 12, 34};
inline constexpr double kCompiledShare = 0.85;  ///< of the bytes of kernels by hand, that a compiler's move [recalled]
inline constexpr double kFp8Casts = 4;          ///< bytes for each element of an operand: cast, and transposed

/// Of the embedding: bytes by those of its output; its gradient is a dense table, which is zeroed and added to.
inline constexpr double kEmbeddingForward = 3, kEmbeddingBackward = 6, kTableBytes = 2;
inline constexpr double kEmbeddingKernels = 10;
inline constexpr double kLossForward = 0.45;                        ///< of Framework::loss_bytes; the rest is backward
inline constexpr double kHeadHidden = 4;                            ///< reads and writes of the hidden states: norm
inline constexpr double kLossKernels = 20, kOptimizerKernels = 20;  ///< [recalled]
/// Share of the layers for which recomputation by operator repeats what torchtitan does not save [recalled].
inline constexpr double kOperatorShare = 0.8;
/// Share of the gathers of embedding and head that ZeRO-3 repeats in backward: the head's.
inline constexpr double kEndsInBackward = 0.5;

}  // namespace caravan::fitted
