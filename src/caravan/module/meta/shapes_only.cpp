#include "caravan/module/meta/shapes_only.h"

#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace caravan {
namespace {

/// C++ has no default device. A key above all devices, which torch itself leaves to others, is on in a scope; all
/// operators fall through it but those that allocate.
constexpr c10::DispatchKey kShapesOnlyKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

at::Tensor empty_of_shape(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout> layout, std::optional<at::Device>, std::optional<bool>,
                          std::optional<at::MemoryFormat> format) {
  const c10::impl::ExcludeDispatchKeyGuard outside(kShapesOnlyKey);
  return at::empty_symint(size, dtype, layout, at::Device(at::kMeta), std::nullopt, format);
}

at::Tensor empty_of_strides(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout> layout, std::optional<at::Device>, std::optional<bool>) {
  const c10::impl::ExcludeDispatchKeyGuard outside(kShapesOnlyKey);
  return at::empty_strided_symint(size, stride, dtype, layout, at::Device(at::kMeta), std::nullopt);
}

struct ShapesOnlyRegistration {
  torch::Library all{torch::Library::IMPL, "_", kShapesOnlyKey, __FILE__, __LINE__};
  torch::Library allocating{torch::Library::IMPL, "aten", kShapesOnlyKey, __FILE__, __LINE__};
  ShapesOnlyRegistration() {
    all.fallback(torch::CppFunction::makeFallthrough());
    allocating.impl("empty.memory_format", &empty_of_shape);
    allocating.impl("empty_strided", &empty_of_strides);
  }
};

}  // namespace

ShapesOnlyScope::ShapesOnlyScope() : before_(c10::impl::tls_is_dispatch_key_included(kShapesOnlyKey)) {
  static const auto* registration = new ShapesOnlyRegistration;  // never destroyed, as the dispatcher may be before
  static_cast<void>(registration);
  c10::impl::tls_set_dispatch_key_included(kShapesOnlyKey, true);
}

ShapesOnlyScope::~ShapesOnlyScope() { c10::impl::tls_set_dispatch_key_included(kShapesOnlyKey, before_); }

}  // namespace caravan
