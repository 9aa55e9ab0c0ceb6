#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace caravan {

/// How fast the tiers of a host are: as `caravan doctor` has measured them, or, where it has not, as is assumed.
struct TierBandwidths {
  struct Disk {
    std::filesystem::path folder{};
    double read_bytes_per_second = 2e9;
    double write_bytes_per_second = 1e9;
    bool is_measured = false;
  };

  std::string host{};                  ///< where; "": nothing is measured
  std::string date{};                  ///< of the last measurement
  double copy_bytes_per_second = 8e9;  ///< from memory to memory by one thread; each byte counts once
  bool is_copy_measured = false;
  std::vector<Disk> disks{};  ///< that are measured

  /// The measured folder that is `folder`, else the one on its file system that was measured last, under the name
  /// `folder`. If there is none, what is assumed.
  Disk disk(const std::filesystem::path& folder) const;
};

/// tiers.toml in the cache folder.
std::filesystem::path tier_bandwidths_file();

/// All assumed if there is no such file. Throws DataError naming the file if it is broken.
TierBandwidths read_tier_bandwidths();

/// Throws ResourceError.
void write_tier_bandwidths(const TierBandwidths& bandwidths);

/// Writes 256 MiB with a DiskStore, or what takes half a second, and reads it back. Adds the store's notes to `notes`.
/// Throws what the store throws.
TierBandwidths::Disk measure_disk(const std::filesystem::path& folder, std::vector<std::string>& notes);

}  // namespace caravan
