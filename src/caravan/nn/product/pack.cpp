#include "caravan/nn/product/pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/kernel_math.h"

namespace caravan::kernels {
namespace {

using Quad [[gnu::vector_size(16)]] = uint32_t;

CARAVAN_INLINE Quad load_quad(const void* from) {
  Quad quad;
  std::memcpy(&quad, from, sizeof(quad));
  return quad;
}
CARAVAN_INLINE void store_quad(Quad quad, void* to) { std::memcpy(to, &quad, sizeof(quad)); }

/// Of 32-bit elements, in squares of 4, and these in blocks, so that lines of the cache are read and written whole.
struct Transpose {
  static constexpr int64_t kSquare = 4, kRows = 32, kColumns = 16;

  CARAVAN_INLINE void square(const uint32_t* from, int64_t from_stride, uint32_t* to, int64_t to_stride) {
    const Quad a = load_quad(from), b = load_quad(from + from_stride);
    const Quad c = load_quad(from + 2 * from_stride), d = load_quad(from + 3 * from_stride);
    const Quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Quad cd = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    store_quad(__builtin_shufflevector(ab, cd, 0, 1, 4, 5), to);
    store_quad(__builtin_shufflevector(ab, cd, 2, 3, 6, 7), to + to_stride);
    store_quad(__builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), to + 2 * to_stride);
    store_quad(__builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7), to + 3 * to_stride);
  }

  CARAVAN_INLINE void run(const uint32_t* from, int64_t from_stride, int64_t rows, int64_t columns, uint32_t* to,
                          int64_t to_stride) {
    const int64_t whole_rows = rows / kSquare * kSquare, whole_columns = columns / kSquare * kSquare;
    for (int64_t i = 0; i < columns; ++i) {
      for (int64_t row = i < whole_columns ? whole_rows : 0; row < rows; ++row) {
        // Pairs of 16 bits may begin anywhere.
        std::memcpy(to + i * to_stride + row, from + row * from_stride + i, sizeof(uint32_t));
      }
    }
    for (int64_t row = 0; row < whole_rows; row += kRows) {
      for (int64_t i = 0; i < whole_columns; i += kColumns) {
        const int64_t num_rows = std::min(kRows, whole_rows - row), num_columns = std::min(kColumns, whole_columns - i);
        block(from + row * from_stride + i, from_stride, num_rows, num_columns, to + i * to_stride + row, to_stride);
      }
    }
  }

  /// Rows may be a power of two apart: each is read to the end of its line while that is in the cache.
  CARAVAN_INLINE void block(const uint32_t* from, int64_t from_stride, int64_t rows, int64_t columns, uint32_t* to,
                            int64_t to_stride) {
    for (int64_t row = 0; row < rows; row += kSquare) {
      for (int64_t i = 0; i < columns; i += kSquare) {
        square(from + row * from_stride + i, from_stride, to + i * to_stride + row, to_stride);
      }
    }
  }
};

/// A row of pairs [columns][2] -> the two rows of which it is made.
struct SplitPairs {
  CARAVAN_INLINE void run(const uint32_t* pairs, int64_t columns, uint16_t* low, uint16_t* high) {
    for (int64_t i = 0; i < columns; ++i) {
      low[i] = static_cast<uint16_t>(pairs[i]);
      high[i] = static_cast<uint16_t>(pairs[i] >> 16);
    }
  }
};

/// Rows -> half as many rows of pairs; the last of an odd number is joined with zeros.
struct JoinPairs {
  CARAVAN_INLINE void run(const uint16_t* __restrict from, int64_t stride, int64_t rows, int64_t width,
                          uint32_t* __restrict to, int64_t pitch) {
    for (int64_t row = 0; row < rows; row += 2, from += 2 * stride, to += pitch) {
      if (row + 1 < rows) {
        const uint16_t* __restrict high = from + stride;
        for_each_lane(width, [=](int64_t i) { to[i] = from[i] | uint32_t{high[i]} << 16; });
      } else {
        for_each_lane(width, [=](int64_t i) { to[i] = from[i]; });
      }
      for (int64_t i = width; i < pitch; ++i) to[i] = 0;
    }
  }
};

template <class T, class E>
struct PackRows {
  CARAVAN_INLINE void run(const T* __restrict from, int64_t stride, int64_t rows, int64_t width, E* __restrict to,
                          int64_t pitch) {
    for (int64_t row = 0; row < rows; ++row, from += stride, to += pitch) {
      for_each_lane(width, [=](int64_t i) {
        if constexpr (sizeof(T) == sizeof(E)) {
          to[i] = from[i];
        } else {
          to[i] = load(from[i]);
        }
      });
      for (int64_t i = width; i < pitch; ++i) to[i] = E{};
    }
  }
};

