#include "caravan/nn/attention/one_query.h"

#include <algorithm>
#include <limits>

#include <ATen/ops/empty.h>

#include "caravan/base/parallel_for.h"
#include "caravan/base/trace/kernel_log.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/attention/tiled_attention.h"
#include "caravan/nn/attention/tiles/query_rows.h"
#include "caravan/nn/attention/tiles/tile_work.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/pack.h"
#include "caravan/nn/product/tile_product.h"

namespace caravan {
namespace {

using tiles::rounded_up;
using tiles::Rows;

constexpr int64_t kPieceKeys = 256;  ///< of one task
static_assert(kPieceKeys % kernels::kRowBlock == 0);

/// The sizes of a call.
struct OneQuery {
  OneQuery(const at::Tensor& q, const at::Tensor& k, const VisibleKeys& seen)
      : batch(q.size(0)),
        keys(k.size(1)),
        kv_heads(k.size(2)),
        group{q.size(2) / k.size(2), q.size(3), rounded_up(q.size(3), kernels::kRowStep)},
        pieces(rounded_up(most_keys(q, seen), kPieceKeys) / kPieceKeys) {}

  int64_t num_tasks() const { return batch * kv_heads * pieces; }
  /// Of a head of queries and a piece: what merge_pieces takes.
  int64_t result() const { return group.pitch + kernels::kRowStep; }
  /// Of a task: queries and scores of the group, biases, rows of a block.
  int64_t scratch() const {
    return group.count * (group.pitch + kPieceKeys) + kPieceKeys + kernels::kRowBlock * group.pitch;
  }

  int64_t batch, keys, kv_heads;
  kernels::QueryHeads group;
  int64_t pieces;  ///< of the query that sees most keys

 private:
  int64_t most_keys(const at::Tensor& q, const VisibleKeys& seen) const {
    if (q.is_meta()) return seen.window() > 0 ? std::min(seen.window(), keys) : keys;
    int64_t most = 1;
    for (int64_t row = 0; row < seen.num_rows(); ++row) {
      const auto [first, end] = seen.range(row, 0, keys);
      most = std::max<int64_t>(most, end - first);
    }
    return most;
  }
};

/// The biases of keys for the query.
class Biases {
 public:
  explicit Biases(const Scores& scores) : zero_(scores.zero) {
    if (!scores.bias.defined()) return;
    of_heads_ = scores.bias.to(at::kFloat).contiguous();
    if (scores.key_positions.defined()) positions_ = scores.key_positions.to(at::kLong).contiguous();
    if (scores.query_positions.defined()) own_ = scores.query_positions.item<int64_t>();
  }
  bool defined() const { return of_heads_.defined(); }
  /// Those of keys [first, first + count) and a head.
  void copy(int64_t head, int64_t first, int64_t count, float* to) const {
    const float* of_head = of_heads_.const_data_ptr<float>() + head * of_heads_.size(1);
    const int64_t* positions = positions_.defined() ? positions_.const_data_ptr<int64_t>() : nullptr;
    for (int64_t key = first; key < first + count; ++key) {
      const int64_t distance = (positions != nullptr ? positions[key] : key) - own_;
      to[key - first] = of_head[std::clamp<int64_t>(distance + zero_, 0, of_heads_.size(1) - 1)];
    }
  }

 private:
  int64_t zero_, own_ = 0;
  at::Tensor of_heads_, positions_;
};

/// The pieces of one call. Each thread has its own, with scratch.
template <class T>
class PieceWork {
 public:
  PieceWork(const OneQuery& of, const VisibleKeys& seen, const kernels::TileScores& scores, const Biases& biases,
            float* memory)
      : of_(of), seen_(seen), made_of_(scores), biases_(biases), queries_(memory) {
    scores_ = queries_ + of.group.count * of.group.pitch;
    of_keys_ = scores_ + of.group.count * kPieceKeys;
    block_ = of_keys_ + kPieceKeys;
  }

