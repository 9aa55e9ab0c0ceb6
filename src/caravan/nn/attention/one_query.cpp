#include "caravan/nn/attention/one_query.h"

#include <algorithm>
#include <cstddef>
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

constexpr int64_t kPieceKeys = 256;             ///< of one task
constexpr int64_t kThreadElements = 32 * 1024;  ///< elements of keys that are worth a thread
static_assert(kPieceKeys % kernels::kRowBlock == 0);

/// The keys and values of one query, `block` of them after another at the same strides.
struct KeysOfQuery {
  const void* const* keys;
  const void* const* values;
  int64_t first, end;  ///< that it sees
  int64_t position;    ///< its own
  int64_t row;         ///< of the documents

  int64_t pieces() const { return std::max<int64_t>(1, rounded_up(end - first, kPieceKeys) / kPieceKeys); }
};

/// Where keys and values lie.
struct KeyLayout {
  int64_t block;                     ///< keys that are adjacent
  int64_t key_stride, value_stride;  ///< from one to the next
  int64_t key_head, value_head;      ///< from one head to the next
};

/// The sizes of a call.
struct OneQuery {
  OneQuery(const at::Tensor& q, int64_t all_kv_heads)
      : kv_heads(all_kv_heads), group{q.size(2) / kv_heads, q.size(3), rounded_up(q.size(3), kernels::kRowStep)} {}

  /// Of a head of queries and a piece: what merge_pieces takes.
  int64_t result() const { return group.pitch + kernels::kRowStep; }
  int64_t of_task() const { return group.count * result(); }
  /// Of a task: queries and scores of the group, biases, rows of a block.
  int64_t scratch() const {
    return group.count * (group.pitch + kScorePitch) + kPieceKeys + kernels::kRowBlock * group.pitch;
  }
  /// Blocks of a cache may begin and end within a piece, and scores are written in steps.
  static constexpr int64_t kScorePitch = kPieceKeys + kernels::kRowBlock;

  int64_t kv_heads;
  kernels::QueryHeads group;
};

/// The biases of keys for a query.
class Biases {
 public:
  explicit Biases(const Scores& scores) : zero_(scores.zero) {
    if (!scores.bias.defined()) return;
    of_heads_ = scores.bias.to(at::kFloat).contiguous();
    if (scores.key_positions.defined()) positions_ = scores.key_positions.to(at::kLong).contiguous();
  }
  bool defined() const { return of_heads_.defined(); }
  /// Those of keys [first, first + count) and a head, for a query at `own`.
  void copy(int64_t head, int64_t own, int64_t first, int64_t count, float* to) const {
    const float* of_head = of_heads_.const_data_ptr<float>() + head * of_heads_.size(1);
    const int64_t* positions = positions_.defined() ? positions_.const_data_ptr<int64_t>() : nullptr;
    for (int64_t key = first; key < first + count; ++key) {
      const int64_t distance = (positions != nullptr ? positions[key] : key) - own;
      to[key - first] = of_head[std::clamp<int64_t>(distance + zero_, 0, of_heads_.size(1) - 1)];
    }
  }

 private:
  int64_t zero_;
  at::Tensor of_heads_, positions_;
};

/// What all pieces of a call are computed with.
struct QueryCall {
  OneQuery of;
  KeyLayout layout;
  kernels::TileScores scores;
  Biases biases;
  at::Tensor query_documents{}, key_documents{};  ///< or undefined
};

/// The pieces of one call. Each thread has its own, with scratch.
template <class T>
class PieceWork {
 public:
  PieceWork(const QueryCall& setting, float* memory) : setting_(setting), of_(setting.of), queries_(memory) {
    scores_ = queries_ + of_.group.count * of_.group.pitch;
    of_keys_ = scores_ + of_.group.count * OneQuery::kScorePitch;
    block_ = of_keys_ + kPieceKeys;
  }

