#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/memory/tier.h"
#include "caravan/device/device.h"
#include "caravan/memory/disk_store.h"

namespace caravan {

class Tiers;

/// A block of bytes on host or disk, which holds the contents of a device tensor while it is away. Move-only; releases
/// its space when it ends, which waits for what is in flight.
class TierBlock {
 public:
  TierBlock() = default;  ///< none
  ~TierBlock();
  TierBlock(TierBlock&&) noexcept;
  TierBlock& operator=(TierBlock&&) noexcept;

  explicit operator bool() const noexcept { return tiers_ != nullptr; }
  Tier tier() const noexcept { return tier_; }
  int64_t bytes() const noexcept { return bytes_; }

  /// Copies `from`, a contiguous device tensor of bytes(), here. Keeps it alive until it has been copied.
  /// What is on disk is read and written by the same order of calls.
  Event store(const at::Tensor& from);
  /// Copies the contents into `to`, a contiguous device tensor of bytes(), after every earlier store.
  Event load(const at::Tensor& to);

  /// Host tier: the memory itself, flat bytes. Throws InternalError on another tier.
  at::Tensor memory() const;
  /// Disk tier: moves a part from and to host memory (DiskStore). Returns at once on meta tensors.
  const DiskStore::Block& disk_block() const;

 private:
  friend class Tiers;
  Tiers* tiers_ = nullptr;
  Tier tier_ = Tier::host;
  int64_t bytes_ = 0;
  at::Tensor memory_{};          ///< host
  DiskStore::Block disk_{};      ///< disk
  Event last_{};                 ///< the last store
};

/// Bytes that a rank has moved between its tiers.
struct TierTraffic {
  int64_t to_host = 0;    ///< from device to host, with what goes on to disk
  int64_t from_host = 0;  ///< from host to device
  int64_t to_disk = 0;
  int64_t from_disk = 0;
};

/// The memory of one rank outside of its device. All methods are those of the rank's thread; copies run beside it.
class Tiers {
 public:
  struct Options {
    std::vector<std::filesystem::path> disk_dirs{};
    std::string owner{};                ///< DiskStore::Options::owner
    int64_t expected_disk_bytes = 0;    ///< the same
    double link_bytes_per_second = 0;   ///< CpuDeviceOptions
    bool is_meta = false;               ///< nothing has memory: bytes are counted
  };
  explicit Tiers(Options options);
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  /// A block of `bytes` on host or disk, charged to that tier in the MemoryCounter of this thread, with the kind of its
  /// innermost MemoryKindScope.
  TierBlock block(Tier tier, int64_t bytes);
  /// A flat zeroed tensor in host memory, in pages of its own.
  at::Tensor host_tensor(int64_t count, at::ScalarType type);

  Stream& in() noexcept { return *in_; }    ///< to the device
  Stream& out() noexcept { return *out_; }  ///< from the device
  Device& device() noexcept { return *device_; }
  /// Throws UsageError if there are no disk_dirs.
  DiskStore& disk();
  bool is_meta() const noexcept { return options_.is_meta; }

  /// Buffers in host memory through which parts of disk blocks pass: at most kSlots of kSlotBytes for each stream.
  static constexpr int64_t kSlotBytes = 4 * DiskStore::kPage;
  static constexpr int kSlots = 2;

  TierTraffic traffic() const noexcept;
  /// For tests: makes the pages of the host tier unreadable, or readable again.
  void protect_host(bool is_protected);

 private:
  friend class TierBlock;
  struct Pages;
  Options options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DiskStore> disk_;
  std::shared_ptr<Pages> pages_;
  std::unique_ptr<Stream> in_, out_;  ///< last: their jobs use the others
};

}  // namespace caravan
