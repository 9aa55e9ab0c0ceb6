#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "caravan/nn/product/product_choice.h"

namespace caravan {

/// While it lives, no row of a forward product of this thread depends on how many there are, of up to `most` rows,
/// which are products of few rows, or of more, which are products of tiles where the processor has them: for texts that
/// are continued side by side.
class EachRowAlone {
 public:
  static constexpr int64_t kMost = 64;
  explicit EachRowAlone(int64_t most = kMost);
  ~EachRowAlone();
  EachRowAlone(const EachRowAlone&) = delete;
  EachRowAlone& operator=(const EachRowAlone&) = delete;

  /// Whether one lives on this thread.
  static bool is_active() noexcept;

 private:
  int64_t before_;
  bool was_active_;
};

/// Whether few_rows_product takes them: fewer than kFewRows rows, or as many as EachRowAlone allows, of fp32, bf16 or
/// fp16, not on an accelerator, and a weight that has its rows as they are read.
bool is_few_rows_product(const at::Tensor& a, const at::Tensor& b);

/// Whether few_rows_product multiplies them in oneDNN's tiles: bf16 of even k on a processor with AMX, if its native
/// arithmetic is chosen. Does not depend on the number of rows of a.
bool are_few_rows_in_tiles(const at::Tensor& a, const at::Tensor& b, Bf16Arithmetic bf16);

/// a b^T + bias: [m, k] and [n, k] -> [m, n] of `type`, fp32 or that of a; bias [n]. Takes the time of reading b once.
/// Added up in fp32, rounded once. The bits of a row depend on no other row and on no number of threads, nor, unless
/// are_few_rows_in_tiles, on the instruction set.
at::Tensor few_rows_product(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                            at::ScalarType type, Bf16Arithmetic bf16);

}  // namespace caravan