  /// The heads that share a head of keys, over a piece of the keys that the query of `row` sees.
  void run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t row, int64_t kv_head, int64_t piece,
           float* results) {
    const auto [begin, end] = seen_.range(row, 0, of_.keys);
    const int64_t first = begin + piece * kPieceKeys, count = std::min<int64_t>(kPieceKeys, end - first);
    const kernels::QueryHeads& group = of_.group;
    if (count <= 0) return see_nothing(results);
    for (int64_t g = 0; g < group.count; ++g) {
      const T* query = Rows<T>(q, row, kv_head * group.count + g).data;
      kernels::pack_rows(query, group.width, 1, group.width, queries_ + g * group.pitch, 1, group.pitch);
    }
    const Rows<T> keys(k, row, kv_head), values(v, row, kv_head);
    kernels::multiply_keys<T>(group, queries_, {keys.at(first), keys.stride, count}, scores_, kPieceKeys, block_);
    kernels::SeenRows seen;
    if (seen_.query_documents().defined()) {
      seen = {seen_.key_documents().const_data_ptr<int32_t>() + row * of_.keys + first,
              seen_.query_documents().const_data_ptr<int32_t>()[row]};
    }
    for (int64_t g = 0; g < group.count; ++g) {
      kernels::TileScores scores = made_of_;
      if (biases_.defined()) {
        biases_.copy(kv_head * group.count + g, first, count, of_keys_);
        scores.bias = of_keys_;
      }
      float* statistics = results + g * of_.result() + group.pitch;
      kernels::weigh_keys(scores_ + g * kPieceKeys, count, scores, seen, statistics[0], statistics[1]);
    }
    kernels::add_values<T>(group, scores_, kPieceKeys, {values.at(first), values.stride, count}, results, of_.result(),
                           block_);
  }

 private:
  void see_nothing(float* results) const {
    std::fill_n(results, of_.group.count * of_.result(), 0.0F);
    for (int64_t g = 0; g < of_.group.count; ++g) {
      results[g * of_.result() + of_.group.pitch] = std::numeric_limits<float>::lowest();
    }
  }

  const OneQuery& of_;
  const VisibleKeys& seen_;
  const kernels::TileScores& made_of_;
  const Biases& biases_;
  float *queries_, *scores_, *of_keys_, *block_;
};

/// Calls f with the type of rows.
template <class F>
void with_rows_of(at::ScalarType type, F f) {
  switch (type) {
    case at::kFloat: return f(float{});
    case at::kBFloat16: return f(kernels::Bf16{});
    case at::kHalf: return f(kernels::Fp16{});
    default: refuse_dtype("attention", type);
  }
}

at::Tensor with_adjacent(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous(); }

void count_reading(const at::Tensor& q, const at::Tensor& k, int64_t keys) {
  KernelLog* log = KernelLog::current();
  if (log == nullptr) return;
  const int64_t of_keys = static_cast<int64_t>(k.nbytes()) / std::max<int64_t>(1, k.size(1)) * keys;
  log->add({.what = "attention of one query",
            .dtype = dtype_name_of(q.scalar_type()),
            .bytes = 2 * static_cast<int64_t>(q.nbytes()) + 2 * of_keys});
}

}  // namespace

at::Tensor attention_of_one_query(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                                  const VisibleKeys& seen, const Scores& scores) {
  check_attention_operands(q_in, k_in, v_in);
  check_scores(scores, q_in, k_in, seen);
  const at::Tensor q = with_adjacent(q_in), k = with_adjacent(k_in), v = with_adjacent(v_in);
  const OneQuery of(q, k, seen);
  count_reading(q, k, std::min(of.pieces * kPieceKeys, of.keys));
  const KernelLogScope uncounted(nullptr);
  at::Tensor out = at::empty(q.sizes(), q.options());
  const at::Tensor results = at::empty({of.num_tasks(), of.group.count, of.result()}, q.options().dtype(at::kFloat));
  const ThreadScratch scratch(of.num_tasks(), of.scratch(), results.options());
  if (q.is_meta()) return out;
  const Biases biases(scores);
  const kernels::TileScores made_of{.scale = static_cast<float>(scores.scale_of(of.group.width)),
                                    .cap = static_cast<float>(scores.soft_cap)};
  const int64_t of_task = of.group.count * of.result();
  with_rows_of(q.scalar_type(), [&]<class T>(T) {
    parallel_for(0, of.num_tasks(), 1, [&](int64_t begin, int64_t end) {
      PieceWork<T> work(of, seen, made_of, biases, scratch.own<float>());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / of.pieces;
        work.run(q, k, v, head / of.kv_heads, head % of.kv_heads, i % of.pieces, data_of<float>(results) + i * of_task);
      }
    });
    for (int64_t head = 0; head < of.batch * of.kv_heads; ++head) {
      for (int64_t g = 0; g < of.group.count; ++g) {
        kernels::merge_pieces<T>(data_of<float>(results) + head * of.pieces * of_task + g * of.result(), of.pieces,
                                 of_task, of.group.width, of.group.pitch,
                                 Rows<T>(out, head / of.kv_heads, head % of.kv_heads * of.group.count + g).data);
      }
    }
  });
  return out;
}

}  // namespace caravan
