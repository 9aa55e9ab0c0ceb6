#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>

namespace caravan::kernels {

/// Two bf16 that are neighbours in the dimension over which a product sums, the first one in the low bits. Memory of
/// bf16 is read as such.
struct [[gnu::packed, gnu::may_alias]] Pair {
  uint32_t bits;
};

/// A left operand: element (i, k) is data[i * row + k * step]. A transposed matrix has row 1.
template <class E>
struct LeftBlock {
  const E* data;
  int64_t row;
  int64_t step = 1;
};

/// A right operand: rows that are `stride` apart.
template <class E>
struct RightBlock {
  const E* data;
  int64_t stride;
};

/// What is read and written next, and fetched into the second cache in the meantime: processors do not foresee matrices
/// whose rows are short or far apart, and a product of those that are in no cache takes up to 1.4 times as long without
/// it. Lines are fetched at a steady rate: a processor waits for more than some dozens at once.
class Fetch {
 public:
  /// `rows` rows of `columns` elements, which are `stride` apart, after those that were added before: up to three
  /// matrices.
  template <class E>
  void add(const E* first, int64_t stride, int64_t rows, int64_t columns, bool is_written = false) {
    if (rows <= 0 || columns <= 0) return;
    constexpr int64_t kSize = sizeof(E);
    assert(num_regions_ < regions_.size());
    regions_[num_regions_++] = {reinterpret_cast<const char*>(first), stride * kSize, rows,
                                (columns * kSize + kLine - 1) / kLine, is_written};
  }
  /// Within products of m x n x k in all.
  void spread_over(int64_t m, int64_t n, int64_t k);

  /// A step: kTerms terms of k of a block of rows. As simple as this, it leaves the sums of the block in registers.
  void advance() {
    for (int64_t i = 0; i < rate_; ++i) {
      const char* line = at_ + line_ * kLine;
      if (regions_[region_].is_written) {
        __builtin_prefetch(line, /*rw=*/1, /*locality=*/3);
      } else {
        __builtin_prefetch(line, /*rw=*/0, /*locality=*/2);
      }
      if (++line_ < regions_[region_].lines) continue;
      line_ = 0;
      at_ += regions_[region_].stride;
      if (--rows_ == 0) next_region();
    }
  }
  static constexpr int64_t kTerms = 16;

 private:
  static constexpr int64_t kLine = 64;  ///< bytes
  struct Region {
    const char* first;
    int64_t stride, rows, lines;
    bool is_written;
  };
  void next_region();

  std::array<Region, 3> regions_;
  size_t num_regions_ = 0, region_ = 0;
  const char* at_ = nullptr;
  int64_t line_ = 0, rows_ = 0, rate_ = 0;  ///< next line of the row; rows left; lines of a step
};

/// Terms that are added up one after the other. The sums of so many are added up in turn: for long rows that is closer
/// to the exact sum.
inline constexpr int64_t kTermsOfSum = 512;

/// c [m, n] = start + a b, of a [m, k] and b [k, n]; c is the start if it `adds`, else `bias` [n], else 0. For blocks
/// that fit the caches. An element adds up its terms in the order of k by fused multiply-adds: AVX2 and AVX-512 give
/// the same bits, also if CARAVAN_SIMD asks for less, and so does any division of rows and columns. Where a processor
/// has no such additions, products are rounded first. Single-threaded.
void multiply_block(int64_t m, int64_t n, int64_t k, const LeftBlock<float>& a, const RightBlock<float>& b, float* c,
                    int64_t c_stride, bool adds, const float* bias = nullptr, Fetch* fetch = nullptr);

/// The same of pairs, k of them, by instructions that add two products of bf16 at once, where a processor has these.
bool has_pair_blocks();
void multiply_block(int64_t m, int64_t n, int64_t k, const LeftBlock<Pair>& a, const RightBlock<Pair>& b, float* c,
                    int64_t c_stride, bool adds, const float* bias = nullptr, Fetch* fetch = nullptr);

}  // namespace caravan::kernels
