#include "caravan/comm/record.h"

#include <algorithm>
#include <numeric>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/held_blocks.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/members.h"

namespace caravan {
namespace {

class RecordCommunicator final : public Communicator {
 public:
  RecordCommunicator(int rank, std::vector<int> world_ranks, std::string name, RecordOptions options,
                     Lineage lineage = {})
      : Communicator(rank, static_cast<int>(world_ranks.size()), std::move(name), std::move(lineage)),
        world_ranks_(std::move(world_ranks)),
        options_(std::move(options)) {}

  std::string_view backend() const noexcept override { return "record"; }
  bool touches_memory() const noexcept override { return false; }

  std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) override {
    const int rank = check_members(members, *this, name);
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back(world_ranks_[static_cast<size_t>(member)]);
    if (options_.on_split) options_.on_split(name, ranks);
    return std::make_shared<RecordCommunicator>(rank, std::move(ranks), std::move(name), options_,
                                                child_lineage(take_sequence(), members.front()));
  }

  /// Address space, which costs memory only if it is touched, so such a world may be larger than any machine.
  std::shared_ptr<void> allocate(size_t bytes) override;
  bool shares_memory() const noexcept override {
    const int of_host = options_.ranks_per_host;
    return of_host > 0 && std::ranges::all_of(
                              world_ranks_, [&](int rank) { return rank / of_host == world_ranks_.front() / of_host; });
  }

  void progress() override {}
  void abort(std::string_view) noexcept override {}

 protected:
  bool takes(const Device&, const Stream&) const noexcept override { return true; }
  /// It completes when it is waited for, so buffers are held as long as on a slow network, at most.
  void start(const std::shared_ptr<Operation>& operation) override { carry(*operation); }
  void finish(Operation& operation) override { operation.set_complete(); }

 private:
  /// Passes on the numbers of a message between ranks.
  void carry(const Operation& operation) const {
    if (options_.numbers == nullptr || operation.dtype != Dtype::int64) return;
    if (operation.verb == Verb::send && operation.in.data != nullptr) {
      const auto* first = static_cast<const int64_t*>(operation.in.data);
      (*options_.numbers)[operation.what.data()] = {first, first + operation.in.count};
    }
    const auto found = options_.numbers->find(operation.what.data());
    if (operation.verb != Verb::recv || operation.out.data == nullptr || found == options_.numbers->end()) return;
    const auto count = std::min(static_cast<size_t>(operation.out.count), found->second.size());
    std::copy_n(found->second.begin(), count, static_cast<int64_t*>(operation.out.data));
  }

  std::vector<int> world_ranks_;
  RecordOptions options_;
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
  HeldBlocksScope::hold(static_cast<int64_t>(length));
  return {memory, [length, charge = MemoryCharge::take(static_cast<int64_t>(bytes))](void* block) {
            charge.release();
            HeldBlocksScope::hold(-static_cast<int64_t>(length));
            munmap(block, length);
          }};
}

}  // namespace

std::shared_ptr<Communicator> make_record_world(int rank, int size, const RecordOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw UsageError({.op = "make_record_world",
                      .fact = fmt::format("there is no rank {} in a world of {}", rank, size),
                      .action = "pass a size of at least 1, and a rank below it"});
  }
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<RecordCommunicator>(rank, std::move(ranks), "world", options);
}

}  // namespace caravan
