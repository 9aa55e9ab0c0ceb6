#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace caravan {

/// Counter-based random numbers (Philox 4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11):
/// number i of a stream is a function of (seed, name, step, i) only. It does not depend on the rank that draws it, the
/// order, or how many are drawn at a time. The loops are vectorised by run-time dispatch and give the same bits on
/// every machine: no fused multiply-add, own polynomials for log, sin and cos, the same arithmetic for tails.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name, int64_t step = 0);

  /// Number i: 32 uniform bits.
  uint32_t bits(uint64_t i) const noexcept;
  /// out[k] = number first + k, as a float in [0, 1) with 24 bits.
  void uniform(uint64_t first, std::span<float> out) const noexcept;
  /// Standard normal by Box-Muller: numbers 2j and 2j+1 give normals 2j and 2j+1.
  void normal(uint64_t first, std::span<float> out) const noexcept;
  /// out[k] = 1 / keep with probability `keep`, else 0.
  void dropout_mask(uint64_t first, float keep, std::span<float> out) const noexcept;

 private:
  uint64_t key_;
  uint64_t stream_;
};

/// A permutation of 0 .. size-1 that depends only on the stream and is evaluated one element at a time, without a
/// table: a Feistel network over the next power of four, applied again until the result is below size (cycle walking).
class RandomPermutation {
 public:
  RandomPermutation(uint64_t seed, std::string_view name, int64_t step, uint64_t size);
  uint64_t operator()(uint64_t i) const noexcept;
  uint64_t size() const noexcept { return size_; }

 private:
  RandomStream stream_;
  uint64_t size_;
  int half_bits_;
};

}  // namespace caravan
