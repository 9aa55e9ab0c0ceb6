#include "apps/caravan/bench/doctor_tiers.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "caravan/base/error.h"
#include "caravan/base/time.h"
#include "caravan/comm/measure/host.h"
#include "caravan/comm/world.h"
#include "caravan/memory/bandwidths.h"

namespace caravan::app {
namespace {

constexpr int64_t kCopyBytes = int64_t{64} << 20;  // more than the caches hold

/// measure_memory counts what is read and what is written.
double copy_rate() {
  const RankInfo alone;
  const auto world = make_world("thread", alone, open_store(alone));
  return measure::measure_memory(*world, kCopyBytes).copy_gb_s / 2 * 1e9;
}

/// A broken file is replaced, and so is that of another host.
TierBandwidths known(const std::string& host) {
  try {
    TierBandwidths read = read_tier_bandwidths();
    if (read.host == host) return read;
  } catch (const DataError&) {  // NOLINT
  }
  return {};
}

void keep(TierFindings& findings) {
  const std::string host = measure::read_host_facts().name;
  try {
    TierBandwidths kept = known(host);
    kept.host = host;
    kept.date = utc_text(now_seconds());
    kept.copy_bytes_per_second = findings.copy_bytes_per_second;
    for (const TierFindings::Disk& disk : findings.disks) {
      std::erase_if(kept.disks, [&](const auto& other) { return other.folder == disk.rates.folder; });
      if (disk.error.empty()) kept.disks.push_back(disk.rates);
    }
    findings.file = tier_bandwidths_file().string();
    write_tier_bandwidths(kept);
  } catch (const Error& error) {
    findings.file_error = error.what();
  }
}

}  // namespace

TierFindings measure_tiers(const std::vector<std::string>& disks) {
  TierFindings findings;
  for (const std::string& folder : disks) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored)) {
      throw UsageError(
          {"doctor", "--disk", folder + " is not a folder", "", "name one that exists: its disk is measured"});
    }
  }
  for (const std::string& folder : disks) {
    TierFindings::Disk disk;
    disk.rates = measure_disk(folder, disk.notes);
    findings.disks.push_back(std::move(disk));
  }
  if (disks.empty()) {
    TierFindings::Disk disk;
    const std::filesystem::path current = std::filesystem::current_path();
    try {
      disk.rates = measure_disk(current, disk.notes);
    } catch (const Error& error) {
      disk.rates.folder = current;
      disk.error = error.what();
    }
    findings.disks.push_back(std::move(disk));
  }
  findings.copy_bytes_per_second = copy_rate();
  keep(findings);
  return findings;
}

}  // namespace caravan::app
