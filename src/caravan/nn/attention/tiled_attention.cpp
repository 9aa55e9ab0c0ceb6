#include "caravan/nn/attention/tiled_attention.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/base/trace/kernel_log.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/attention/tiles/backward_tiles.h"
#include "caravan/nn/attention/tiles/forward_tiles.h"
#include "caravan/nn/experts/dispatch.h"

namespace caravan {
namespace {

using kernels::Bf16;
using tiles::Backward;
using tiles::Forward;
using tiles::Rows;
using tiles::Sizes;

/// Calls f with types: of the tensors, of the operands of products, and of results.
template <class F>
void with_types(at::ScalarType tensors, bool in_bf16, at::ScalarType results, F f) {
  const auto with_results = [&](auto type, auto operand) {
    if (results == at::kFloat) return f(type, operand, float{});
    return f(type, operand, type);
  };
  switch (tensors) {
    case at::kFloat: return f(float{}, float{}, float{});
    case at::kHalf: return with_results(kernels::Fp16{}, float{});
    case at::kBFloat16: return in_bf16 ? with_results(Bf16{}, Bf16{}) : with_results(Bf16{}, float{});
    default: refuse_dtype("attention", tensors);
  }
}

/// Runs `task(scratch, row, kv head)` for each sequence and key head, in parallel. Scratch is what `Work` needs.
template <class Work, class Task>
void for_each_head(const Sizes& size, const AttentionDropout* dropout, const at::Tensor& like, const Task& task) {
  const int64_t bytes = Work(size, dropout, nullptr).bytes();
  const auto options = like.options().dtype(at::kByte);
  if (like.is_meta()) {
    at::empty({num_chunks(size.batch * size.kv_heads), bytes + 64}, options);
    return;
  }
  at::parallel_for(0, size.batch * size.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const TileScope scope;
    const at::Tensor memory = at::empty({bytes + 64}, options);
    auto address = reinterpret_cast<uintptr_t>(memory.data_ptr());
    address = (address + 63) / 64 * 64;
    Work work(size, dropout, reinterpret_cast<void*>(address));
    for (int64_t i = begin; i < end; ++i) task(work, i / size.kv_heads, i % size.kv_heads);
  });
}

void count_attention(const char* what, const Sizes& size, const at::Tensor& q, const at::Tensor& k, int64_t products,
                     bool is_causal) {
  KernelLog* log = KernelLog::current();
  if (log == nullptr) return;
  const auto bytes = [](const at::Tensor& x) { return static_cast<int64_t>(x.nbytes()); };
  log->add({.kind = KernelWork::Kind::attention,
            .what = what,
            .dtype = dtype_name_of(q.scalar_type()),
            .batch = size.batch * size.heads,
            .m = size.queries,
            .n = size.keys,
            .k = size.width,
            .products = products,
            .is_causal = is_causal,
            .bytes = (products == 2 ? 2 : 4) * (bytes(q) + bytes(k))});
}

/// Throws ShapeError unless keys and values fit the queries.
void check_operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  for (const at::Tensor& x : {q, k, v}) check_device("attention", x);
  const bool have_dims = q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes();
  const bool have_type = k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type();
  if (have_dims && have_type && k.size(0) == q.size(0) && k.size(3) == q.size(3) && k.size(2) > 0 &&
      q.size(2) % k.size(2) == 0) {
    return;
  }
  throw ShapeError(
      {"attention", "",
       fmt::format("queries [{}] {}, keys [{}] {} and values [{}] {}", join(q.sizes()), c10::toString(q.scalar_type()),
                   join(k.sizes()), c10::toString(k.scalar_type()), join(v.sizes()), c10::toString(v.scalar_type())),
       "", "give [batch, positions, heads, width] of one dtype, with heads that divide those of queries"});
}

/// Rows of a head are contiguous.
at::Tensor with_rows(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous(); }

}  // namespace

TiledAttention tiled_attention(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                               const VisibleKeys& seen, const AttentionDropout* dropout, bool in_bf16,
                               at::ScalarType out_type) {
  check_operands(q_in, k_in, v_in);
  const Sizes size(q_in, k_in);
  const at::Tensor q = with_rows(q_in), k = with_rows(k_in), v = with_rows(v_in);
  TiledAttention result{at::empty(q.sizes(), q.options().dtype(out_type)),
                        at::empty({size.batch, size.heads, size.queries}, q.options().dtype(at::kFloat))};
  count_attention("attention", size, q, k, 2, seen.is_causal());
  const KernelLogScope uncounted(nullptr);
  with_types(q.scalar_type(), in_bf16, out_type, [&]<class T, class E, class Out>(T, E, Out) {
    for_each_head<Forward<T, E, Out>>(size, dropout, q, [&](Forward<T, E, Out>& work, int64_t row, int64_t kv_head) {
      work.set_keys(Rows<T>(k, row, kv_head), Rows<T>(v, row, kv_head));
      const int64_t group = size.heads / size.kv_heads;
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        work.run(Rows<T>(q, row, head), seen, row, head, Rows<Out>(result.out, row, head),
                 result.log_sum_exp.template mutable_data_ptr<float>() + (row * size.heads + head) * size.queries);
      }
    });
  });
  return result;
}

AttentionGradients tiled_attention_backward(const at::Tensor& dy_in, const at::Tensor& q_in, const at::Tensor& k_in,
                                            const at::Tensor& v_in, const TiledAttention& all, const VisibleKeys& seen,
                                            const AttentionDropout* dropout, bool in_bf16, at::ScalarType type) {
  check_operands(q_in, k_in, v_in);
  const Sizes size(q_in, k_in);
  const at::Tensor q = with_rows(q_in), k = with_rows(k_in), v = with_rows(v_in);
  const at::Tensor dy = with_rows(dy_in.to(q.scalar_type())), out = with_rows(all.out.to(q.scalar_type()));
  const at::Tensor log_sum_exp = all.log_sum_exp.contiguous();
  const auto options = q.options().dtype(type);
  AttentionGradients result{at::empty(q.sizes(), options), at::empty(k.sizes(), options),
                            at::empty(v.sizes(), options)};
  count_attention("attention backward", size, q, k, 5, seen.is_causal());
  const KernelLogScope uncounted(nullptr);
  with_types(q.scalar_type(), in_bf16, type, [&]<class T, class E, class Out>(T, E, Out) {
    for_each_head<Backward<T, E, Out>>(size, dropout, q, [&](Backward<T, E, Out>& work, int64_t row, int64_t kv_head) {
      work.set_keys(Rows<T>(k, row, kv_head), Rows<T>(v, row, kv_head));
      const int64_t group = size.heads / size.kv_heads;
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        work.run(Rows<T>(q, row, head), Rows<T>(dy, row, head), Rows<T>(out, row, head),
                 log_sum_exp.template const_data_ptr<float>() + (row * size.heads + head) * size.queries, seen, row,
                 head, Rows<Out>(result.q, row, head));
      }
      work.finish_keys(Rows<Out>(result.k, row, kv_head), Rows<Out>(result.v, row, kv_head));
    });
  });
  return result;
}

}  // namespace caravan
