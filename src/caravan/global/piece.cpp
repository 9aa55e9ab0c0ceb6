#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/core/TensorBase.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "caravan/base/error.h"
#include "caravan/global/state.h"
#include "caravan/mesh/fit.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

Strides row_major(at::IntArrayRef sizes) {
  Strides order(sizes.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  return dense_strides(sizes, order);
}

c10::DispatchKey key_of(const at::Device& device) {
  if (device.is_cuda()) return c10::DispatchKey::CUDA;
  return device.is_meta() ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
}

}  // namespace

at::Tensor wrap_piece(const at::Tensor& piece, at::IntArrayRef sizes, const Placed* placed,
                      const std::shared_ptr<GlobalState>& state, at::IntArrayRef given) {
  const at::Device device = piece.device();
  if (c10::InferenceMode::is_enabled()) {
    throw UsageError({"global", "a global tensor", "is made under c10::InferenceMode", state->mesh().where(),
                      "use at::NoGradGuard instead"});
  }
  const auto keys = c10::DispatchKeySet(key_of(device)).add(kGlobalKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(keys, piece.dtype(), device);
  Strides strides(given.begin(), given.end());
  if (given.size() != sizes.size()) {
    strides = placed->is_even ? strides_like(piece.strides(), piece.sizes(), sizes) : row_major(sizes);
  }
  impl->set_sizes_and_strides(sizes, strides);
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_("use full(t)");  // short enough to allocate nothing
  impl->set_backend_meta(c10::make_intrusive<PieceMeta>(piece, placed, state));
  return at::Tensor(std::move(impl));
}

Strides strides_like(at::IntArrayRef strides, at::IntArrayRef rows, at::IntArrayRef sizes) {
  Strides order;
  for (int64_t dim = 0; dim < static_cast<int64_t>(strides.size()); ++dim) {
    if (strides[dim] != 0 || rows[dim] <= 1) order.push_back(dim);
  }
  for (size_t i = 1; i < order.size(); ++i) {  // std::stable_sort allocates
    for (size_t k = i; k > 0 && strides[order[k - 1]] < strides[order[k]]; --k) std::swap(order[k - 1], order[k]);
  }
  return dense_strides(sizes, order);
}

Strides dense_strides(at::IntArrayRef sizes, at::IntArrayRef order) {
  Strides strides(sizes.size(), 0);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return strides;
}

at::Tensor moved_piece(const PieceMeta& meta, const Placed* to, std::string_view what) {
  if (meta.placed == to) return meta.piece;
  const auto moved = [&](const at::Tensor& piece) {
    at::Tensor result = redistribute(piece, meta.placed->layout, to->layout, meta.state->mesh(), Call(what));
    // Kernels take for granted what their callers make contiguous: a slice of it must be so too.
    return piece.is_contiguous() ? result.contiguous() : result;
  };
  const at::ScalarType dtype = meta.piece.scalar_type();
  // What communicators do not take is sent as what they do.
  if (meta.piece.is_complex()) return at::view_as_complex(moved(at::view_as_real(meta.piece.resolve_conj())));
  if (dtype == at::kChar || dtype == at::kShort) return moved(meta.piece.to(at::kInt)).to(dtype);
  return moved(meta.piece);
}

std::vector<int64_t> sizes_of(const at::Tensor& piece, const Placed* placed, const GlobalState& state) {
  return global_shape(piece.sizes().vec(), placed->layout, state.mesh());
}

}  // namespace caravan
