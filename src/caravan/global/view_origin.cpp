#include "caravan/global/view_origin.h"

namespace caravan {

std::shared_ptr<ViewOrigin> origin_of(const at::Tensor& base, const at::Tensor& moved, const Placed* placed) {
  const PieceMeta& meta = *meta_of(base);
  auto origin = std::make_shared<ViewOrigin>();
  for (const auto& [axis, placement] : meta.placed->layout.entries()) {
    if (placement.is_partial() || placed->layout[axis].is_partial()) return origin;
  }
  origin->base.emplace(base.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr());
  origin->num_writes = meta.num_writes;
  origin->num_all_writes = meta.state->num_writes();
  origin->moved = moved;
  origin->placed = placed;
  return origin;
}

bool is_current(const PieceMeta& view) {
  if (view.origin == nullptr || !view.origin->base) return true;
  const auto kept = view.origin->base->lock();
  if (!kept) return true;
  const auto& base = static_cast<const PieceMeta&>(*kept);
  return base.num_writes == view.origin->num_writes && is_current(base);
}

bool may_write(const PieceMeta& view) {
  if (view.origin == nullptr) return true;
  if (!view.origin->base || view.origin->num_all_writes != view.state->num_writes()) return false;
  const auto kept = view.origin->base->lock();
  return !kept || may_write(static_cast<const PieceMeta&>(*kept));
}

void write_to_origin(PieceMeta& view) {
  if (view.origin == nullptr) return;
  ViewOrigin& origin = *view.origin;
  origin.num_all_writes = view.state->num_writes();
  const auto kept = origin.base ? origin.base->lock() : nullptr;
  if (!kept) return;
  auto& base = static_cast<PieceMeta&>(*kept);
  const PieceMeta moved(origin.moved, origin.placed, view.state);
  base.piece.copy_(moved_piece(moved, base.placed, "write to a view"));
  origin.num_writes = ++base.num_writes;
  write_to_origin(base);
}

}  // namespace caravan
