#include "caravan/nn/product.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "caravan/base/cache_folder.h"
#include "caravan/base/processor.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// torch's entry to oneDNN's dense product. It is not among torch's C++ functions, only behind its dispatcher.
using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                             c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
using Entry = c10::TypedOperatorHandle<Signature>;

const std::optional<Entry>& onednn() {
  static const std::optional<Entry> entry = []() -> std::optional<Entry> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!schema.has_value() || !schema->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
    return schema->typed<Signature>();
  }();
  return entry;
}

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
  const char* variable = std::getenv("CARAVAN_PRODUCTS");
  return variable == nullptr ? choice : parse_product_choice(variable, choice, available);
}

const Choices::Entry& in_use() {
  if (choices().in_use() == nullptr) choices().use(own_choice());
  return *choices().in_use();
}

constexpr int64_t kFewRows = 16;  ///< below, preparing a call of oneDNN or widening the weight costs more than it wins

/// Whether the choice decides about a product of this left operand.
bool is_chosen(const at::Tensor& a, int64_t rows) {
  if (!a.is_cpu() || rows < kFewRows || a.numel() == 0) return false;
  return a.scalar_type() == at::kFloat ||
         (a.scalar_type() == at::kBFloat16 && in_use().second.bf16 == Bf16Arithmetic::fp32);
}

at::Tensor widened(const at::Tensor& x) { return x.to(at::kFloat); }  // fp32 stays as it is

/// a b^T + bias of fp32 operands.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias, ProductKind kind) {
  if (in_use().second.library(kind) == ProductLibrary::onednn) {
    at::internal::lazy_init_num_threads();  // else oneDNN, called first on a new thread, would take all cores
    return onednn()->call(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
  }
  return bias.has_value() ? at::addmm(*bias, a, b.t()) : at::mm(a, b.t());
}

struct Linear2d : Function<Linear2d> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    const auto wide_bias = bias.has_value() ? std::optional(widened(*bias)) : std::nullopt;
    return multiply(widened(x), widened(weight), wide_bias, ProductKind::forward).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::ScalarType type = saved[0].scalar_type();
    const at::Tensor dy = widened(grads[0].contiguous());
    variable_list gradients(3);
    if (ctx->needs_input_grad(0)) {
      gradients[0] = multiply(dy, widened(saved[1]).t(), std::nullopt, ProductKind::dx).to(type);
    }
    if (ctx->needs_input_grad(1)) {
      gradients[1] = multiply(dy.t(), widened(saved[0]).t(), std::nullopt, ProductKind::dw).to(type);
    }
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) gradients[2] = dy.sum(0).to(type);
    return gradients;
  }
};

}  // namespace

at::Tensor unrounded_product(const at::Tensor& a, const at::Tensor& b, ProductKind kind) {
  if (!is_chosen(a, a.size(0)) || b.numel() == 0) return at::mm(a, b.t());
  return multiply(widened(a), widened(b), std::nullopt, kind);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, ProductKind kind) {
  return unrounded_product(a, b, kind).to(a.scalar_type());
}

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t width = weight.size(1);
  const bool fits =
      x.dim() >= 2 && x.size(-1) == width && weight.scalar_type() == x.scalar_type() && weight.numel() > 0 && width > 0;
  if (!fits || !is_chosen(x, x.numel() / width)) return at::linear(x, weight, bias);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const std::optional<at::Tensor> given = bias.defined() ? std::optional(bias) : std::nullopt;
  return Linear2d::apply(x.reshape({-1, width}), weight, given).view(shape);
}

std::vector<ProductLibrary> available_product_libraries() {
  std::vector<ProductLibrary> libraries;
  if (onednn().has_value()) libraries.push_back(ProductLibrary::onednn);
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