  /// The heads that share a head of keys, over a piece of the keys that the query sees. `query`: its first head of all.
  void run(const T* query, int64_t head_stride, const KeysOfQuery& seen, int64_t kv_head, int64_t piece,
           float* results) {
    const int64_t first = seen.first + piece * kPieceKeys, count = std::min<int64_t>(kPieceKeys, seen.end - first);
    const kernels::QueryHeads& group = of_.group;
    std::fill_n(results, of_.of_task(), 0.0F);
    if (count <= 0) return see_nothing(results);
    for (int64_t g = 0; g < group.count; ++g) {
      const T* head = query + (kv_head * group.count + g) * head_stride;
      kernels::pack_rows(head, group.width, 1, group.width, queries_ + g * group.pitch, 1, group.pitch);
    }
    const KeyLayout& at = setting_.layout;
    for_each_stretch(first, count, [&](int64_t block, int64_t key, int64_t num, int64_t done) {
      const T* keys = static_cast<const T*>(seen.keys[block]) + kv_head * at.key_head + key * at.key_stride;
      kernels::multiply_keys<T>(group, queries_, {keys, at.key_stride, num}, scores_ + done, OneQuery::kScorePitch,
                                block_);
    });
    weigh(seen, kv_head, first, count, results);
    for_each_stretch(first, count, [&](int64_t block, int64_t key, int64_t num, int64_t done) {
      const T* values = static_cast<const T*>(seen.values[block]) + kv_head * at.value_head + key * at.value_stride;
      kernels::add_values<T>(group, scores_ + done, OneQuery::kScorePitch, {values, at.value_stride, num}, results,
                             of_.result(), block_);
    });
  }

 private:
  /// Calls f(block, first of its keys, how many, how many before) for keys [first, first + count).
  template <class F>
  void for_each_stretch(int64_t first, int64_t count, const F& f) const {
    const int64_t size = setting_.layout.block;
    for (int64_t done = 0, num = 0; done < count; done += num) {
      const int64_t block = (first + done) / size, key = (first + done) % size;
      num = std::min(count - done, size - key);
      f(block, key, num, done);
    }
  }

  void weigh(const KeysOfQuery& query, int64_t kv_head, int64_t first, int64_t count, float* results) {
    kernels::SeenRows seen;
    if (const at::Tensor& documents = setting_.key_documents; documents.defined()) {
      seen = {documents.const_data_ptr<int32_t>() + query.row * documents.size(1) + first,
              setting_.query_documents.const_data_ptr<int32_t>()[query.row]};
    }
    for (int64_t g = 0; g < of_.group.count; ++g) {
      kernels::TileScores scores = setting_.scores;
      if (setting_.biases.defined()) {
        setting_.biases.copy(kv_head * of_.group.count + g, query.position, first, count, of_keys_);
        scores.bias = of_keys_;
      }
      float* statistics = results + g * of_.result() + of_.group.pitch;
      kernels::weigh_keys(scores_ + g * OneQuery::kScorePitch, count, scores, seen, statistics[0], statistics[1]);
    }
  }

  void see_nothing(float* results) const {
    for (int64_t g = 0; g < of_.group.count; ++g) {
      results[g * of_.result() + of_.group.pitch] = std::numeric_limits<float>::lowest();
    }
  }

  const QueryCall& setting_;
  const OneQuery& of_;
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

/// A head of keys and a piece of what a query sees.
struct PieceTask {
  int64_t query, kv_head, piece;
};

/// out = the attention of the queries of q [batch, positions, heads, width]. `results`: of all tasks.
template <class T>
void attend(const at::Tensor& q, const QueryCall& setting, const std::vector<KeysOfQuery>& seen,
            const std::vector<PieceTask>& tasks, const ThreadScratch& scratch, float* results, const at::Tensor& out) {
  const OneQuery& of = setting.of;
  const auto first_head = [](const at::Tensor& x, int64_t query) {
    return data_of<T>(x) + query / x.size(1) * x.stride(0) + query % x.size(1) * x.stride(1);
  };
  int64_t keys = 1;
  for (const KeysOfQuery& query : seen) keys += of.kv_heads * std::max<int64_t>(0, query.end - query.first);
  const auto count = static_cast<int64_t>(tasks.size());
  const int64_t grain = std::max<int64_t>(1, kThreadElements * count / (keys * of.group.width));
  parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    PieceWork<T> work(setting, scratch.own<float>());
    for (int64_t i = begin; i < end; ++i) {
      const PieceTask& task = tasks[static_cast<size_t>(i)];
      work.run(first_head(q, task.query), q.stride(2), seen[static_cast<size_t>(task.query)], task.kv_head, task.piece,
               results + i * of.of_task());
    }
  });
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].piece > 0) continue;
    for (int64_t g = 0; g < of.group.count; ++g) {
      T* to = first_head(out, tasks[i].query) + (tasks[i].kv_head * of.group.count + g) * out.stride(2);
      kernels::merge_pieces<T>(results + static_cast<int64_t>(i) * of.of_task() + g * of.result(),
                               seen[static_cast<size_t>(tasks[i].query)].pieces(), of.of_task(), of.group.width,
                               of.group.pitch, to);
    }
  }
}

