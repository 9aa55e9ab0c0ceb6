#include "caravan/nn/product/product.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/parallel_for.h"
#include "caravan/base/system/cache_folder.h"
#include "caravan/base/system/processor.h"
#include "caravan/base/text.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/module/meta/product_workspace.h"
#include "caravan/module/mixed_add.h"
#include "caravan/module/path.h"
#include "caravan/nn/accumulate_grad.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/few_rows_product.h"
#include "caravan/nn/product/panel_product.h"
#include "caravan/nn/product/tile_product.h"

/// MKL's product of bf16 operands into fp32, exported by libtorch's wheels; null if it is missing.
extern "C" [[gnu::weak]] void cblas_gemm_bf16bf16f32(int order, int transpose_a, int transpose_b, int m, int n, int k,
                                                     float alpha, const void* a, int lda, const void* b, int ldb,
                                                     float beta, float* c, int ldc);

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// The choice in use. Texts and choices are never freed: readers hold no lock.
class Choices {
 public:
  using Entry = std::pair<const std::string, ProductChoice>;

  void use(const ProductChoice& choice) {
    const std::lock_guard lock(mutex_);
    in_use_ = &*entries_.emplace(to_text(choice), choice).first;
  }
  const Entry* in_use() const { return in_use_; }

 private:
  std::mutex mutex_;
  std::map<std::string, ProductChoice> entries_;
  std::atomic<const Entry*> in_use_ = nullptr;
};

Choices& choices() {
  static Choices* choices = new Choices;  // never destroyed: threads may multiply until the process ends
  return *choices;
}

ProductChoice own_choice() {
  const std::vector<ProductLibrary> available = available_product_libraries();
  const std::string processor = processor_class();
  ProductChoice choice = product_rule(processor, available);
  choice = read_tuned_products(cache_folder(), processor, choice, available).value_or(choice);
  // The class of a processor does not say what oneDNN was told to use of it.
  if (!has_bf16_tiles()) choice.attention = Bf16Arithmetic::fp32;
  const char* variable = std::getenv("CARAVAN_PRODUCTS");
  return variable == nullptr ? choice : parse_product_choice(variable, choice, available);
}

const Choices::Entry& in_use() {
  if (choices().in_use() == nullptr) choices().use(own_choice());
  return *choices().in_use();
}

/// How operands are multiplied.
enum class Way : uint8_t {
  torch,    ///< as at::linear under autograd
  fp32,     ///< by the chosen library, after 16 bits are widened
  in_bf16,  ///< bf16 in tiles, or by torch if another library is chosen
};

Way way_of(const at::Tensor& a, const at::Tensor& b, int64_t rows) {
  if (is_on_accelerator(a) || rows < kFewRows || a.numel() == 0 || b.numel() == 0) return Way::torch;
  switch (a.scalar_type()) {
    case at::kFloat:
    case at::kHalf: return Way::fp32;
    case at::kBFloat16: break;
    default: return Way::torch;
  }
  if (in_use().second.bf16 == Bf16Arithmetic::fp32) return Way::fp32;
  return has_bf16_tiles() ? Way::in_bf16 : Way::torch;
}

/// Whether tiles are what multiplies. Gradients of weights are then not rounded to bf16.
bool uses_tiles(Way way, ProductKind kind) {
  const bool is_needed = kind == ProductKind::forward && EachRowAlone::is_active() && has_fp32_tiles();
  const bool is_chosen = is_needed || in_use().second.library(kind) == ProductLibrary::tiles;
  return way != Way::torch && (is_chosen || (way == Way::in_bf16 && kind == ProductKind::dw));
}

at::Tensor widened(const at::Tensor& x) { return x.to(at::kFloat); }  // fp32 stays as it is
at::Tensor operand(Way way, const at::Tensor& x) { return way == Way::fp32 ? widened(x) : x; }

at::Tensor multiply_by_torch(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias) {
  return bias.has_value() ? at::addmm(*bias, a, b.t()) : at::mm(a, b.t());
}

/// A product of meta tensors, with the memory that torch takes for real ones.
at::Tensor multiply_dry(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias) {
  const at::Tensor result = multiply_by_torch(a, b, bias);
  if (result.numel() > 0 && a.numel() > 0) product_workspace(a, b, bias, &multiply_by_torch);
  return result;
}

/// Whether tiles of bf16, which read pairs, multiply a.
bool is_paired(const at::Tensor& a) { return a.size(1) % 2 == 0; }

