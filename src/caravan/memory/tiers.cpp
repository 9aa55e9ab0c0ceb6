#include "caravan/memory/tiers.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <sys/mman.h>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/held_blocks.h"
#include "caravan/base/text.h"
#include "caravan/base/trace/trace.h"

namespace caravan {
namespace {

/// Runs jobs at once, on the rank's thread: where host memory is protected between them.
class InlineStream final : public CopyStream {
 public:
  InlineStream(std::unique_ptr<CopyStream> copies) : copies_(std::move(copies)) {}
  Event run(std::function<void()> job) override {
    std::promise<void> promise;
    try {
      job();
      promise.set_value();
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
    return Event(promise.get_future().share());
  }
  void copy(void* to, const void* from, size_t bytes) override { copies_->copy(to, from, bytes); }

 private:
  std::unique_ptr<CopyStream> copies_;
};

}  // namespace

/// The pages of the host tier.
struct Tiers::Pages {
  bool protects = false;
  std::mutex mutex;
  int num_users = 0;
  int num_guards = 0;
  std::vector<std::pair<void*, size_t>> all;

  void protect(int rights) const {
    for (const auto& [memory, bytes] : all) mprotect(memory, bytes, rights);
  }
  void enter() {
    if (!protects) return;
    const std::lock_guard lock(mutex);
    if (num_users++ == 0 && num_guards > 0) protect(PROT_READ | PROT_WRITE);
  }
  void leave() {
    if (!protects) return;
    const std::lock_guard lock(mutex);
    if (--num_users == 0 && num_guards > 0) protect(PROT_NONE);
  }
  void guard() {
    if (!protects) return;
    const std::lock_guard lock(mutex);
    if (num_guards++ == 0 && num_users == 0) protect(PROT_NONE);
  }
  void unguard() {
    if (!protects) return;
    const std::lock_guard lock(mutex);
    if (--num_guards == 0 && num_users == 0) protect(PROT_READ | PROT_WRITE);
  }
  void* add(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw ResourceError({.op = "host tier",
                           .subject = "allocate",
                           .fact = fmt::format("the host has no {} left", format_bytes(static_cast<int64_t>(bytes))),
                           .action = "offload to disk, or use more hosts"});
    }
    const std::lock_guard lock(mutex);
    all.emplace_back(memory, bytes);
    if (protects && num_guards > 0 && num_users == 0) mprotect(memory, bytes, PROT_NONE);
    return memory;
  }
  void remove(void* memory, size_t bytes) {
    const std::lock_guard lock(mutex);
    std::erase(all, std::pair(memory, bytes));
    munmap(memory, bytes);
  }
};

/// Host memory through which a stream moves the parts of blocks on disk: one part is copied while the other is read or
/// written.
struct Tiers::Slots {
  static constexpr int kNum = 2;
  static constexpr int64_t kMost = 4 * DiskStore::kPage;
  int64_t bytes = 0;  ///< of each
  at::Tensor memory;
  std::byte* at(size_t i) const { return static_cast<std::byte*>(memory.data_ptr()) + static_cast<int64_t>(i) * bytes; }
};

/// The first error of a copy.
struct Tiers::Failure {
  std::mutex mutex;
  std::exception_ptr error;
};

Tiers::Tiers(Options options)
    : options_(std::move(options)),
      counter_(MemoryCounter::current()),
      device_(make_cpu_device({.link_bytes_per_second = options_.link_bytes_per_second})),
      pages_(std::make_shared<Pages>()),
      slots_in_(std::make_shared<Slots>()),
      slots_out_(std::make_shared<Slots>()),
      failure_(std::make_shared<Failure>()) {
  pages_->protects = options_.protects_host;
  if (options_.is_meta) return;
  in_ = device_->make_stream();
  out_ = device_->make_stream();
  if (!options_.protects_host) return;
  in_ = std::make_unique<InlineStream>(std::move(in_));
  out_ = std::make_unique<InlineStream>(std::move(out_));
}

/// What is in flight uses the buffers: also after an error.
Tiers::~Tiers() {
  host_.reset();
  in_.reset();
  out_.reset();
  disk_.reset();
}

DiskStore& Tiers::disk() {
  if (disk_ != nullptr) return *disk_;
  if (options_.disk_dirs.empty()) {
    throw UsageError({"offload", "disk_dirs", "no folder for what is offloaded to disk", "",
                      "set offload.disk_dirs to folders on local disks"});
  }
  disk_ = std::make_unique<DiskStore>(DiskStore::Options{
      .folders = options_.disk_dirs, .owner = options_.owner, .expected_bytes = options_.expected_disk_bytes});
  return *disk_;
}

at::Tensor Tiers::host_tensor(int64_t count, at::ScalarType type) {
  const auto bytes = count * static_cast<int64_t>(c10::elementSize(type));
  const MemoryCharge charge = MemoryCharge::take(bytes, Tier::host);
  if (options_.is_meta) {
    HeldBlocksScope::hold(bytes);
    const auto release = [charge, bytes](void*) {
      charge.release();
      HeldBlocksScope::hold(-bytes);
    };
    return at::from_blob(nullptr, {count}, release, at::TensorOptions(type).device(at::kMeta), at::kMeta);
  }
  const size_t length = static_cast<size_t>(std::max<int64_t>(DiskStore::padded(bytes), DiskStore::kSector));
  void* memory = nullptr;
  try {
    memory = pages_->add(length);
  } catch (...) {
    charge.release();
    throw;
  }
  const auto release = [charge, length, pages = pages_](void* block) {
    pages->remove(block, length);
    charge.release();
  };
  return at::from_blob(memory, {count}, release, at::TensorOptions(type));
}

at::Tensor Tiers::host_buffer(int64_t count, at::ScalarType type) {
  at::Tensor buffer = host_tensor(count, type);
  if (options_.is_meta || mlock(buffer.data_ptr(), buffer.nbytes()) == 0) return buffer;
  not_locked_bytes_ += static_cast<int64_t>(buffer.nbytes());
  return buffer;
}

std::vector<std::string> Tiers::notes() const {
  std::vector<std::string> notes = disk_ == nullptr ? std::vector<std::string>() : disk_->notes();
  if (not_locked_bytes_ > 0) {
    notes.push_back(fmt::format("{} of host buffers are not locked in memory: raise ulimit -l to lock them",
                                format_bytes(not_locked_bytes_)));
  }
  return notes;
}

void Tiers::reserve_slots(int64_t block_bytes) {
  const int64_t needed = std::min(Slots::kMost, DiskStore::padded(block_bytes));
  const MemoryKindScope kind(MemoryKind::buffers);
  for (const auto& slots : {slots_in_, slots_out_}) {
    if (slots->bytes >= needed) continue;
    if (in_ != nullptr) {
      in_->run([] {}).wait();
      out_->run([] {}).wait();
    }
    slots->memory = at::Tensor();
    slots->memory = host_buffer(Slots::kNum * needed, at::kByte);
    slots->bytes = needed;
  }
}

TierBlock Tiers::block(Tier tier, int64_t bytes) {
  if (tier == Tier::device) throw InternalError({"tiers", "block", "a block on the device is a tensor", "", ""});
  TierBlock block;
  block.tier_ = tier;
  block.bytes_ = bytes;
  if (tier == Tier::host) {
    block.memory_ = host_tensor(bytes, at::kByte);
  } else {
    block.charge_ = MemoryCharge::take(bytes, Tier::disk);
    reserve_slots(bytes);
    if (!options_.is_meta) block.disk_ = disk().make(bytes);
  }
  block.tiers_ = this;
  return block;
}

Event Tiers::run(CopyStream& stream, std::string_view row, const std::string& what, int64_t bytes,
                 std::function<void()> job) {
  std::shared_ptr<TraceLog> trace;
  size_t span = 0;
  if (TraceLog* current = TraceLog::current(); current != nullptr) {
    trace = current->shared_from_this();
    span = trace->begin(row, what, {{"bytes", bytes}});
  }
  return stream.run([job = std::move(job), pages = pages_, failure = failure_, trace, span] {
    struct Ending {
      const std::shared_ptr<TraceLog>& trace;
      size_t span;
      Pages& pages;
      ~Ending() {
        pages.leave();
        if (trace != nullptr) trace->end(span);
      }
    };
    pages->enter();
    const Ending ending{trace, span, *pages};
    try {
      job();
    } catch (...) {
      const std::lock_guard lock(failure->mutex);
      if (failure->error == nullptr) failure->error = std::current_exception();
      throw;
    }
  });
}

void Tiers::hold(Event event, const at::Tensor& tensor) {
  finish_stores();
  held_event_ = std::move(event);
  held_ = tensor;
}

void Tiers::finish_stores() {
  if (held_.defined()) {
    const TraceSpan span(TraceLog::kWait, "store");
    std::exchange(held_event_, {}).wait();
  }
  held_ = at::Tensor();
}

void Tiers::check() {
  const std::lock_guard lock(failure_->mutex);
  if (failure_->error != nullptr) std::rethrow_exception(failure_->error);
}

Event Tiers::copy_in(const at::Tensor& to_device, const at::Tensor& from_host) {
  const auto bytes = static_cast<int64_t>(to_device.nbytes());
  count({.from_host = bytes});
  if (options_.is_meta) return {};
  return run(*in_, "from host", "copy", bytes,
             [this, to = to_device.data_ptr(), from = from_host.const_data_ptr(), bytes] {
               in_->copy(to, from, static_cast<size_t>(bytes));
             });
}

Event Tiers::copy_out(const at::Tensor& to_host, const at::Tensor& from_device) {
  const auto bytes = static_cast<int64_t>(to_host.nbytes());
  count({.to_host = bytes});
  if (options_.is_meta) return {};
  return run(*out_, "to host", "copy", bytes,
             [this, to = to_host.data_ptr(), from = from_device.const_data_ptr(), bytes] {
               out_->copy(to, from, static_cast<size_t>(bytes));
             });
}

Event Tiers::run_on_host(const std::string& what, std::function<void()> job) {
  if (options_.is_meta) {
    job();
    return {};
  }
  if (host_ == nullptr) {
    host_ = device_->make_stream();
    if (options_.protects_host) host_ = std::make_unique<InlineStream>(std::move(host_));
  }
  // Copies that the job starts are traced too.
  TraceLog* const current = TraceLog::current();
  auto trace = current == nullptr ? nullptr : current->shared_from_this();
  return run(*host_, "host", what, 0, [job = std::move(job), trace = std::move(trace)] {
    const TraceScope scope(trace);
    job();
  });
}

HostGuard::HostGuard(Tiers& tiers) : pages_(tiers.pages_) { pages_->guard(); }
HostGuard::~HostGuard() { pages_->unguard(); }

HostAccess::HostAccess(Tiers& tiers) : pages_(tiers.pages_) { pages_->enter(); }
HostAccess::~HostAccess() { pages_->leave(); }

TierBlock::TierBlock(TierBlock&& other) noexcept { *this = std::move(other); }

TierBlock& TierBlock::operator=(TierBlock&& other) noexcept {
  if (this == &other) return *this;
  end();
  tiers_ = std::exchange(other.tiers_, nullptr);
  tier_ = other.tier_;
  bytes_ = other.bytes_;
  memory_ = std::move(other.memory_);
  disk_ = other.disk_;
  charge_ = other.charge_;
  stored_ = std::exchange(other.stored_, {});
  loaded_ = std::exchange(other.loaded_, {});
  return *this;
}

TierBlock::~TierBlock() { end(); }

void TierBlock::end() noexcept {
  if (tiers_ == nullptr) return;
  stored_.settle();  // Tiers::check throws their errors
  loaded_.settle();
  if (tier_ == Tier::disk) {
    if (!tiers_->is_meta()) tiers_->disk().release(disk_);
    charge_.release();
  }
  memory_ = at::Tensor();
  tiers_ = nullptr;
}

Event TierBlock::store(const at::Tensor& from, const std::string& what) {
  tiers_->finish_stores();
  Event event = start_store(from, what);
  tiers_->hold(event, from);
  return event;
}

Event TierBlock::start_store(const at::Tensor& from, const std::string& what) {
  tiers_->count({.to_host = bytes_, .to_disk = tier_ == Tier::disk ? bytes_ : 0});
  if (tiers_->is_meta()) return {};
  CopyStream& stream = *tiers_->out_;
  const Event read = loaded_;
  if (tier_ == Tier::host) {
    stored_ =
        tiers_->run(stream, "to host", what, bytes_, [&stream, from = at::Tensor(from), to = memory_, read]() mutable {
          read.wait();
          stream.copy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
          from = at::Tensor();  // before the event is complete
        });
    return stored_;
  }
  stored_ = tiers_->run(stream, "to disk", what, bytes_,
                        [&stream, from = at::Tensor(from), read, slots = tiers_->slots_out_, &disk = tiers_->disk(),
                         block = disk_]() mutable {
                          read.wait();
                          const auto* bytes = static_cast<const std::byte*>(from.const_data_ptr());
                          std::array<Event, Tiers::Slots::kNum> writes;
                          size_t i = 0;
                          for (int64_t at = 0; at < block.bytes; at += slots->bytes, i = 1 - i) {
                            const int64_t part = std::min(slots->bytes, block.bytes - at);
                            writes[i].wait();
                            stream.copy(slots->at(i), bytes + at, static_cast<size_t>(part));
                            writes[i] = disk.write(block, at, slots->at(i), part);
                          }
                          from = at::Tensor();  // before the event is complete
                          for (const Event& write : writes) write.wait();
                        });
  return stored_;
}

Event TierBlock::add(const at::Tensor& from, int64_t element_bytes, Add add, const std::string& what) {
  const int64_t from_bytes = static_cast<int64_t>(from.nbytes());
  tiers_->count({.to_host = from_bytes});
  tiers_->reserve_slots(std::max(bytes_, from_bytes));
  if (tier_ == Tier::disk) tiers_->count({.to_disk = bytes_, .from_disk = bytes_});
  if (tiers_->is_meta()) {
    tiers_->hold({}, from);
    return {};
  }
  CopyStream& stream = *tiers_->out_;
  tiers_->finish_stores();
  DiskStore* disk = tier_ == Tier::disk ? &tiers_->disk() : nullptr;
  stored_ = tiers_->run(stream, disk == nullptr ? "to host" : "to disk", what, from_bytes,
                        [&stream, from = at::Tensor(from), element_bytes, add = std::move(add), read = loaded_,
                         to = memory_, slots = tiers_->slots_out_, disk, block = disk_]() mutable {
                          read.wait();
                          const auto* theirs = static_cast<const std::byte*>(from.const_data_ptr());
                          const int64_t size = from.element_size();
                          // Parts of blocks on disk begin at pages.
                          const int64_t most =
                              slots->bytes / std::max(size, element_bytes) / DiskStore::kPage * DiskStore::kPage;
                          const int64_t step = most > 0 ? most : from.numel();
                          for (int64_t at = 0; at < from.numel(); at += step) {
                            const int64_t count = std::min(step, from.numel() - at);
                            stream.copy(slots->at(0), theirs + at * size, static_cast<size_t>(count * size));
                            if (disk == nullptr) {
                              add(static_cast<std::byte*>(to.data_ptr()) + at * element_bytes, slots->at(0), count);
                              continue;
                            }
                            disk->read(block, at * element_bytes, slots->at(1), count * element_bytes).wait();
                            add(slots->at(1), slots->at(0), count);
                            disk->write(block, at * element_bytes, slots->at(1), count * element_bytes).wait();
                          }
                          from = at::Tensor();  // before the event is complete
                        });
  tiers_->hold(stored_, from);
  return stored_;
}

Event TierBlock::load(const at::Tensor& to, const std::string& what) {
  tiers_->count({.from_host = bytes_, .from_disk = tier_ == Tier::disk ? bytes_ : 0});
  if (tiers_->is_meta()) return {};
  CopyStream& stream = *tiers_->in_;
  const Event written = stored_;
  if (tier_ == Tier::host) {
    loaded_ = tiers_->run(stream, "from host", what, bytes_,
                          [&stream, to = at::Tensor(to), from = memory_, written]() mutable {
                            written.wait();
                            stream.copy(to.data_ptr(), from.const_data_ptr(), to.nbytes());
                            to = at::Tensor();  // before the event is complete
                          });
    return loaded_;
  }
  loaded_ = tiers_->run(stream, "from disk", what, bytes_,
                        [&stream, to = at::Tensor(to), written, slots = tiers_->slots_in_, &disk = tiers_->disk(),
                         block = disk_]() mutable {
                          written.wait();
                          auto* bytes = static_cast<std::byte*>(to.data_ptr());
                          const auto start = [&](int64_t at, size_t i) {
                            return disk.read(block, at, slots->at(i), std::min(slots->bytes, block.bytes - at));
                          };
                          Event next = start(0, 0);
                          size_t i = 0;
                          for (int64_t at = 0; at < block.bytes; at += slots->bytes, i = 1 - i) {
                            next.wait();
                            if (at + slots->bytes < block.bytes) next = start(at + slots->bytes, 1 - i);
                            stream.copy(bytes + at, slots->at(i),
                                        static_cast<size_t>(std::min(slots->bytes, block.bytes - at)));
                          }
                          to = at::Tensor();  // before the event is complete
                        });
  return loaded_;
}

}  // namespace caravan
