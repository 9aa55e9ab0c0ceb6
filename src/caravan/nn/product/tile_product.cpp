#include "caravan/nn/product/tile_product.h"

#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <type_traits>

#include <ATen/Context.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/simd.h"
#include "caravan/base/parallel_for.h"
#include "caravan/base/system/processor.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/block_product.h"
#include "caravan/nn/product/pack.h"

namespace caravan {
namespace {

using kernels::Bf16;

/// The product a^T b of fp32, or of bf16 where there are blocks of pairs: one block of the rows of a and b after the
/// other. How it is divided over threads decides no bits.
template <class E>
class TransposedProduct {
 public:
  TransposedProduct(const at::Tensor& a, const at::Tensor& b, float* c, bool adds)
      : k_(a.size(0)), a_(matrix(a)), b_(matrix(b)), c_(c), adds_(adds) {}

  /// Elements of scratch of a thread.
  static int64_t scratch(const at::Tensor& a, const at::Tensor& b) {
    const Division division(matrix(a), matrix(b));
    return division.is_packed ? division.depth * (kPackedColumns + kTileRows) : 0;
  }

  /// Rows [begin, end) of the result.
  void run(int64_t begin, int64_t end, E* scratch) const {
    const Division division(a_, b_);
    const int64_t most = division.is_packed ? kPackedColumns : b_.columns;
    for (int64_t column = 0; column < b_.columns; column += most) {
      // The first block is short if nobody has fetched it.
      Block block{begin, end, column, std::min(column + most, b_.columns), 0, 0, 0};
      block.depth = std::min(division.fetches ? kFirstDepth : division.depth, k_);
      for (; block.first < k_; block.first += block.depth, block.depth = block.next) {
        const int64_t left = k_ - block.first - block.depth;
        block.next = std::min({2 * block.depth, division.depth, left});
        if (division.is_packed) {
          multiply_packed(block, scratch, division.fetches);
        } else {
          multiply_in_place(block);
        }
      }
    }
  }

 private:
  static constexpr bool kIsPaired = std::is_same_v<E, Bf16>;
  using Operand = std::conditional_t<kIsPaired, kernels::Pair, float>;
  static constexpr int64_t kOfPair = kIsPaired ? 2 : 1;
  static constexpr int64_t kPackedColumns = 512, kFirstDepth = 64;

  struct Matrix {
    const E* data;
    int64_t stride, columns;
    const E* at(int64_t row, int64_t column) const { return data + row * stride + column; }
  };
  static Matrix matrix(const at::Tensor& x) {
    return {x.is_meta() ? nullptr : data_of<E>(x), x.size(0) == 1 ? x.size(1) : x.stride(0), x.size(1)};
  }
  /// Blocks are copied if their elements are to be paired, or share places in the cache since rows are far apart.
  struct Division {
    Division(const Matrix& a, const Matrix& b) {
      constexpr int64_t kFar = 8192;  // bytes
      const bool is_far = std::max(a.stride, b.stride) * static_cast<int64_t>(sizeof(E)) >= kFar;
      is_packed = kIsPaired || is_far;
      fetches = !is_far;
      depth = kIsPaired || !is_far ? 256 : 128;
    }
    bool is_packed, fetches;
    int64_t depth;
  };
  /// Terms [first, first + depth) of rows [begin, end) and columns [from, to) of the result; the next block has `next`
  /// terms.
  struct Block {
    int64_t begin, end, from, to, first, depth, next;
    int64_t rows(int64_t row) const { return std::min(kTileRows, end - row); }
    int64_t columns(int64_t column) const { return std::min(kTileColumns, to - column); }
    int64_t pairs() const { return (depth + kOfPair - 1) / kOfPair; }
  };

  void multiply_in_place(const Block& block) const {
    if constexpr (!kIsPaired) {
      for (int64_t row = block.begin; row < block.end; row += kTileRows) {
        kernels::Fetch fetch = fetch_of(block, row, true);
        for (int64_t column = block.from; column < block.to; column += kTileColumns) {
          multiply(block, row, column, {a_.at(block.first, row), 1, a_.stride}, {b_.at(block.first, column), b_.stride},
                   fetch);
        }
      }
    }
  }

  void multiply_packed(const Block& block, E* panels, bool fetches) const {
    const int64_t padded = block.pairs() * kOfPair;
    E* left = panels + padded * kPackedColumns;
    const auto operand = [](const E* packed) { return reinterpret_cast<const Operand*>(packed); };
    for (int64_t column = block.from; column < block.to; column += kTileColumns) {
      pack(b_, block, column, block.columns(column), padded, panels + (column - block.from) * padded);
    }
    for (int64_t row = block.begin; row < block.end; row += kTileRows) {
      kernels::Fetch fetch = fetch_of(block, row, fetches);
      pack(a_, block, row, block.rows(row), padded, left);
      for (int64_t column = block.from; column < block.to; column += kTileColumns) {
        multiply(block, row, column, {operand(left), 1, kTileRows},
                 {operand(panels + (column - block.from) * padded), kTileColumns}, fetch);
      }
    }
  }