/// Whether the weight is read as few_rows_product wants it. Gradients of few rows are torch's.
bool is_few_rows_forward(const at::Tensor& a, const at::Tensor& b, ProductKind kind) {
  return kind == ProductKind::forward && is_few_rows_product(a, b);
}

/// "product dx by tiles", "product forward by torch of BFloat16", "product forward by few rows in tiles of BFloat16".
std::string path_of(Way way, const at::Tensor& a, const at::Tensor& b, ProductKind kind) {
  const bool is_fp32 = a.scalar_type() == at::kFloat;
  const bool is_in_tiles = uses_tiles(way, kind) && (way == Way::fp32 || kind == ProductKind::dw || is_paired(a));
  const bool are_few = is_few_rows_forward(a, b, kind);
  const std::string_view library = are_few && are_few_rows_in_tiles(a, b, in_use().second.bf16) ? "few rows in tiles"
                                   : are_few                                                    ? "few rows"
                                   : is_in_tiles      ? name(ProductLibrary::tiles)
                                   : way == Way::fp32 ? name(in_use().second.library(kind))
                                                      : "torch";
  return fmt::format("product {} by {}{}", name(kind), library,
                     is_fp32 ? "" : fmt::format(" of {}", c10::toString(a.scalar_type())));
}

/// a b^T + bias, of `type`.
at::Tensor multiply(Way way, const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                    ProductKind kind, at::ScalarType type) {
  const auto product = [&] {
    if (is_few_rows_forward(a, b, kind)) return few_rows_product(a, b, bias, type, in_use().second.bf16);
    const at::Tensor x = operand(way, a), w = operand(way, b);
    if (uses_tiles(way, kind) && is_panel_product(x, w)) return panel_product(x, w, bias, type);
    const auto added = bias.has_value() ? std::optional(operand(way, *bias)) : std::nullopt;
    // On a processor torch leaves these to oneDNN.
    const bool is_dry_half = x.is_meta() && x.scalar_type() == at::kBFloat16 && !AcceleratorScope::is_active();
    return (is_dry_half ? multiply_dry(x, w, added) : multiply_by_torch(x, w, added)).to(type);
  };
  const at::Tensor result = product();
  if (PathLog::current() != nullptr) take_path(path_of(way, a, b, kind), result);
  return result;
}

/// Of a result that is a summand.
at::ScalarType unrounded_type(Way way, const at::Tensor& a) { return way == Way::torch ? a.scalar_type() : at::kFloat; }

void add_to(at::Tensor& sum, bool is_empty, const at::Tensor& summand) {
  if (is_empty) {
    sum.copy_(summand);
  } else {
    add_mixed(sum, summand);
  }
}

/// sum (+)= a b^T of transposed bf16 matrices in fp32 arithmetic, without widening them. Returns false if that is not
/// possible.
bool add_bf16_product(at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b) {
  const bool is_bf16 = a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16;
  const bool fits = is_bf16 && !a.is_cuda() && a.t().is_contiguous() && b.t().is_contiguous() && sum.is_contiguous() &&
                    sum.scalar_type() == at::kFloat && a.numel() > 0 && b.numel() > 0;
  const bool is_chosen = in_use().second.library(ProductKind::dw) == ProductLibrary::mkl;
  if (cblas_gemm_bf16bf16f32 == nullptr || !is_chosen || !fits) return false;
  count_product("mm", at::kBFloat16, a.size(0), b.size(0), a.size(1));
  if (sum.is_meta()) return true;
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
  const auto m = static_cast<int>(a.size(0));
  const auto n = static_cast<int>(b.size(0));
  const auto k = static_cast<int>(a.size(1));
  cblas_gemm_bf16bf16f32(kRowMajor, kTransposed, kPlain, m, n, k, 1, a.const_data_ptr(), m, b.const_data_ptr(), n,
                         is_empty ? 0 : 1, sum.mutable_data_ptr<float>(), n);
  return true;
}

/// a^T and b^T, if their product is computed in tiles and added where it is summed.
std::optional<std::pair<at::Tensor, at::Tensor>> operands_of_tiles(Way way, const at::Tensor& sum, const at::Tensor& a,
                                                                   const at::Tensor& b, ProductKind kind) {
  const bool are_columns = a.stride(0) == 1 && b.stride(0) == 1;
  if (!uses_tiles(way, kind) || (kind != ProductKind::dw && !are_columns)) return std::nullopt;
  const auto of_tiles = [&](const at::Tensor& x) {
    const at::Tensor turned = operand(way, x).t();
    return has_rows(turned) ? turned : turned.contiguous();
  };
  const at::Tensor left = of_tiles(a), right = of_tiles(b);
  if (!is_tiled_sum(sum, left, right)) return std::nullopt;
  return std::pair(left, right);
}