template <class T>
struct NarrowRows {
  CARAVAN_INLINE void run(const float* __restrict from, int64_t stride, int64_t rows, int64_t width, T* __restrict to,
                          int64_t to_stride) {
    for (int64_t row = 0; row < rows; ++row, from += stride, to += to_stride) {
      for_each_lane(width, [=](int64_t i) { store(from[i], to[i]); });
    }
  }
};

struct AddRows {
  CARAVAN_INLINE void run(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                          int64_t to_stride) {
    for (int64_t row = 0; row < rows; ++row, from += from_stride, to += to_stride) {
      for (int64_t i = 0; i < columns; ++i) to[i] += from[i];
    }
  }
};

}  // namespace

template <class T, class E>
void pack_rows(const T* from, int64_t stride, int64_t rows, int64_t width, E* to, int64_t padded, int64_t pitch) {
  simd::dispatch<PackRows<T, E>>(from, stride, rows, width, to, pitch);
  std::memset(to + rows * pitch, 0, static_cast<size_t>((padded - rows) * pitch) * sizeof(E));
}
template void pack_rows(const float*, int64_t, int64_t, int64_t, float*, int64_t, int64_t);
template void pack_rows(const Bf16*, int64_t, int64_t, int64_t, float*, int64_t, int64_t);
template void pack_rows(const Fp16*, int64_t, int64_t, int64_t, float*, int64_t, int64_t);
template void pack_rows(const Bf16*, int64_t, int64_t, int64_t, Bf16*, int64_t, int64_t);

template <class T>
void narrow_rows(const float* from, int64_t stride, int64_t rows, int64_t width, T* to, int64_t to_stride) {
  simd::dispatch<NarrowRows<T>>(from, stride, rows, width, to, to_stride);
}
template void narrow_rows(const float*, int64_t, int64_t, int64_t, Bf16*, int64_t);
template void narrow_rows(const float*, int64_t, int64_t, int64_t, Fp16*, int64_t);

void pack_row_pairs(const Bf16* from, int64_t stride, int64_t rows, int64_t width, Bf16* to, int64_t padded,
                    int64_t pitch) {
  simd::dispatch<JoinPairs>(reinterpret_cast<const uint16_t*>(from), stride, rows, width,
                            reinterpret_cast<uint32_t*>(to), pitch);
  const int64_t written = (rows + 1) / 2 * 2;
  std::memset(to + written * pitch, 0, static_cast<size_t>((padded - written) * pitch) * sizeof(Bf16));
}

void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  simd::dispatch<Transpose>(reinterpret_cast<const uint32_t*>(from), from_stride, rows, columns,
                            reinterpret_cast<uint32_t*>(to), to_stride);
}

void transpose_pairs(const Bf16* from, int64_t from_stride, int64_t rows, int64_t columns, Bf16* to,
                     int64_t to_stride) {
  simd::dispatch<Transpose>(reinterpret_cast<const uint32_t*>(from), from_stride / 2, rows, columns / 2,
                            reinterpret_cast<uint32_t*>(to), to_stride);
}

void transpose(const Bf16* from, int64_t from_stride, int64_t rows, int64_t columns, Bf16* to, int64_t to_stride) {
  constexpr int64_t kRows = 64, kColumns = 16;  // at once
  std::array<uint32_t, kRows * kColumns / 2> pairs;
  const int64_t whole_columns = from_stride % 2 == 0 ? columns / 2 * 2 : 0;
  for (int64_t i = 0; i < whole_columns; i += kColumns) {
    const int64_t num_pairs = std::min(kColumns, whole_columns - i) / 2;
    for (int64_t row = 0; row < rows; row += kRows) {
      const int64_t count = std::min(kRows, rows - row);
      simd::dispatch<Transpose>(reinterpret_cast<const uint32_t*>(from + row * from_stride + i), from_stride / 2, count,
                                num_pairs, pairs.data(), kRows);
      for (int64_t j = 0; j < num_pairs; ++j) {
        auto* low = reinterpret_cast<uint16_t*>(to + (i + 2 * j) * to_stride + row);
        simd::dispatch<SplitPairs>(pairs.data() + j * kRows, count, low, low + to_stride);
      }
    }
  }
  for (int64_t i = whole_columns; i < columns; ++i) {
    for (int64_t row = 0; row < rows; ++row) to[i * to_stride + row] = from[row * from_stride + i];
  }
}

void add_transposed(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                    int64_t to_stride) {
  constexpr int64_t kSide = 64;
  std::array<float, kSide * kSide> square;
  for (int64_t row = 0; row < rows; row += kSide) {
    for (int64_t i = 0; i < columns; i += kSide) {
      const int64_t num_rows = std::min(kSide, rows - row), num_columns = std::min(kSide, columns - i);
      transpose(from + row * from_stride + i, from_stride, num_rows, num_columns, square.data(), kSide);
      simd::dispatch<AddRows>(static_cast<const float*>(square.data()), kSide, num_columns, num_rows,
                              to + i * to_stride + row, to_stride);
    }
  }
}

}  // namespace caravan::kernels