  /// Of the tiles of these rows of the result: the rows that follow, and a share of the operands of the next block.
  kernels::Fetch fetch_of(const Block& block, int64_t row, bool fetches_operands) const {
    const int64_t rows = block.rows(row), columns = block.to - block.from, next = row + kTileRows;
    kernels::Fetch fetch;
    fetch.add(c_ + next * b_.columns + block.from, b_.columns, std::min(block.end - next, kTileRows), columns,
              /*is_written=*/true);
    if (fetches_operands) {
      const int64_t all = block.end - block.begin, from = (row - block.begin) * block.next / all;
      const int64_t count = (row + rows - block.begin) * block.next / all - from;
      const int64_t first = block.first + block.depth + from;
      fetch.add(b_.at(first, block.from), b_.stride, count, columns);
      fetch.add(a_.at(first, block.begin), a_.stride, count, all);
    }
    fetch.spread_over(rows, columns, block.pairs());
    return fetch;
  }

  static void pack(const Matrix& x, const Block& block, int64_t column, int64_t columns, int64_t padded, E* to) {
    static_assert(kTileRows == kTileColumns);
    if constexpr (kIsPaired) {
      kernels::pack_row_pairs(x.at(block.first, column), x.stride, block.depth, columns, to, padded, kTileColumns);
    } else {
      kernels::pack_rows(x.at(block.first, column), x.stride, block.depth, columns, to, padded, kTileColumns);
    }
  }

  void multiply(const Block& block, int64_t row, int64_t column, const kernels::LeftBlock<Operand>& left,
                const kernels::RightBlock<Operand>& right, kernels::Fetch& fetch) const {
    kernels::multiply_block(block.rows(row), block.columns(column), block.pairs(), left, right,
                            c_ + row * b_.columns + column, b_.columns, adds_ || block.first > 0, nullptr, &fetch);
  }

  int64_t k_;
  Matrix a_, b_;
  float* c_;
  bool adds_;
};

/// sum [m, n] (+)= a^T b. An element adds up k in the same order on any number of threads.
template <class E>
void add_product_by_tiles(const at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b) {
  const int64_t m = a.size(1);
  const ThreadScratch scratch(num_tiles(m), TransposedProduct<E>::scratch(a, b), a.options());
  if (sum.is_meta()) return;
  const TransposedProduct<E> product(a, b, data_of<float>(sum), !is_empty);
  parallel_for(0, num_tiles(m), 1, [&](int64_t begin, int64_t end) {
    product.run(begin * kTileRows, std::min(end * kTileRows, m), scratch.own<E>());
  });
}

/// Of the products of a tile of bf16 by oneDNN.
constexpr int64_t kDepth = 512;
/// Of left operands: rows a power of two apart would share lines of the cache.
constexpr int64_t kPitch = kDepth + 32;

/// The rows of b, paired.
at::Tensor paired(const at::Tensor& b) {
  const int64_t rows = b.size(0), columns = b.size(1);
  const at::Tensor memory = at::empty({(rows + 1) / 2 * 2, columns}, b.options());
  if (b.is_meta()) return memory;
  parallel_for(0, (rows + 1) / 2, 64, [&](int64_t begin, int64_t end) {
    kernels::pack_row_pairs(data_of<Bf16>(b) + 2 * begin * b.stride(0), b.stride(0),
                            std::min(2 * end, rows) - 2 * begin, columns, data_of<Bf16>(memory) + 2 * begin * columns,
                            2 * (end - begin), columns);
  });
  return memory;
}

/// The same by oneDNN, of bf16, of which b is paired whole.
void multiply_by_onednn(const at::Tensor& a, const at::Tensor& b, float* c, bool adds) {
  const int64_t m = a.size(1), n = b.size(1), k = a.size(0);
  const at::Tensor right = paired(b);
  const ThreadScratch scratch(num_tiles(m), kTileRows * kPitch, a.options());
  parallel_for(0, num_tiles(m), 1, [&](int64_t begin, int64_t end) {
    const TileScope scope;
    Bf16* left = scratch.own<Bf16>();
    for (int64_t first = 0, depth = 0; first < k; first += depth) {
      depth = next_piece(k - first, kDepth);
      const int64_t padded = (depth + 1) / 2 * 2;
      for (int64_t row = begin * kTileRows; row < std::min(end * kTileRows, m); row += kTileRows) {
        const int64_t rows = std::min(kTileRows, m - row);
        kernels::transpose(data_of<Bf16>(a) + first * a.stride(0) + row, a.stride(0), depth, rows, left, kPitch);
        for (int64_t i = 0; i < rows && depth < padded; ++i) left[i * kPitch + depth] = Bf16{};
        for (int64_t column = 0; column < n; column += kTileColumns) {
          multiply_tile(rows, std::min(kTileColumns, n - column), padded, left, kPitch,
                        data_of<Bf16>(right) + first * n + 2 * column, n, c + row * n + column, n, adds || first > 0);
        }
      }
    }
  });
}

bool has_tiles(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType type = a.scalar_type();
  return b.scalar_type() == type && !is_on_accelerator(a) &&
         (type == at::kFloat || (type == at::kBFloat16 && has_bf16_tiles()));
}

/// Whether b^T a, transposed afterwards, costs fewer copies.
bool is_turned(int64_t m, int64_t n, int64_t k) { return k * n + 2 * m * n < k * m; }

/// The memory that a product of meta tensors by oneDNN takes.
void take_dry_memory(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  const int64_t m = a.size(1), n = b.size(1);
  const bool turned = is_turned(m, n, a.size(0));
  const at::Tensor of_result = at::empty({turned ? n : 0, m}, sum.options());
  const at::Tensor right = paired(turned ? a : b);
  const ThreadScratch scratch(num_tiles(turned ? n : m), kTileRows * kPitch, a.options());
}

void add_product_by_onednn(const at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b) {
  if (sum.is_meta()) return take_dry_memory(sum, a, b);
  const int64_t m = a.size(1), n = b.size(1);
  if (!is_turned(m, n, a.size(0))) return multiply_by_onednn(a, b, data_of<float>(sum), !is_empty);
  const at::Tensor turned = at::empty({n, m}, sum.options());
  const float* from = data_of<float>(turned);
  multiply_by_onednn(b, a, data_of<float>(turned), false);
  parallel_for(0, num_tiles(m), 1, [&](int64_t begin, int64_t end) {
    const int64_t row = begin * kTileRows, rows = std::min(end * kTileRows, m) - row;
    float* to = data_of<float>(sum) + row * n;
    if (is_empty) {
      kernels::transpose(from + row, m, n, rows, to, n);
    } else {
      kernels::add_transposed(from + row, m, n, rows, to, n);
    }
  });
}

}  // namespace

const kernels::Pair* pairs(const Bf16* x) { return reinterpret_cast<const kernels::Pair*>(x); }

void multiply_tile(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   float* c, int64_t c_stride, bool adds) {
  kernels::multiply_block(m, n, k, {a, a_stride}, {b, b_stride}, c, c_stride, adds);
}
void multiply_tile(int64_t m, int64_t n, int64_t k, const Bf16* a, int64_t a_stride, const Bf16* b, int64_t b_stride,
                   float* c, int64_t c_stride, bool adds) {
  if (has_pair_tiles() && a_stride % 2 == 0) {
    return kernels::multiply_block(m, n, k / 2, {pairs(a), a_stride / 2}, {pairs(b), b_stride}, c, c_stride, adds);
  }
  at::native::cpublas::brgemm(m, n, k, a_stride, b_stride, c_stride, adds, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
}

bool has_pair_tiles() {
  static const bool has = kernels::has_pair_blocks() && !processor_class().ends_with("amx");
  return has;
}

TileScope::~TileScope() { at::native::cpublas::brgemm_release(); }

int64_t next_piece(int64_t left, int64_t most) {
  return std::min(most, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(left))));
}

