#include "caravan/engine/flat/flat_memory.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

void FlatMemory::add(int64_t offset, at::Tensor memory) {
  if (memory.numel() > 0) pieces_.push_back({offset, std::move(memory)});
}

const FlatMemory::Piece* FlatMemory::find(int64_t offset) const noexcept {
  const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                      [](int64_t value, const Piece& piece) { return value < piece.offset; });
  if (after == pieces_.begin()) return nullptr;
  const Piece& piece = *(after - 1);
  return offset < piece.offset + piece.memory.numel() ? &piece : nullptr;
}

at::Tensor FlatMemory::narrow(int64_t offset, int64_t count) const {
  if (count == 0) return at::empty({0}, options_);
  const Piece* piece = find(offset);
  if (piece == nullptr || offset + count > piece->offset + piece->memory.numel()) {
    throw InternalError({"flat_memory", "narrow",
                         fmt::format("elements {} to {} are not in one piece", offset, offset + count), "", ""});
  }
  return piece->memory.narrow(0, offset - piece->offset, count);
}

at::Tensor FlatMemory::to_tensor() const {
  std::vector<at::Tensor> all;
  for (const Piece& piece : pieces_) all.push_back(piece.memory);
  return all.empty() ? at::empty({0}, options_) : at::cat(all);
}

}  // namespace caravan
