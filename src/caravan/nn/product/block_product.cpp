#include "caravan/nn/product/block_product.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/kernel_math.h"

// This file is compiled with -ffp-contract=fast: a sum of a product is one instruction where the set has it. prfchw
// fetches a line to be written; the oldest processors with AVX2 ignore it.

// clang checks the operands of assembly for the instruction set of the function that they are written in.
#if defined(__x86_64__) && !defined(__clang__)
#define CARAVAN_PAIRS
#endif

namespace caravan::kernels {
namespace {

template <class E>
struct Block {
  int64_t k;
  LeftBlock<E> a;
  RightBlock<E> b;
  float* c;
  int64_t c_stride;
  const float* bias;
  bool adds;
  Fetch* fetch;
};

/// Vectors of fp32, and of right operands: pairs of bf16 are integers of 32 bits.
template <class E, int kBytes>
struct VectorOf {
  using type [[gnu::vector_size(kBytes)]] = float;
};
template <int kBytes>
struct VectorOf<Pair, kBytes> {
  using type [[gnu::vector_size(kBytes)]] = uint32_t;
};

CARAVAN_INLINE float element_of(float x) { return x; }
CARAVAN_INLINE uint32_t element_of(Pair x) { return x.bits; }

template <class Sums>
CARAVAN_INLINE void add_products(float factor, const Sums& row, Sums& sums) {
  sums += factor * row;
}
#if defined(CARAVAN_PAIRS)
template <class Sums, class Pairs>
CARAVAN_INLINE void add_products(uint32_t factor, const Pairs& row, Sums& sums) {
  const Pairs factors = factor - Pairs{};
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(factors), "v"(row));
}
#endif

/// kRows rows of kVectors vectors of kBytes, which stay in registers for all of k; single elements in the least vector.
template <int kBytes, int kRows, int kVectors, class E>
CARAVAN_INLINE void multiply_in_registers(const Block<E>& x) {
  constexpr int kRegister = std::max(kBytes, 16);
  using Sums = typename VectorOf<float, kRegister>::type;
  using Row = typename VectorOf<E, kRegister>::type;
  constexpr int64_t kStep = kBytes / sizeof(float);
  Sums sums[kRows][kVectors];  // NOLINT: std::array would lose the attribute
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sums[i][j] = Sums{};
  }
  const E* a = x.a.data;
  const E* b = x.b.data;
  for (int64_t k = 0; k < x.k;) {
    if (x.fetch != nullptr) x.fetch->advance();
    for (const int64_t end = std::min(k + Fetch::kTerms, x.k); k < end; ++k, a += x.a.step, b += x.b.stride) {
      Row row[kVectors] = {};  // NOLINT
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) std::memcpy(&row[j], b + j * kStep, kBytes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const auto factor = element_of(a[i * x.a.row]);
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) add_products(factor, row[j], sums[i][j]);
      }
    }
  }
  const float* start = x.adds ? x.c : x.bias;
  const int64_t start_stride = x.adds ? x.c_stride : 0;
  if (start != nullptr) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        Sums first{};
        std::memcpy(&first, start + i * start_stride + j * kStep, kBytes);
        sums[i][j] += first;
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) std::memcpy(x.c + i * x.c_stride + j * kStep, &sums[i][j], kBytes);
  }
}

/// The same as a kernel of one instruction set: 512, 256 or 128 bits.
template <int kBits, class E, int kBytes, int kRows, int kVectors>
struct Kernel;

#if defined(__x86_64__)
template <int kBytes, int kRows, int kVectors>
struct Kernel<512, float, kBytes, kRows, kVectors> {
  [[gnu::target("fma,avx512f,avx512bw,avx512dq,avx512vl,prfchw,prefer-vector-width=512")]] static void run(
      const Block<float>& x) {
    multiply_in_registers<kBytes, kRows, kVectors>(x);
  }
};
#if defined(CARAVAN_PAIRS)
template <int kBytes, int kRows, int kVectors>
struct Kernel<512, Pair, kBytes, kRows, kVectors> {
  [[gnu::target("fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prfchw,prefer-vector-width=512")]] static void run(
      const Block<Pair>& x) {
    multiply_in_registers<kBytes, kRows, kVectors>(x);
  }
};
#endif
template <int kBytes, int kRows, int kVectors>
struct Kernel<256, float, kBytes, kRows, kVectors> {
  [[gnu::target("avx2,fma,prfchw")]] static void run(const Block<float>& x) {
    multiply_in_registers<kBytes, kRows, kVectors>(x);
  }
};
#endif
template <int kBytes, int kRows, int kVectors>
struct Kernel<128, float, kBytes, kRows, kVectors> {
  static void run(const Block<float>& x) { multiply_in_registers<kBytes, kRows, kVectors>(x); }
};

constexpr int kMostRows = 14;

/// Kernels of one width for 1, 2, .. rows.
template <class E>
struct Kernels {
  std::array<void (*)(const Block<E>&), kMostRows> of_rows{};
  int64_t rows = 0;     ///< of the largest
  int64_t columns = 0;  ///< of each
};

template <int kBits, class E, int kBytes, int kVectors, int... kRows>
constexpr Kernels<E> kernels_of(std::integer_sequence<int, kRows...> /*rows*/) {
  return {{&Kernel<kBits, E, kBytes, kRows + 1, kVectors>::run...},
          sizeof...(kRows),
          kVectors * kBytes / static_cast<int64_t>(sizeof(float))};
}
template <int kBits, class E, int kBytes, int kVectors, int kMost>
constexpr Kernels<E> kernels_up_to() {
  return kernels_of<kBits, E, kBytes, kVectors>(std::make_integer_sequence<int, kMost>());
}

