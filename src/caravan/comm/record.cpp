#include "caravan/comm/record.h"

#include <algorithm>
#include <sys/mman.h>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory_counter.h"
#include "caravan/comm/members.h"

namespace caravan {
namespace {

class RecordCommunicator final : public Communicator {
 public:
  RecordCommunicator(int rank, int size, std::string name, bool shares_memory, Lineage lineage = {})
      : Communicator(rank, size, std::move(name), std::move(lineage)), shares_memory_(shares_memory) {}

  std::string_view backend() const noexcept override { return "record"; }
  bool touches_memory() const noexcept override { return false; }
  bool shares_memory() const noexcept override { return shares_memory_; }

  std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) override {
    const int rank = check_members(members, *this, name);
    return std::make_shared<RecordCommunicator>(rank, static_cast<int>(members.size()), std::move(name), shares_memory_,
                                                child_lineage(take_sequence(), members.front()));
  }

  /// Address space, which costs memory only where it is touched: such a world may be larger than any machine.
  std::shared_ptr<void> allocate(size_t bytes) override;

  void progress() override {}
  void abort(std::string_view) noexcept override {}

 protected:
  bool takes(const Device&, const Stream&) const noexcept override { return true; }
  /// It is complete when somebody waits for it: buffers are held for as long as those of a slow network at most.
  void start(const std::shared_ptr<Operation>&) override {}
  void finish(Operation& operation) override { operation.set_complete(); }

 private:
  bool shares_memory_;
};

std::shared_ptr<void> RecordCommunicator::allocate(size_t bytes) {
  const size_t length = std::max<size_t>(bytes, 1);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) {
    throw ResourceError({.op = "allocate",
                         .subject = name(),
                         .fact = fmt::format("no address space for a buffer of {} bytes", bytes),
                         .action = "raise ulimit -v, or record with tensors on the meta device"});
  }
  return {memory, [length, charge = MemoryCharge::take(static_cast<int64_t>(bytes))](void* block) {
            charge.release();
            munmap(block, length);
          }};
}

}  // namespace

std::shared_ptr<Communicator> make_record_world(int rank, int size, bool shares_memory) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw UsageError({.op = "make_record_world",
                      .fact = fmt::format("there is no rank {} in a world of {}", rank, size),
                      .action = "pass a size of at least 1, and a rank below it"});
  }
  return std::make_shared<RecordCommunicator>(rank, size, "world", shares_memory);
}

}  // namespace caravan
