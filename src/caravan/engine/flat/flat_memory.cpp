#include "caravan/engine/flat/flat_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/trace.h"

namespace caravan {

void FlatMemory::add(int64_t offset, at::Tensor memory) {
  if (memory.numel() == 0) return;
  const int64_t count = memory.numel();
  pieces_.push_back({.offset = offset, .memory = std::move(memory), .count = count});
}

void FlatMemory::add(int64_t offset, int64_t count, Tier tier, const std::shared_ptr<Tiers>& tiers) {
  if (count == 0) return;
  const auto bytes = count * static_cast<int64_t>(c10::elementSize(scalar_type()));
  auto block = std::make_shared<TierBlock>(tiers->block(tier, bytes));
  at::Tensor memory = tier == Tier::host ? block->memory().view(scalar_type()) : at::Tensor();
  pieces_.push_back({.offset = offset, .memory = std::move(memory), .block = std::move(block), .count = count});
  tier_ = tier;
  tiers_ = tiers;
}

const FlatMemory::Piece* FlatMemory::find(int64_t offset) const noexcept {
  const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                      [](int64_t value, const Piece& piece) { return value < piece.offset; });
  if (after == pieces_.begin()) return nullptr;
  const Piece& piece = *(after - 1);
  return offset < piece.offset + piece.count ? &piece : nullptr;
}

void FlatMemory::wait(const Piece& piece) {
  if (piece.use.done()) return piece.use.wait();
  const TraceSpan span(TraceLog::kWait, "sweep");
  piece.use.wait();
}

void FlatMemory::wait(int64_t offset) const {
  if (const Piece* piece = find(offset)) wait(*piece);
}

void FlatMemory::set_use(int64_t offset, const Event& use) {
  if (const Piece* piece = find(offset)) pieces_[static_cast<size_t>(piece - pieces_.data())].use = use;
}

const std::vector<FlatMemory::Piece>& FlatMemory::pieces() const {
  for (const Piece& piece : pieces_) wait(piece);
  return pieces_;
}

const FlatMemory::Piece& FlatMemory::piece(int64_t offset, int64_t count) const {
  const Piece& piece = piece_in_use(offset, count);
  wait(piece);
  return piece;
}

const FlatMemory::Piece& FlatMemory::piece_in_use(int64_t offset, int64_t count) const {
  const Piece* piece = find(offset);
  if (piece != nullptr && offset + count <= piece->offset + piece->count) return *piece;
  throw InternalError(
      {"flat_memory", "narrow", fmt::format("elements {} to {} are not in one piece", offset, offset + count), "", ""});
}

at::Tensor FlatMemory::narrow(int64_t offset, int64_t count) const {
  if (count == 0) return at::empty({0}, options_);
  const Piece& from = piece(offset, count);
  if (!from.memory.defined()) {
    throw InternalError({"flat_memory", "narrow", fmt::format("element {} rests on disk", offset), "", ""});
  }
  return from.memory.narrow(0, offset - from.offset, count);
}

at::Tensor FlatMemory::read(int64_t offset, int64_t count) const {
  if (!is_on_disk() || count == 0) return narrow(offset, count);
  at::Tensor elements = at::empty({count}, options_);
  move(piece(offset, count), offset, elements, /*writes=*/false);
  return elements;
}

void FlatMemory::write(int64_t offset, const at::Tensor& from) const {
  if (from.numel() == 0) return;
  if (is_on_disk()) return move(piece(offset, from.numel()), offset, from.contiguous().view({-1}), /*writes=*/true);
  narrow(offset, from.numel()).copy_(from.view({-1}));
}

/// Moves elements `first`, .. of a piece on disk, page by page: a page that is written in part is read before.
void FlatMemory::move(const Piece& piece, int64_t first, at::Tensor elements, bool writes) const {
  TierBlock& block = *piece.block;
  const auto size = static_cast<int64_t>(c10::elementSize(scalar_type()));
  const int64_t begin = (first - piece.offset) * size;
  const int64_t end = begin + elements.numel() * size;
  constexpr int64_t kPage = DiskStore::kPage;
  const int64_t pages = (end + kPage - 1) / kPage - begin / kPage;
  tiers_->count({.to_disk = writes ? pages * kPage : 0, .from_disk = pages * kPage});
  if (tiers_->is_meta()) return;
  block.last_store().wait();
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(DiskStore::kSector, kPage), &std::free);
  auto* at = static_cast<std::byte*>(page.get());
  auto* memory = static_cast<std::byte*>(elements.data_ptr());
  DiskStore& disk = tiers_->disk();
  for (int64_t offset = begin / kPage * kPage; offset < end; offset += kPage) {
    const int64_t bytes = std::min(kPage, block.bytes() - offset);
    const int64_t from = std::max(begin, offset);
    const auto count = static_cast<size_t>(std::min(end, offset + bytes) - from);
    if (!writes || static_cast<int64_t>(count) < bytes) disk.read(block.disk_block(), offset, at, bytes).wait();
    std::byte* own = memory + (from - begin);
    writes ? std::memcpy(at + (from - offset), own, count) : std::memcpy(own, at + (from - offset), count);
    if (writes) disk.write(block.disk_block(), offset, at, bytes).wait();
  }
}

int64_t FlatMemory::version() const {
  int64_t version = 0;
  for (const Piece& piece : pieces_) {
    if (piece.memory.defined()) version += static_cast<int64_t>(piece.memory._version());
  }
  return version;
}

void FlatMemory::bump_version() const {
  for (const Piece& piece : pieces_) {
    if (piece.memory.defined()) piece.memory.unsafeGetTensorImpl()->bump_version();
  }
}

at::Tensor FlatMemory::to_tensor() const {
  std::vector<at::Tensor> all;
  for (const Piece& piece : pieces_) all.push_back(read(piece.offset, piece.count));
  return all.empty() ? at::empty({0}, options_) : at::cat(all);
}

at::Tensor without_memory(const std::vector<int64_t>& shape, at::TensorOptions options) {
  return at::for_blob(nullptr, shape).options(options).target_device(options.device()).make_tensor();
}

at::Tensor without_memory(const std::vector<int64_t>& shape, at::TensorOptions options, const std::string& reason) {
  at::Tensor none = without_memory(shape, options);
  if (!none.is_meta()) take_away(none, reason);
  return none;
}

void take_away(const at::Tensor& tensor, const std::string& reason) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, at::kCPU));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(reason);
}

}  // namespace caravan
