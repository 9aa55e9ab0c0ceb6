#include "caravan/comm/backends/shared/memory/arena.h"

#include <algorithm>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/system/memory_limit.h"
#include "caravan/comm/backends/shared/memory/pages.h"

namespace caravan::shared {
namespace {

constexpr size_t kUnit = size_t{1} << 20;

/// The first page of a shared block.
struct SharedHead {
  std::atomic<uint32_t> users;
};

}  // namespace

Arena::Arena(std::shared_ptr<Segment> segment, int world_rank)
    : segment_(std::move(segment)),
      world_rank_(world_rank),
      max_bytes_(static_cast<size_t>(usable_memory_bytes())),
      mapped_(static_cast<size_t>(segment_->num_ranks())) {
  if (segment_->arena_bytes() > 0) free_[0] = segment_->arena_bytes();
}

void Arena::throw_no_room(size_t bytes) const {
  throw ResourceError(
      {.op = "allocate_shared",
       .fact = fmt::format("no room for {} bytes in the {} bytes that rank {} of the world can share", bytes,
                           segment_->arena_bytes(), world_rank_),
       .action = "use smaller buffers, or lift the limits of address space and file size (ulimit -v, -f)"});
}

std::byte* Arena::take(size_t bytes) {
  reclaim_unused();
  const std::lock_guard lock(mutex_);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  }
  if (best == free_.end()) return nullptr;
  const size_t begin = best->first;
  const size_t rest = best->second - bytes;
  free_.erase(best);
  if (rest > 0) free_[begin + bytes] = rest;
  return segment_->arena(world_rank_) + begin;
}

void Arena::populate_or_throw(std::byte* memory, const Block& block) {
  const int error = populate(memory, block.bytes);
  if (error == 0) return;
  release(block);
  throw ResourceError({.op = "allocate",
                       .fact = fmt::format("the kernel has no memory for {} bytes", block.bytes),
                       .where = fmt::format("rank {} of the world", world_rank_),
                       .action = "use smaller buffers or fewer ranks, or raise the limit (control group, "
                                 "vm.overcommit_memory)"});
}

std::shared_ptr<void> Arena::allocate(size_t bytes) {
  if (bytes > max_bytes_) {
    throw ResourceError(
        {.op = "allocate",
         .fact = fmt::format("no room for {} bytes: this process can use {} bytes of memory", bytes, max_bytes_),
         .where = fmt::format("rank {} of the world", world_rank_),
         .action = "use smaller buffers, or more ranks that share them"});
  }
  const size_t rounded = whole_pages(std::max<size_t>(bytes, 1));
  std::byte* memory = take(rounded);
  if (memory == nullptr) return nullptr;
  const Block block{static_cast<size_t>(memory - segment_->arena(world_rank_)), rounded, false};
  populate_or_throw(memory, block);
  return {memory, [self = shared_from_this(), charge = MemoryCharge::take(static_cast<int64_t>(bytes)), block](void*) {
            charge.release();
            self->release(block);
          }};
}

std::shared_ptr<void> Arena::allocate_shared(size_t bytes, int users, uint64_t& offset) {
  if (bytes > segment_->arena_bytes()) throw_no_room(bytes);
  const size_t rounded = kPage + whole_pages(std::max<size_t>(bytes, 1));
  std::byte* memory = take(rounded);
  if (memory == nullptr) throw_no_room(bytes);
  populate_or_throw(memory, {static_cast<size_t>(memory - segment_->arena(world_rank_)), rounded, false});
  new (memory) SharedHead{static_cast<uint32_t>(users)};
  offset = segment_->offset_of(memory, rounded);
  return adopt(offset, bytes, users);
}