// From wide to narrow. As many rows as leave registers for a row of b and a factor.
#if defined(__x86_64__)
constexpr std::array kAvx512{kernels_up_to<512, float, 64, 4, 6>(),  kernels_up_to<512, float, 64, 3, 8>(),
                             kernels_up_to<512, float, 64, 2, 12>(), kernels_up_to<512, float, 64, 1, 14>(),
                             kernels_up_to<512, float, 32, 1, 14>(), kernels_up_to<512, float, 16, 1, 14>(),
                             kernels_up_to<512, float, 4, 1, 14>()};
#if defined(CARAVAN_PAIRS)
constexpr std::array kAvx512Pairs{kernels_up_to<512, Pair, 64, 4, 6>(),  kernels_up_to<512, Pair, 64, 2, 12>(),
                                  kernels_up_to<512, Pair, 64, 1, 14>(), kernels_up_to<512, Pair, 32, 1, 14>(),
                                  kernels_up_to<512, Pair, 16, 1, 14>(), kernels_up_to<512, Pair, 4, 1, 14>()};
#endif
constexpr std::array kAvx2{kernels_up_to<256, float, 32, 2, 6>(), kernels_up_to<256, float, 32, 1, 12>(),
                           kernels_up_to<256, float, 16, 1, 12>(), kernels_up_to<256, float, 4, 1, 12>()};
#endif
constexpr std::array kBaseline{kernels_up_to<128, float, 16, 2, 6>(), kernels_up_to<128, float, 16, 1, 12>(),
                               kernels_up_to<128, float, 4, 1, 12>()};

template <class E, size_t kCount>
void multiply_by(const std::array<Kernels<E>, kCount>& widths, int64_t m, int64_t n, const Block<E>& all) {
  constexpr int64_t kMost = std::is_same_v<E, Pair> ? kTermsOfSum / 2 : kTermsOfSum;
  Block<E> block = all;
  for (int64_t column = 0; column < n;) {
    size_t width = 0;
    while (widths[width].columns > n - column) ++width;
    const Kernels<E>& kernels = widths[width];
    // Of equal numbers of rows: a kernel of few has too few sums for its additions to overlap.
    int64_t blocks = (m + kernels.rows - 1) / kernels.rows;
    for (int64_t row = 0, rows = 0; row < m; row += rows, --blocks) {
      rows = (m - row + blocks - 1) / blocks;
      block.c = all.c + row * all.c_stride + column;
      for (int64_t k = 0; k < all.k || k == 0; k += kMost) {
        block.k = std::min(kMost, all.k - k);
        block.a.data = all.a.data + row * all.a.row + k * all.a.step;
        block.b.data = all.b.data + k * all.b.stride + column;
        block.adds = all.adds || k > 0;
        block.bias = all.bias == nullptr ? nullptr : all.bias + column;
        kernels.of_rows[static_cast<size_t>(rows - 1)](block);
      }
    }
    column += kernels.columns;
  }
}

}  // namespace

void Fetch::spread_over(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kRows = 8, kColumns = 64;  // of a block of registers: rather more than there are
  int64_t lines = 0;
  for (size_t i = 0; i < num_regions_; ++i) lines += regions_[i].rows * regions_[i].lines;
  if (lines == 0) return;
  const int64_t steps = std::max<int64_t>(m / kRows * ((n + kColumns - 1) / kColumns) * (k / kTerms), 1);
  rate_ = (lines + steps - 1) / steps;
  at_ = regions_[0].first;
  rows_ = regions_[0].rows;
}

void Fetch::next_region() {
  if (++region_ < num_regions_) {
    at_ = regions_[region_].first;
    rows_ = regions_[region_].rows;
  } else {
    rate_ = 0;
  }
}

void multiply_block(int64_t m, int64_t n, int64_t k, const LeftBlock<float>& a, const RightBlock<float>& b, float* c,
                    int64_t c_stride, bool adds, const float* bias, Fetch* fetch) {
  const Block<float> all{k, a, b, c, c_stride, bias, adds, fetch};
#if defined(__x86_64__)
  static const simd::Isa isa = std::max(simd::isa(), std::min(simd::detected_isa(), simd::Isa::avx2));
  if (isa >= simd::Isa::avx512) return multiply_by(kAvx512, m, n, all);
  if (isa >= simd::Isa::avx2) return multiply_by(kAvx2, m, n, all);
#endif
  multiply_by(kBaseline, m, n, all);
}

bool has_pair_blocks() {
#if defined(CARAVAN_PAIRS)
  return simd::isa() >= simd::Isa::avx512_bf16;
#else
  return false;
#endif
}

void multiply_block([[maybe_unused]] int64_t m, [[maybe_unused]] int64_t n, int64_t k, const LeftBlock<Pair>& a,
                    const RightBlock<Pair>& b, float* c, int64_t c_stride, bool adds, const float* bias, Fetch* fetch) {
  [[maybe_unused]] const Block<Pair> all{k, a, b, c, c_stride, bias, adds, fetch};
#if defined(CARAVAN_PAIRS)
  multiply_by(kAvx512Pairs, m, n, all);
#else
  __builtin_unreachable();
#endif
}

}  // namespace caravan::kernels