/// Of `num_tasks` tasks; `seen` is empty for meta tensors.
at::Tensor attention(const at::Tensor& q, const QueryCall& setting, const std::vector<KeysOfQuery>& seen,
                     int64_t num_tasks) {
  const OneQuery& of = setting.of;
  at::Tensor out = at::empty(q.sizes(), q.options());
  const at::Tensor results = at::empty({num_tasks, of.of_task()}, q.options().dtype(at::kFloat));
  const ThreadScratch scratch(num_tasks, of.scratch(), results.options());
  if (q.is_meta()) return out;
  std::vector<PieceTask> tasks;
  for (size_t query = 0; query < seen.size(); ++query) {
    for (int64_t head = 0; head < of.kv_heads; ++head) {
      for (int64_t piece = 0; piece < seen[query].pieces(); ++piece) {
        tasks.push_back({static_cast<int64_t>(query), head, piece});
      }
    }
  }
  with_rows_of(q.scalar_type(),
               [&]<class T>(T) { attend<T>(q, setting, seen, tasks, scratch, data_of<float>(results), out); });
  return out;
}

int64_t num_tasks(const std::vector<KeysOfQuery>& seen, int64_t kv_heads) {
  int64_t tasks = 0;
  for (const KeysOfQuery& query : seen) tasks += kv_heads * query.pieces();
  return tasks;
}

kernels::TileScores tile_scores(const Scores& scores, int64_t width) {
  return {.scale = static_cast<float>(scores.scale_of(width)), .cap = static_cast<float>(scores.soft_cap)};
}

}  // namespace

at::Tensor attention_of_one_query(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                                  const VisibleKeys& seen, const Scores& scores) {
  check_attention_operands(q_in, k_in, v_in);
  check_scores(scores, q_in, k_in, seen);
  const at::Tensor q = with_adjacent(q_in), k = with_adjacent(k_in), v = with_adjacent(v_in);
  const int64_t keys = k.size(1), batch = q.size(0), kv_heads = k.size(2);
  if (q.is_meta()) {
    const int64_t most = seen.window() > 0 ? std::min(seen.window(), keys) : keys;
    const int64_t pieces = rounded_up(most, kPieceKeys) / kPieceKeys;
    count_reading(q, k, std::min(pieces * kPieceKeys, keys));
    const KernelLogScope uncounted(nullptr);
    return attention(q, {.of = {q, kv_heads}, .layout = {}, .scores = {}, .biases = Biases({})}, {},
                     batch * kv_heads * pieces);
  }
  int64_t most = 1;
  for (int64_t row = 0; row < seen.num_rows(); ++row) {
    const auto [first, end] = seen.range(row, 0, keys);
    most = std::max<int64_t>(most, end - first);
  }
  count_reading(q, k, std::min(rounded_up(most, kPieceKeys), keys));
  const KernelLogScope uncounted(nullptr);
  const auto row_of = [](const at::Tensor& x, int64_t row) -> const void* {
    return static_cast<const std::byte*>(x.const_data_ptr()) +
           row * x.stride(0) * static_cast<int64_t>(x.element_size());
  };
  std::vector<const void*> rows;
  for (int64_t row = 0; row < batch; ++row) rows.insert(rows.end(), {row_of(k, row), row_of(v, row)});
  const int64_t own = scores.query_positions.defined() ? scores.query_positions.item<int64_t>() : 0;
  std::vector<KeysOfQuery> queries;
  for (int64_t row = 0; row < batch; ++row) {
    const auto [first, end] = seen.range(row, 0, keys);
    const auto at = static_cast<size_t>(2 * row);
    queries.push_back({&rows[at], &rows[at + 1], first, end, own, row});
  }
  const QueryCall setting{.of = {q, kv_heads},
                          .layout = {keys, k.stride(1), v.stride(1), k.stride(2), v.stride(2)},
                          .scores = tile_scores(scores, q.size(3)),
                          .biases = Biases(scores),
                          .query_documents = seen.query_documents(),
                          .key_documents = seen.key_documents()};
  return attention(q, setting, queries, num_tasks(queries, kv_heads));
}

at::Tensor attention_to_cache(const at::Tensor& q_in, int64_t kv_heads, int64_t block, std::span<const CachedKeys> seen,
                              const Scores& scores) {
  const at::Tensor q = with_adjacent(q_in);
  const int64_t width = q.size(3);
  std::vector<KeysOfQuery> queries;
  for (const CachedKeys& of : seen) {
    queries.push_back({of.keys.data(), of.values.data(), of.first, of.end, of.end - 1, 0});
  }
  const QueryCall setting{.of = {q, kv_heads},
                          .layout = {block, width, width, block * width, block * width},
                          .scores = tile_scores(scores, width),
                          .biases = Biases(scores)};
  return attention(q, setting, queries, num_tasks(queries, kv_heads));
}

}  // namespace caravan
