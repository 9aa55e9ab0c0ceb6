#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "caravan/global/state.h"

namespace caravan {

/// What a view of a moved piece was taken of: the view has memory of its own, so writes to it are carried back. Keeps
/// nothing alive but that memory.
struct ViewOrigin {
  /// PieceMeta of the tensor. Nothing: there is no way back, as from a sum.
  std::optional<c10::weak_intrusive_ptr<c10::BackendMeta>> base{};
  int64_t num_writes = 0;          ///< to the base when the view was taken
  int64_t num_all_writes = 0;      ///< to all tensors of the context: aliases of the base are some
  at::Tensor moved{};              ///< the piece of the base that was moved, of which the view is one
  const Placed* placed = nullptr;  ///< where to
};

std::shared_ptr<ViewOrigin> origin_of(const at::Tensor& base, const at::Tensor& moved, const Placed* placed);
/// Whether the tensor that this is a view of is as it was when the view was taken, as far as is known.
bool is_current(const PieceMeta& view);
/// Whether what is written to this tensor can be carried back: nothing else was written since the view was taken.
bool may_write(const PieceMeta& view);
/// Carries a write back to where the view was taken.
void write_to_origin(PieceMeta& view);

}  // namespace caravan
