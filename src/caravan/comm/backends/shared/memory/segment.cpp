#include "caravan/comm/backends/shared/memory/segment.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/blocked_signal.h"
#include "caravan/base/system/memory_limit.h"
#include "caravan/base/text.h"
#include "caravan/comm/backends/shared/memory/pages.h"
#include "caravan/comm/backends/shared/memory/region.h"

namespace caravan::shared {
namespace {

constexpr size_t kMinSlots = 16;
constexpr size_t kMinArenaBytes = size_t{1} << 20;
// Address space of one world. A process has 128 TiB of addresses and may create a world for each of its process groups.
constexpr size_t kMaxBytes = size_t{4} << 40;
// A world takes this part of the address space that a limit leaves: threads, libraries and other worlds need some, too.
constexpr size_t kShareOfLimit = 4;

// Other processes map the controls, so they are never constructed: zeros are their initial state.
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

size_t max_arena_bytes() {
#if defined(__SANITIZE_THREAD__)
  return size_t{1} << 30;  // its shadow is several times as large
#else
  return static_cast<size_t>(usable_memory_bytes());
#endif
}

std::string action_for(int error) {
  switch (error) {
    case EFBIG: return "raise the limit of file size (ulimit -f)";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    case ENOMEM:
      return "raise the limit of address space (ulimit -v); with vm.overcommit_memory=2, vm.overcommit_ratio";
    default: return "use the back-end gloo";
  }
}

[[noreturn]] void throw_refused(const SegmentLayout& layout, int error) {
  throw ResourceError(
      {.op = "shared memory",
       .fact = fmt::format("cannot reserve {} of address space for {} ranks: {}",
                           format_bytes(static_cast<int64_t>(layout.bytes())), layout.num_ranks, system_error(error)),
       .action = action_for(error)});
}

/// Null and errno if the kernel refuses.
std::byte* map_memory(int descriptor, const SegmentLayout& layout) {
  const int flags = MAP_SHARED | MAP_NORESERVE | (descriptor < 0 ? MAP_ANONYMOUS : 0);
  void* memory = mmap(nullptr, layout.bytes(), PROT_READ | PROT_WRITE, flags, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

/// -1 and errno if the kernel refuses.
Fd create_memory_file(size_t bytes) {
  const BlockedSignal no_file_size_signal(SIGXFSZ);  // which a size above ulimit -f raises
  Fd fd(memfd_create("caravan", MFD_CLOEXEC));
  if (fd && ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    fd = Fd();
    errno = error;
  }
  return fd;
}

/// The result of `attempt(layout)`, which is null and sets errno if the kernel refuses. Each attempt is for a quarter
/// of the previous one, so that the first success leaves address space for others.
template <class Attempt>
auto largest_possible(int num_ranks, size_t max_bytes, const Attempt& attempt) {
  SegmentLayout layout = SegmentLayout::of(num_ranks, max_bytes);
  while (true) {
    auto result = attempt(layout);
    if (result != nullptr) return result;
    const int error = errno;
    const SegmentLayout smaller = SegmentLayout::of(num_ranks, layout.bytes() / 4);
    if (smaller == layout || (error != ENOMEM && error != EFBIG)) throw_refused(layout, error);
    layout = smaller;
  }
}

}  // namespace

SegmentLayout SegmentLayout::of(int num_ranks, size_t max_bytes) {
  SegmentLayout layout{.num_ranks = num_ranks};
  if (num_ranks == 1) return layout;
  max_bytes = std::min(max_bytes, kMaxBytes);
  layout.num_slots = std::clamp(max_bytes / 4 / layout.slot_bytes(), kMinSlots, WorldControl::kMaxSlots);
  const size_t rest = max_bytes - std::min(max_bytes, layout.arenas_begin());
  const size_t each = std::min(max_arena_bytes(), rest / static_cast<size_t>(num_ranks));
  layout.arena_bytes = std::max(each, kMinArenaBytes) / kPage * kPage;
  return layout;
}

size_t SegmentLayout::slots_begin() const noexcept {
  return whole_pages(sizeof(WorldControl) + static_cast<size_t>(num_ranks) * sizeof(RankControl));
}

size_t SegmentLayout::slot_bytes() const noexcept { return whole_pages(Region::bytes(num_ranks)); }

size_t reservable_bytes() {
  if (address_space_limit() < 0) return std::numeric_limits<size_t>::max();
  const auto limit = static_cast<size_t>(address_space_limit());
  size_t used_pages = 0;
  std::ifstream("/proc/self/statm") >> used_pages;
  return (limit - std::min(limit, used_pages * kPage)) / kShareOfLimit;
}

Segment::Segment(std::byte* base, const SegmentLayout& layout) noexcept
    : base_(base), arenas_(base + layout.arenas_begin()), end_(base + layout.bytes()), layout_(layout) {
  if (end_ > arenas_) madvise(arenas_, static_cast<size_t>(end_ - arenas_), MADV_DONTDUMP);
}

std::shared_ptr<Segment> Segment::create_private(int num_ranks) {
  return largest_possible(num_ranks, reservable_bytes(), [](const SegmentLayout& layout) {
    std::byte* const memory = map_memory(-1, layout);
    return std::shared_ptr<Segment>(memory == nullptr ? nullptr : new Segment(memory, layout));
  });
}

std::pair<Fd, std::shared_ptr<Segment>> Segment::create_shared(int num_ranks, size_t max_bytes) {
  Fd descriptor;
  auto segment = largest_possible(num_ranks, max_bytes, [&](const SegmentLayout& layout) {
    descriptor = create_memory_file(layout.bytes());
    std::byte* const memory = descriptor ? map_memory(descriptor.get(), layout) : nullptr;
    return std::shared_ptr<Segment>(memory == nullptr ? nullptr : new Segment(memory, layout));
  });
  return {std::move(descriptor), std::move(segment)};
}

std::shared_ptr<Segment> Segment::map(int descriptor, const SegmentLayout& layout) {
  std::byte* const memory = map_memory(descriptor, layout);
  if (memory == nullptr) throw_refused(layout, errno);
  return std::shared_ptr<Segment>(new Segment(memory, layout));
}

Segment::~Segment() { munmap(base_, layout_.bytes()); }

WorldControl& Segment::world() const noexcept { return *reinterpret_cast<WorldControl*>(base_); }

RankControl& Segment::rank(int world_rank) const noexcept {
  return reinterpret_cast<RankControl*>(base_ + sizeof(WorldControl))[world_rank];
}

int Segment::take_slot() noexcept {
  auto& words = world().slots_in_use;
  for (size_t i = 0; i * 64 < layout_.num_slots; ++i) {
    uint64_t word = words[i].load(std::memory_order_relaxed);
    while (word != ~uint64_t{0}) {
      const int bit = std::countr_one(word);
      if (i * 64 + static_cast<size_t>(bit) >= layout_.num_slots) return -1;
      if (words[i].compare_exchange_weak(word, word | uint64_t{1} << bit, std::memory_order_acq_rel)) {
        return static_cast<int>(i * 64) + bit;
      }
    }
  }
  return -1;
}

void Segment::release_slot(int index) noexcept {
  const size_t bytes = layout_.slot_bytes();
  if (!release_pages(slot(index), bytes)) std::memset(slot(index), 0, bytes);
  const uint64_t bit = uint64_t{1} << (index % 64);
  world().slots_in_use[static_cast<size_t>(index / 64)].fetch_and(~bit, std::memory_order_acq_rel);
}

std::byte* Segment::slot(int index) const noexcept {
  return base_ + layout_.slots_begin() + static_cast<size_t>(index) * layout_.slot_bytes();
}

std::byte* Segment::arena(int world_rank) const noexcept {
  return arenas_ + static_cast<size_t>(world_rank) * layout_.arena_bytes;
}

int populate(std::byte* data, size_t bytes) noexcept {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers do not name
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = address / kPage * kPage;
  while (madvise(reinterpret_cast<void*>(begin), whole_pages(address + bytes - begin), kPopulateWrite) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    return errno == ENOMEM || errno == EFAULT ? errno : 0;  // EFAULT: a SIGBUS at the first use
  }
  return 0;
}

// Punches a hole into the file behind the memory.
bool release_pages(std::byte* data, size_t bytes) noexcept { return madvise(data, bytes, MADV_REMOVE) == 0; }

}  // namespace caravan::shared
