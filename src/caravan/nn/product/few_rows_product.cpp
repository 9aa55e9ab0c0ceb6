#include "caravan/nn/product/few_rows_product.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include <ATen/ops/empty.h>

#include "caravan/base/parallel_for.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/few_rows.h"
#include "caravan/nn/product/pack.h"
#include "caravan/nn/product/product_choice.h"

namespace caravan {
namespace {

thread_local int64_t most_rows = kFewRows - 1;
thread_local bool is_each_alone = false;

constexpr int64_t kLeastWork = 64 * 1024;  ///< elements of the weight that are worth a thread

/// a in fp32, its rows padded with zeros to whole vectors; a itself where it is so.
at::Tensor packed_rows(const at::Tensor& a) {
  const int64_t pitch = (a.size(1) + kernels::kRowStep - 1) / kernels::kRowStep * kernels::kRowStep;
  if (a.scalar_type() == at::kFloat && pitch == a.size(1) && a.is_contiguous()) return a;
  const at::Tensor rows = a.stride(1) == 1 || a.size(1) == 1 ? a : a.contiguous();
  const at::Tensor packed = at::empty({a.size(0), pitch}, a.options().dtype(at::kFloat));
  if (packed.is_meta()) return packed;
  with_dtype("product", a.scalar_type(), [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>) {
      kernels::pack_rows(data_of<T>(rows), rows.stride(0), rows.size(0), rows.size(1), data_of<float>(packed),
                         rows.size(0), pitch);
    }
  });
  return packed;
}

template <class T, class Out>
void multiply(const at::Tensor& x, const at::Tensor& w, const float* bias, const at::Tensor& y) {
  const kernels::FewRows<T, Out> of{.x = data_of<float>(x),
                                    .pitch = x.size(1),
                                    .rows = x.size(0),
                                    .w = data_of<T>(w),
                                    .stride = w.stride(0),
                                    .k = w.size(1),
                                    .bias = bias,
                                    .y = data_of<Out>(y),
                                    .y_pitch = y.size(1)};
  constexpr int64_t kColumns = kernels::kWeightRows;
  const int64_t n = w.size(0), grain = std::max<int64_t>(1, kLeastWork / (kColumns * of.k));
  parallel_for(0, (n + kColumns - 1) / kColumns, grain, [&](int64_t begin, int64_t end) {
    alignas(64) std::array<float, kernels::few_rows_scratch(EachRowAlone::kMost)> scratch;
    kernels::multiply_few_rows(of, begin * kColumns, std::min(end * kColumns, n), scratch.data());
  });
}

}  // namespace

EachRowAlone::EachRowAlone(int64_t most)
    : before_(std::exchange(most_rows, most)), was_active_(std::exchange(is_each_alone, true)) {}
EachRowAlone::~EachRowAlone() {
  most_rows = before_;
  is_each_alone = was_active_;
}
bool EachRowAlone::is_active() noexcept { return is_each_alone; }

bool is_few_rows_product(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType type = a.scalar_type();
  return a.size(0) <= most_rows && b.scalar_type() == type && !is_on_accelerator(a) && a.numel() > 0 && b.numel() > 0 &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) && (b.stride(1) == 1 || b.size(1) == 1);
}

at::Tensor few_rows_product(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias_in,
                            at::ScalarType type) {
  const int64_t m = a.size(0), n = b.size(0), k = a.size(1);
  const at::Tensor y = at::empty({m, n}, a.options().dtype(type));
  count_product(bias_in.has_value() ? "addmm" : "mm", a.scalar_type(), m, n, k);
  const KernelLogScope uncounted(nullptr);
  const at::Tensor bias = bias_in.has_value() ? bias_in->to(at::kFloat).contiguous() : at::Tensor();
  const at::Tensor x = packed_rows(a);
  if (y.is_meta()) return y;
  const float* added = bias.defined() ? data_of<float>(bias) : nullptr;
  with_dtype("product", a.scalar_type(), [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>) {
      if (type == at::kFloat) return multiply<T, float>(x, b, added, y);
      multiply<T, T>(x, b, added, y);
    }
  });
  return y;
}

}  // namespace caravan
