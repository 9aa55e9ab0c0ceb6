#include "caravan/nn/attention/tiled_attention.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/parallel_for.h"
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
using tiles::ScoreTerms;
using tiles::Sizes;

/// Calls f with the types of tile_work.h.
template <class F>
void with_types(at::ScalarType tensors, TileOperands operands, at::ScalarType results, F f) {
  const auto with_results = [&](auto type, auto of_tensors, auto operand) {
    if (results == at::kFloat) return f(type, of_tensors, operand, float{});
    return f(type, of_tensors, operand, type);
  };
  switch (tensors) {
    case at::kFloat: return f(float{}, float{}, float{}, float{});
    case at::kHalf: return with_results(kernels::Fp16{}, float{}, float{});
    case at::kBFloat16:
      switch (operands) {
        case TileOperands::fp32: return with_results(Bf16{}, float{}, float{});
        case TileOperands::exact_bf16: return with_results(Bf16{}, Bf16{}, float{});
        case TileOperands::rounded_bf16: return with_results(Bf16{}, Bf16{}, Bf16{});
      }
      break;
    default: break;
  }
  refuse_dtype("attention", tensors);
}

/// Rows of a head are contiguous.
at::Tensor with_rows(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous(); }

struct Operands {
  Operands(const at::Tensor& q_, const at::Tensor& k_, const at::Tensor& v_, const Scores& scores)
      : size((check_attention_operands(q_, k_, v_), Sizes(q_, k_, scores.scale_of(q_.size(3))))),
        terms(scores, size),
        q(with_rows(q_)),
        k(with_rows(k_)),
        v(with_rows(v_)) {}
  Sizes size;
  ScoreTerms terms;
  at::Tensor q, k, v;
};

/// Calls run(work, row, head) for each head of queries, after `work` was told its keys, and finish(work, row, kv head)
/// for each head of keys after those that share it. In parallel; each thread has a `work` with scratch.
template <class Work, class T, class Run, class Finish>
void for_each_head(const Operands& x, const AttentionDropout* dropout, const Run& run, const Finish& finish) {
  const Sizes& size = x.size;
  const int64_t bytes = Work(size, x.terms, dropout, nullptr).bytes();
  const ThreadScratch scratch(size.batch * size.kv_heads, bytes, x.q.options().dtype(at::kByte));
  if (x.q.is_meta()) return;
  parallel_for(0, size.batch * size.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const TileScope scope;
    Work work(size, x.terms, dropout, scratch.own<std::byte>());
    const int64_t group = size.heads / size.kv_heads;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / size.kv_heads, kv_head = i % size.kv_heads;
      work.set_keys(Rows<T>(x.k, row, kv_head), Rows<T>(x.v, row, kv_head));
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) run(work, row, head);
      finish(work, row, kv_head);
    }
  });
}

void count_attention(const char* what, const Sizes& size, const at::Tensor& q, const at::Tensor& k, int64_t products,
                     const VisibleKeys& seen) {
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
            .is_causal = seen.is_causal(),
            .window = seen.window(),
            .bytes = (products == 2 ? 2 : 4) * (bytes(q) + bytes(k))});
}

}  // namespace

void check_attention_operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
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

TiledAttention tiled_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                               const Scores& scores, const AttentionDropout* dropout, TileOperands operands,
                               at::ScalarType out_type) {
  const Operands x(q, k, v, scores);
  check_scores(scores, q, k, seen);
  const Sizes& size = x.size;
  TiledAttention result{at::empty(q.sizes(), q.options().dtype(out_type)),
                        at::empty({size.batch, size.heads, size.queries}, q.options().dtype(at::kFloat))};
  count_attention("attention", size, q, k, 2, seen);
  const KernelLogScope uncounted(nullptr);
  with_types(q.scalar_type(), operands, out_type, [&]<class T, class S, class E, class Out>(T, S, E, Out) {
    using Work = Forward<T, S, E, Out>;
    const auto run = [&](Work& work, int64_t row, int64_t head) {
      work.run(Rows<T>(x.q, row, head), seen, row, head, Rows<Out>(result.out, row, head),
               data_of<float>(result.log_sum_exp) + (row * size.heads + head) * size.queries);
    };
    for_each_head<Work, T>(x, dropout, run, [](Work&, int64_t, int64_t) {});
  });
  return result;
}

AttentionGradients tiled_attention_backward(const at::Tensor& dy_in, const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v, const TiledAttention& all, const VisibleKeys& seen,
                                            const Scores& scores, const AttentionDropout* dropout,
                                            TileOperands operands, at::ScalarType type) {
  Operands x(q, k, v, scores);
  if (scores.bias.defined() && scores.bias.requires_grad()) x.terms.make_gradients(x.size.batch);
  const Sizes& size = x.size;
  const at::Tensor dy = with_rows(dy_in.to(q.scalar_type())), out = with_rows(all.out.to(q.scalar_type()));
  const at::Tensor log_sum_exp = all.log_sum_exp.contiguous();
  const auto options = q.options().dtype(type);
  AttentionGradients result{at::empty(q.sizes(), options), at::empty(k.sizes(), options), at::empty(v.sizes(), options),
                            at::Tensor()};
  count_attention("attention backward", size, q, k, 5, seen);
  const KernelLogScope uncounted(nullptr);
  with_types(q.scalar_type(), operands, type, [&]<class T, class S, class E, class Out>(T, S, E, Out) {
    using Work = Backward<T, S, E, Out>;
    const auto run = [&](Work& work, int64_t row, int64_t head) {
      work.run(Rows<T>(x.q, row, head), Rows<T>(dy, row, head), Rows<T>(out, row, head),
               data_of<float>(log_sum_exp) + (row * size.heads + head) * size.queries, seen, row, head,
               Rows<Out>(result.q, row, head));
    };
    for_each_head<Work, T>(x, dropout, run, [&](const Work& work, int64_t row, int64_t kv_head) {
      work.finish_keys(Rows<Out>(result.k, row, kv_head), Rows<Out>(result.v, row, kv_head));
    });
  });
  if (x.terms.gradients.defined()) result.bias = x.terms.sum_of_gradients();
  return result;
}

}  // namespace caravan