void add_product_to(Way way, at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b,
                    ProductKind kind) {
  if (PathLog* paths = PathLog::current()) {
    const double factor = paths->take(path_of(way, a, b, kind) + " into a sum");
    if (factor != 1) {
      const PathScope uncounted(nullptr);
      return add_to(sum, is_empty, multiply(way, a, b, std::nullopt, kind, unrounded_type(way, a)) * factor);
    }
  }
  if (way == Way::fp32 && add_bf16_product(sum, is_empty, a, b)) return;
  if (const auto operands = operands_of_tiles(way, sum, a, b, kind)) {
    return add_tiled_product(sum, is_empty, operands->first, operands->second);
  }
  const at::Tensor left = operand(way, a), right = operand(way, b);
  if (uses_tiles(way, kind) || left.scalar_type() != sum.scalar_type()) {
    return add_to(sum, is_empty, multiply(way, a, b, std::nullopt, kind, unrounded_type(way, a)));
  }
  if (is_empty) {
    at::mm_out(sum, left, right.t());
  } else {
    sum.addmm_(left, right.t());
  }
}

void add_columns_on_cpu(at::Tensor& sum, bool is_empty, const at::Tensor& dy) {
  if (is_empty) sum.zero_();
  count_kernel("sum", dy, sum);
  if (dy.is_meta()) return;
  constexpr int64_t kColumns = kernels::kSumColumns;
  with_dtype("sum", dy.scalar_type(), [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_same_v<T, double>) {
      parallel_for(0, (dy.size(1) + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
        const int64_t first = begin * kColumns;
        kernels::add_sum_of_rows(data_of<T>(dy) + first, dy.stride(0), dy.size(0),
                                 std::min(end * kColumns, dy.size(1)) - first, data_of<float>(sum) + first);
      });
    }
  });
}

/// sum (+)= the sum of the rows of dy, without rounding to bf16.
void add_columns(at::Tensor& sum, bool is_empty, const at::Tensor& dy) {
  if (!is_on_accelerator(dy) && sum.scalar_type() == at::kFloat && dy.scalar_type() != at::kDouble &&
      sum.is_contiguous()) {
    return add_columns_on_cpu(sum, is_empty, dy);
  }
  if (is_empty) {
    at::sum_out(sum, dy, at::IntArrayRef{0}, /*keepdim=*/false, sum.scalar_type());
  } else {
    sum.add_(dy.sum(at::IntArrayRef{0}, /*keepdim=*/false, sum.scalar_type()));
  }
}

/// dx += dy w, of dx that other layers have begun.
void add_dx(Way way, at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w) {
  const auto summand = [&] {
    const PathScope uncounted(nullptr);
    return multiply(way, dy, w.t(), std::nullopt, ProductKind::dx, dx.scalar_type());
  };
  if (PathLog* paths = PathLog::current()) {
    const double factor = paths->take(path_of(way, dy, w.t(), ProductKind::dx) + " into a sum");
    if (factor != 1) return void(dx.add_(summand() * factor));  // a planted fault is one of this product
  }
  const at::Tensor a = operand(way, dy), b = operand(way, w.t());
  if (uses_tiles(way, ProductKind::dx) && is_panel_product(a, b)) return add_panel_product(dx, a, b);
  dx.add_(summand());
}

