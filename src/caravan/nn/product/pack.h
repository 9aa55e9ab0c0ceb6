#pragma once

#include <cstdint>

#include "caravan/nn/product/kernels.h"

/// Copies of matrices as products of tiles read them. Packed rows have `pitch` elements, and zeros beyond their width.
/// A matrix of bf16 that is the right operand of a product is *paired*: rows 2i and 2i + 1 are interleaved,
/// [rows / 2][pitch][2]. Single-threaded.
namespace caravan::kernels {

/// `rows` rows of `width` elements that are `stride` apart, as `padded` packed rows.
template <class T, class E>
void pack_rows(const T* from, int64_t stride, int64_t rows, int64_t width, E* to, int64_t padded, int64_t pitch);
/// The same, paired. `padded` is even.
void pack_row_pairs(const Bf16* from, int64_t stride, int64_t rows, int64_t width, Bf16* to, int64_t padded,
                    int64_t pitch);

/// `rows` rows of `width` elements, rounded to T.
template <class T>
void narrow_rows(const float* from, int64_t stride, int64_t rows, int64_t width, T* to, int64_t to_stride);

/// to [columns][to_stride] = the transpose of from [rows][from_stride].
void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride);
void transpose(const Bf16* from, int64_t from_stride, int64_t rows, int64_t columns, Bf16* to, int64_t to_stride);
/// The same, paired: [columns / 2][to_stride][2]. `columns` and `from_stride` are even.
void transpose_pairs(const Bf16* from, int64_t from_stride, int64_t rows, int64_t columns, Bf16* to, int64_t to_stride);
/// to [columns][to_stride] += the transpose of from.
void add_transposed(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                    int64_t to_stride);

}  // namespace caravan::kernels
