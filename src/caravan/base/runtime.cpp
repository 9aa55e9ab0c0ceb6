#include "caravan/base/runtime.h"

#include <atomic>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/block_cache.h"
#include "caravan/base/memory/held_blocks.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/numeric/vector_math.h"
#include "caravan/base/tensor_loan.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

/// The 64 bytes before every block: what it is charged to, and its size in the cache.
struct alignas(64) Header {
  MemoryCharge charge;
  size_t rounded_bytes;
};
static_assert(sizeof(Header) == 64);

BlockCache& cache() {
  static BlockCache* cache = new BlockCache;  // never destroyed: static tensors are freed after main()
  return *cache;
}

void free_block(void* data) {
  if (data == nullptr) return;
  Header* header = static_cast<Header*>(data) - 1;
  header->charge.release();
  cache().put(header, header->rounded_bytes);
}

/// Thrown at an allocation: see bytes_of_allocation.
struct Stop {
  int64_t bytes;
};
thread_local int until_stop = 0;  ///< allocations of this thread up to the stopped one, inclusive; 0: none is stopped

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_block, c10::Device(c10::DeviceType::CPU)};
    if (until_stop > 0) {
      if (--until_stop == 0) throw Stop{static_cast<int64_t>(bytes)};
      return c10::GetDefaultCPUAllocator()->allocate(bytes);
    }
    MemoryCounter::current().check_budget(static_cast<int64_t>(bytes), MemoryKind::other);
    const size_t rounded = bytes < SIZE_MAX / 4 ? BlockCache::rounded(bytes + sizeof(Header)) : bytes;
    void* block = bytes < SIZE_MAX / 4 ? cache().take(rounded) : nullptr;
    if (block == nullptr) {
      throw ResourceError({.op = "memory",
                           .subject = "",
                           .fact = fmt::format("cannot allocate {} (this rank holds {} of tensors)",
                                               format_bytes(static_cast<int64_t>(bytes)),
                                               format_bytes(MemoryCounter::current().live_bytes())),
                           .action = "use a smaller micro_batch or model, or more ranks"});
    }
    auto* header = new (block) Header{MemoryCharge::take(static_cast<int64_t>(bytes)), rounded};
    void* data = header + 1;
    return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

/// For meta tensors: blocks that are counted, have no memory and are null, as ATen's own are.
class CountingMetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t kMost = size_t{1} << 61;
    const auto live = static_cast<size_t>(MemoryCounter::current().live_bytes());
    TORCH_CHECK(bytes < kMost && live + bytes < kMost, "overflow of the bytes of meta tensors");
    auto* block = new DryBlock(bytes, sizeof(Header));
    return {nullptr, block, &release, c10::Device(c10::DeviceType::Meta)};
  }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}
  static void release(void* context) { delete static_cast<DryBlock*>(context); }
};

std::atomic<bool> runtime_lives{false};
std::atomic<bool> runtime_counts{false};

constexpr uint8_t kPriority = 1;

c10::Allocator* default_meta_allocator() {
  static c10::Allocator* allocator = c10::GetAllocator(c10::DeviceType::Meta);
  return allocator;
}

}  // namespace

Runtime::Runtime(const RuntimeOptions& options) {
  if (options.intra_op_threads < 1) {
    throw UsageError({"runtime", "intra_op_threads",
                      fmt::format("{} threads, must be at least 1", options.intra_op_threads), "", "use 1 or more"});
  }
  if (runtime_lives.exchange(true)) {
    throw UsageError({"runtime", "", "another Session or Runtime exists in this process", "", "make one, in main()"});
  }
  settle_vector_math();
  at::set_num_threads(options.intra_op_threads);
  if (options.count_memory) {
    static CountingAllocator allocator;
    static CountingMetaAllocator meta_allocator;
    c10::SetCPUAllocator(&allocator, kPriority);
    default_meta_allocator();  // stored before it is replaced
    c10::SetAllocator(c10::DeviceType::Meta, &meta_allocator, kPriority);
    runtime_counts = true;
  }
}

Runtime::~Runtime() {
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), kPriority);
  c10::SetAllocator(c10::DeviceType::Meta, default_meta_allocator(), kPriority);
  cache().release_all();
  runtime_counts = runtime_lives = false;
}

int64_t bytes_of_allocation(int n, const std::function<void()>& call) {
  if (!runtime_counts) return 0;
  until_stop = n;
  try {
    call();
  } catch (const Stop& stop) {
    return stop.bytes;
  } catch (...) {
    until_stop = 0;
    throw;
  }
  until_stop = 0;
  return 0;
}

PageLoan loan_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.nbytes() == 0) return {};
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  if (memory.get_deleter() == &CountingMetaAllocator::release) {
    const auto offset = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
    return static_cast<const DryBlock*>(memory.get_context())->loan(offset, tensor.nbytes());
  }
  if (memory.get_deleter() != &free_block) return {};
  const auto* header = static_cast<const Header*>(memory.get_context()) - 1;
  if (!BlockCache::has_pages(header->rounded_bytes)) return {};
  return {std::shared_ptr<BlockCache>(std::shared_ptr<void>(), &cache()), tensor.data_ptr(), tensor.nbytes()};
}

}  // namespace caravan