/// x w^T + b of some layers, flattened inside, since autograd would pay for each view. The gradient of x is one sum.
struct LinearFunction : Function<LinearFunction> {
  /// `tensors`: weight, and bias if it has one, of each layer; `parameters`: weight, and bias or null.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& input, at::TensorList tensors,
                               std::vector<Parameter*> parameters) {
    std::vector<int64_t> shape = input.sizes().vec();
    shape.pop_back();
    const int64_t rows = c10::multiply_integers(shape);
    const at::Tensor x = input.reshape({rows, input.size(-1)});
    variable_list saved{input}, outputs;
    for (size_t i = 0, next = 0; i < parameters.size(); i += 2) {
      const at::Tensor& w = tensors[next++];
      const auto bias = parameters[i + 1] != nullptr ? std::optional(tensors[next++]) : std::nullopt;
      shape.push_back(w.size(0));
      outputs.push_back(multiply(way_of(x, w, rows), x, w, bias, ProductKind::forward, x.scalar_type()).view(shape));
      shape.pop_back();
      saved.push_back(w.detach());
    }
    will_accumulate(ctx, std::move(parameters));
    ctx->save_for_backward(std::move(saved));
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const std::vector<Parameter*>& parameters = accumulations_of(ctx);
    const auto tensors =
        std::ranges::count_if(parameters, [](const Parameter* parameter) { return parameter != nullptr; });
    variable_list gradients(static_cast<size_t>(tensors) + 2);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& input = saved[0];
    const int64_t rows = c10::multiply_integers(input.sizes().slice(0, input.dim() - 1));
    const at::Tensor x = input.detach().reshape({rows, input.size(-1)});
    at::Tensor dx;
    const bool is_sum = std::ranges::count_if(grads, &at::Tensor::defined) > 1;  // rounded once
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      const at::Tensor& w = saved[i + 1];
      const Way way = way_of(x, w, rows);
      grads[i] = grads[i].reshape({rows, w.size(0)}).contiguous();
      if (!ctx->needs_input_grad(0)) continue;
      if (dx.defined()) {
        add_dx(way, dx, grads[i], w);
      } else {
        const at::ScalarType type = is_sum ? unrounded_type(way, x) : x.scalar_type();
        dx = multiply(way, grads[i], w.t(), std::nullopt, ProductKind::dx, type);
      }
    }
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      const Way way = way_of(x, saved[i + 1], rows);
      const at::Tensor dy = std::exchange(grads[i], {});
      accumulate_grad_later(
          ctx,
          [=](at::Tensor& sum, bool is_empty) { add_product_to(way, sum, is_empty, dy.t(), x.t(), ProductKind::dw); },
          [=](at::Tensor& sum, bool is_empty) { add_columns(sum, is_empty, dy); }, i);
    }
    if (dx.defined()) gradients[0] = dx.to(x.scalar_type()).view(input.sizes());
    return gradients;
  }
};

void check_linear(const at::Tensor& x, const Parameter& weight) {
  const at::Tensor& w = weight.compute();
  if (x.dim() >= 1 && w.dim() == 2 && x.size(-1) == w.size(1) && x.scalar_type() == w.scalar_type()) return;
  throw ShapeError({"linear", weight.name(),
                    fmt::format("x [{}] {} and weight [{}] {}", join(x.sizes()), c10::toString(x.scalar_type()),
                                join(w.sizes()), c10::toString(w.scalar_type())),
                    "", "use the same width and dtype for both"});
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b, ProductKind kind, const std::optional<at::Tensor>& bias) {
  return multiply(way_of(a, b, a.size(0)), a, b, bias, kind, a.scalar_type());
}

void add_product(at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b, ProductKind kind,
                 std::optional<int64_t> tokens) {
  add_product_to(way_of(a, b, tokens.value_or(a.size(0))), sum, is_empty, a, b, kind);
}

at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias) {
  return linear(x, std::array{WeightAndBias{&weight, bias}}).front();
}

std::vector<at::Tensor> linear(const at::Tensor& x, std::span<const WeightAndBias> layers) {
  std::vector<at::Tensor> tensors;
  std::vector<Parameter*> parameters;
  for (const auto& [weight, bias] : layers) {
    check_linear(x, *weight);
    tensors.push_back(weight->compute());
    if (bias != nullptr) tensors.push_back(bias->compute());
    parameters.push_back(weight);
    parameters.push_back(bias);
  }
  return LinearFunction::apply(x, at::TensorList(tensors), std::move(parameters));
}

std::vector<ProductLibrary> available_product_libraries() {
  std::vector<ProductLibrary> libraries;
  if (has_fp32_tiles()) libraries.push_back(ProductLibrary::tiles);
  libraries.push_back(at::hasMKL() ? ProductLibrary::mkl : ProductLibrary::blas);
  return libraries;
}

std::string chosen_products() { return to_text(own_choice()); }

void use_products(const std::string& text) {
  choices().use(parse_product_choice(text, own_choice(), available_product_libraries()));
}

const std::string& products_in_use() { return in_use().first; }
ProductChoice product_choice_in_use() { return in_use().second; }

}  // namespace caravan