bool has_rows(const at::Tensor& x) { return x.stride(1) == 1 && (x.size(0) == 1 || x.stride(0) >= x.size(1)); }

ThreadScratch::ThreadScratch(int64_t count, int64_t elements, const at::TensorOptions& options) {
  const int64_t of_thread = std::max<int64_t>((count + num_loop_threads() - 1) / num_loop_threads(), 1);
  memory_ = at::empty({(count + of_thread - 1) / of_thread, elements}, options);
}

int64_t ThreadScratch::row_of_thread() const {
  const int64_t thread = at::get_thread_num();
  if (thread < memory_.size(0)) return thread;
  throw InternalError(
      {"threads", "", fmt::format("thread {} of a loop that was planned for {}", thread, memory_.size(0)), "", ""});
}

bool has_fp32_tiles() { return simd::detected_isa() >= simd::Isa::avx2; }

bool has_bf16_tiles() {
  static const bool can = [] {
    constexpr int64_t kSide = 16;
    const std::array<Bf16, kSide * kSide> operand{};
    std::array<float, kSide * kSide> result;
    const TileScope scope;
    try {
      multiply_tile(kSide, kSide, kSide, operand.data(), kSide, operand.data(), kSide, result.data(), kSide, false);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }();
  return can && has_fp32_tiles() && (has_pair_tiles() || at::globalContext().userEnabledMkldnn());
}

bool is_tiled_sum(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  return has_tiles(a, b) && sum.scalar_type() == at::kFloat && sum.is_contiguous() && has_rows(a) && has_rows(b) &&
         a.numel() > 0 && b.numel() > 0;
}

void add_tiled_product(const at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b) {
  count_product("mm", a.scalar_type(), a.size(1), b.size(1), a.size(0));
  const KernelLogScope uncounted(nullptr);
  if (a.scalar_type() == at::kFloat) {
    add_product_by_tiles<float>(sum, is_empty, a, b);
  } else if (has_pair_tiles()) {
    add_product_by_tiles<Bf16>(sum, is_empty, a, b);
  } else {
    add_product_by_onednn(sum, is_empty, a, b);
  }
}

}  // namespace caravan
