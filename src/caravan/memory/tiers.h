#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/memory/tier.h"
#include "caravan/device/device.h"
#include "caravan/memory/disk_store.h"

namespace caravan {

class Tiers;

/// A block of bytes on host or disk, which holds the contents of a device tensor while it is away. Move-only; its end
/// waits for what is in flight, and releases the space. A Tiers outlives its blocks.
class TierBlock {
 public:
  TierBlock() = default;  ///< none
  ~TierBlock();
  TierBlock(TierBlock&& other) noexcept;
  TierBlock& operator=(TierBlock&& other) noexcept;

  explicit operator bool() const noexcept { return tiers_ != nullptr; }
  Tier tier() const noexcept { return tier_; }
  int64_t bytes() const noexcept { return bytes_; }

  /// Copies `from`, a contiguous device tensor of bytes(), to this block, which keeps it alive meanwhile. `what` names
  /// it in traces.
  Event store(const at::Tensor& from, const std::string& what);
  /// Calls add(ours, theirs, count) for parts of `count` elements: adds `from`, a contiguous device tensor with as many
  /// elements of `element_bytes` here, to the contents, where these are.
  using Add = std::function<void(void* ours, const void* theirs, int64_t count)>;
  Event add(const at::Tensor& from, int64_t element_bytes, Add add, const std::string& what);
  /// The same for a caller who keeps `from` alive himself, and waits for several stores together.
  Event start_store(const at::Tensor& from, const std::string& what);
  /// Copies the contents to `to`, a contiguous device tensor of bytes(), after every earlier store.
  Event load(const at::Tensor& to, const std::string& what);

  /// On the host: the memory, as flat bytes. Host code that reads it holds a HostAccess.
  const at::Tensor& memory() const { return memory_; }
  /// On disk. Undefined contents until the last store is complete.
  const DiskStore::Block& disk_block() const { return disk_; }
  /// What reads and writes of the host must wait for: the last store. Sets it to `event` if they store themselves.
  const Event& last_store() const noexcept { return stored_; }
  void set_last_store(Event event) { stored_ = std::move(event); }

 private:
  friend class Tiers;
  void end() noexcept;

  Tiers* tiers_ = nullptr;
  Tier tier_ = Tier::host;
  int64_t bytes_ = 0;
  at::Tensor memory_{};
  DiskStore::Block disk_{};
  MemoryCharge charge_{};  ///< of a block on disk
  Event stored_{};
  Event loaded_{};
};

/// The memory of one rank beyond its device. The rank's thread calls it; copies run beside it.
class Tiers {
 public:
  struct Options {
    std::vector<std::filesystem::path> disk_dirs{};
    std::string owner{};               ///< DiskStore::Options::owner
    int64_t expected_disk_bytes = 0;   ///< the same
    double link_bytes_per_second = 0;  ///< see CpuDeviceOptions
    bool is_meta = false;              ///< nothing has memory: bytes are counted
    /// For tests: under a HostGuard pages of the host tier can be touched only by copies and under a HostAccess; else
    /// the process dies.
    bool protects_host = false;
  };
  explicit Tiers(Options options);
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  /// A block of `bytes` on host or disk, charged to that tier in the MemoryCounter of this thread, with the kind of its
  /// innermost MemoryKindScope. Throws ResourceError if the tier is full, UsageError for a disk without disk_dirs.
  TierBlock block(Tier tier, int64_t bytes);
  /// A flat zeroed tensor in host memory, in pages of its own, charged in the same way.
  at::Tensor host_tensor(int64_t count, at::ScalarType type);
  /// The same for a buffer that data passes: locked in memory where the limit of the process allows it (ulimit -l).
  at::Tensor host_buffer(int64_t count, at::ScalarType type);

  /// Copies between a device tensor and a tensor in host memory of as many bytes; both stay alive until the event is
  /// complete.
  Event copy_in(const at::Tensor& to_device, const at::Tensor& from_host);
  Event copy_out(const at::Tensor& to_host, const at::Tensor& from_device);

  /// Runs `job`, work of the host, beside the rank's thread, after earlier jobs; it may touch host memory. `what` names
  /// it in traces. At once where nothing has memory, or where host memory is protected.
  Event run_on_host(const std::string& what, std::function<void()> job);

  DiskStore& disk();
  bool is_meta() const noexcept { return options_.is_meta; }

  /// Of the stores of device tensors, one at most is in flight when the next begins: so that what the device holds does
  /// not depend on the speed of the link. TierBlock::store waits for the one before; this waits for the last.
  void finish_stores();
  /// Throws the error of a copy that nobody has waited for. Call it at the end of a step.
  void check();
  /// What the rank has moved.
  MemoryCounter::Moved traffic() const noexcept { return counter_.moved(); }
  /// Counts what is moved; for host code that reads and writes the disk by itself.
  void count(const MemoryCounter::Moved& more) noexcept { counter_.count_moved(more); }
  std::vector<std::string> notes() const;

 private:
  friend class TierBlock;
  friend class HostAccess;
  friend class HostGuard;
  struct Pages;
  struct Slots;
  void reserve_slots(int64_t block_bytes);
  void hold(Event event, const at::Tensor& tensor);
  Event run(CopyStream& stream, std::string_view row, const std::string& what, int64_t bytes,
            std::function<void()> job);

  Options options_;
  MemoryCounter& counter_;
  std::unique_ptr<Accelerator> device_;
  std::unique_ptr<DiskStore> disk_;
  std::shared_ptr<Pages> pages_;
  std::shared_ptr<Slots> slots_in_, slots_out_;
  struct Failure;
  std::shared_ptr<Failure> failure_;
  int64_t not_locked_bytes_ = 0;
  Event held_event_{};
  at::Tensor held_{};                     ///< what is being stored; without memory too, so that rehearsals count it
  std::unique_ptr<CopyStream> in_, out_;  ///< to and from the device; last: their jobs use the others
  std::unique_ptr<CopyStream> host_;      ///< uses these two
};

/// A time in which only the device computes: see Tiers::Options::protects_host.
class HostGuard {
 public:
  explicit HostGuard(Tiers& tiers);
  ~HostGuard();
  HostGuard(const HostGuard&) = delete;
  HostGuard& operator=(const HostGuard&) = delete;

 private:
  std::shared_ptr<Tiers::Pages> pages_;
};

/// Allows this process to touch host memory of `tiers` during its lifetime: Tiers::Options::protects_host.
class HostAccess {
 public:
  explicit HostAccess(Tiers& tiers);
  ~HostAccess();
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;

 private:
  std::shared_ptr<Tiers::Pages> pages_;
};

}  // namespace caravan