std::shared_ptr<void> Arena::adopt(uint64_t offset, size_t bytes, int users) {
  const size_t rounded = kPage + whole_pages(std::max<size_t>(bytes, 1));
  std::byte* memory = segment_->at(offset);
  populate(memory, rounded);  // cannot run out of memory: the owner has populated these pages
  // The pages exist once: every rank is charged its share.
  const MemoryCharge charge = MemoryCharge::take(static_cast<int64_t>(bytes) / users);
  const bool is_own = segment_->owner_of(offset) == world_rank_;
  const Block block{static_cast<size_t>(memory - segment_->arena(segment_->owner_of(offset))), rounded, true};
  return {memory + kPage, [self = shared_from_this(), charge, memory, block, is_own](void*) {
            charge.release();
            reinterpret_cast<SharedHead*>(memory)->users.fetch_sub(1, std::memory_order_acq_rel);
            if (is_own) self->release(block);
          }};
}

bool Arena::is_in_use(const Block& block) const noexcept {
  if (!block.is_shared) return false;
  const auto* head = reinterpret_cast<const SharedHead*>(segment_->arena(world_rank_) + block.begin);
  return head->users.load(std::memory_order_acquire) != 0;
}

void Arena::release(const Block& block) noexcept {
  {
    const std::lock_guard lock(mutex_);
    released_.push_back(block);
    has_released_.store(true);
  }
  if (in_flight_.load() == 0) reclaim();
}

void Arena::end_operations(uint32_t count) noexcept {
  const uint32_t left = in_flight_.load(std::memory_order_relaxed) - count;
  in_flight_.store(left, std::memory_order_release);
  if (left == 0 && has_released_.load()) reclaim();
}

/// Frees the released blocks that may be reused.
template <class Stays>
void Arena::reclaim_unless(const Stays& stays) {
  const std::lock_guard lock(mutex_);
  if (tainted_.load()) return;
  std::erase_if(released_, [&](const Block& block) {
    if (stays(block)) return false;
    put_back(block);
    return true;
  });
  has_released_.store(!released_.empty());
}

void Arena::reclaim() noexcept {
  reclaim_unless([&](const Block& block) { return is_in_use(block); });
}

/// While operations are in flight: what none of them uses. Not shared blocks: operations of other ranks may use them.
void Arena::reclaim_unused() {
  if (!has_released_.load() || std::this_thread::get_id() != thread_.load()) return;
  reclaim_unless([&](const Block& block) {
    if (block.is_shared || is_used_ == nullptr) return true;
    return is_used_(segment_->arena(world_rank_) + block.begin, block.bytes);
  });
}

void Arena::put_back(const Block& block) noexcept {
  std::byte* memory = segment_->arena(world_rank_) + block.begin;
  if (!release_pages(memory, block.bytes)) std::memset(memory, 0, block.bytes);
  segment_->rank(world_rank_).arena_epoch.fetch_add(1, std::memory_order_acq_rel);
  auto [it, inserted] = free_.emplace(block.begin, block.bytes);
  if (const auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  if (const auto before = std::prev(it); before->first + before->second == it->first) {
    before->second += it->second;
    free_.erase(it);
  }
}

void Arena::populate_of_peer(uint64_t offset, size_t bytes) {
  const int owner = segment_->owner_of(offset);
  if (owner == world_rank_) return;
  Mapped& mapped = mapped_[static_cast<size_t>(owner)];
  const uint32_t epoch = segment_->rank(owner).arena_epoch.load(std::memory_order_relaxed);
  if (mapped.epoch != epoch) mapped = {epoch, {}};
  const size_t begin = static_cast<size_t>(segment_->at(offset) - segment_->arena(owner));
  const size_t last = (begin + bytes - 1) / kUnit;
  if (mapped.units.size() <= last) mapped.units.resize(last + 1);
  for (size_t unit = begin / kUnit; unit <= last; ++unit) {
    if (mapped.units[unit]) continue;
    mapped.units[unit] = true;
    const size_t from = std::max(unit * kUnit, begin);
    const size_t to = std::min((unit + 1) * kUnit, begin + bytes);
    populate(segment_->arena(owner) + from, to - from);
  }
}

}  // namespace caravan::shared
