#include "caravan/comm/shared/segment.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/shared/pages.h"
#include "caravan/comm/shared/region.h"

namespace caravan::shared {
namespace {

size_t control_bytes(int num_ranks) {
  return whole_pages(sizeof(WorldControl) + static_cast<size_t>(num_ranks) * sizeof(RankControl));
}
size_t slot_bytes(int num_ranks) { return whole_pages(Region::bytes(num_ranks)); }
size_t slots_bytes(int num_ranks) { return control_bytes(num_ranks) + WorldControl::kNumSlots * slot_bytes(num_ranks); }

// Address space, not memory: one rank may allocate all there is, as long as all arenas fit into what can be addressed.
size_t arena_bytes_of(int num_ranks) {
  constexpr size_t kAll = size_t{16} << 40;
#if defined(__SANITIZE_THREAD__)
  constexpr size_t kMost = size_t{1} << 30;  // its shadow is several times as large
#else
  constexpr size_t kMost = kAll;
#endif
  const size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return whole_pages(std::min({memory, kMost, kAll / static_cast<size_t>(num_ranks)}));
}

// The controls live in memory that other processes map, so they are never constructed: zeros are their initial state.
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace

size_t Segment::bytes(int num_ranks) {
  return slots_bytes(num_ranks) + static_cast<size_t>(num_ranks) * arena_bytes_of(num_ranks);
}

Segment::Segment(int descriptor, int num_ranks) : arena_bytes_(arena_bytes_of(num_ranks)), num_ranks_(num_ranks) {
  const int flags = MAP_SHARED | MAP_NORESERVE | (descriptor < 0 ? MAP_ANONYMOUS : 0);
  void* memory = mmap(nullptr, bytes(num_ranks), PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (memory == MAP_FAILED) {
    throw ResourceError({.op = "shared memory",
                         .fact = fmt::format("cannot map {} bytes of address space for {} ranks: {}", bytes(num_ranks),
                                             num_ranks, std::strerror(errno)),
                         .action = "raise the limit of address space (ulimit -v unlimited)"});
  }
  base_ = static_cast<std::byte*>(memory);
  arenas_ = base_ + slots_bytes(num_ranks);
  end_ = base_ + bytes(num_ranks);
  madvise(arenas_, static_cast<size_t>(end_ - arenas_), MADV_DONTDUMP);
}

std::shared_ptr<Segment> Segment::create_private(int num_ranks) {
  return std::shared_ptr<Segment>(new Segment(-1, num_ranks));
}

std::shared_ptr<Segment> Segment::map(int descriptor, int num_ranks) {
  return std::shared_ptr<Segment>(new Segment(descriptor, num_ranks));
}

Segment::~Segment() { munmap(base_, bytes(num_ranks_)); }

WorldControl& Segment::world() const noexcept { return *reinterpret_cast<WorldControl*>(base_); }

RankControl& Segment::rank(int world_rank) const noexcept {
  return reinterpret_cast<RankControl*>(base_ + sizeof(WorldControl))[world_rank];
}

int Segment::take_slot() noexcept {
  auto& words = world().slots_in_use;
  for (size_t i = 0; i < words.size(); ++i) {
    uint64_t word = words[i].load(std::memory_order_relaxed);
    while (word != ~uint64_t{0}) {
      const int bit = std::countr_one(word);
      if (words[i].compare_exchange_weak(word, word | uint64_t{1} << bit, std::memory_order_acq_rel)) {
        return static_cast<int>(i * 64) + bit;
      }
    }
  }
  return -1;
}

void Segment::release_slot(int index) noexcept {
  const size_t bytes = slot_bytes(num_ranks_);
  if (!give_back(slot(index), bytes)) std::memset(slot(index), 0, bytes);
  const uint64_t bit = uint64_t{1} << (index % 64);
  world().slots_in_use[static_cast<size_t>(index / 64)].fetch_and(~bit, std::memory_order_acq_rel);
}

std::byte* Segment::slot(int index) const noexcept {
  return base_ + control_bytes(num_ranks_) + static_cast<size_t>(index) * slot_bytes(num_ranks_);
}

std::byte* Segment::arena(int world_rank) const noexcept {
  return arenas_ + static_cast<size_t>(world_rank) * arena_bytes_;
}

void prefault(std::byte* data, size_t bytes) noexcept {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers do not name
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = address / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), whole_pages(address + bytes - begin), kPopulateWrite);
}

// Punches a hole into the file that the memory is.
bool give_back(std::byte* data, size_t bytes) noexcept { return madvise(data, bytes, MADV_REMOVE) == 0; }

}  // namespace caravan::shared
