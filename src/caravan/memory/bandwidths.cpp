#include "caravan/memory/bandwidths.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <sstream>
#include <sys/stat.h>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "caravan/base/error.h"
#include "caravan/base/system/cache_folder.h"
#include "caravan/base/system/file.h"
#include "caravan/memory/disk/folder.h"
#include "caravan/memory/disk_store.h"

namespace caravan {
namespace {

constexpr int64_t kSlotBytes = 4 * DiskStore::kPage;
constexpr size_t kNumSlots = 4;
constexpr int64_t kMostMeasuredBytes = int64_t{256} << 20;
constexpr std::chrono::milliseconds kMeasuredTime{500};

/// Of the folder, or of the folder above in which it would be made; 0 if there is none.
uint64_t device_of(std::filesystem::path folder) {
  struct stat status {};
  for (folder = std::filesystem::absolute(folder); ::stat(folder.c_str(), &status) != 0;
       folder = folder.parent_path()) {
    if (folder == folder.parent_path()) return 0;
  }
  return status.st_dev;
}

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& fact) {
  throw DataError({.op = "tiers",
                   .subject = file.string(),
                   .fact = fact,
                   .action = "run `caravan doctor` again, or remove the file"});
}

/// What one table of the file says.
class TierTable {
 public:
  TierTable(const toml::node* node, std::string name, const std::filesystem::path& file)
      : name_(std::move(name)), file_(file) {
    if (node == nullptr || !node->is_table()) refuse_file(file_, fmt::format("has no {}", name_));
    table_ = node->as_table();
  }

  std::string text(const char* key) const {
    const auto value = table_->get(key) == nullptr ? std::nullopt : table_->get(key)->value<std::string>();
    if (!value) refuse_file(file_, fmt::format("{} of {} is not a text", key, name_));
    return *value;
  }
  double rate(const char* key) const {
    const auto value = table_->get(key) == nullptr ? std::nullopt : table_->get(key)->value<double>();
    if (!value || !std::isfinite(*value) || *value <= 0) {
      refuse_file(file_, fmt::format("{} of {} is not a positive number", key, name_));
    }
    return *value;
  }

 private:
  std::string name_;
  const std::filesystem::path& file_;
  const toml::table* table_ = nullptr;
};

using Slots = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

/// Random bytes, which no disk or file system can make less.
Slots make_slots() {
  constexpr std::align_val_t kAlignment{static_cast<size_t>(DiskStore::kSector)};
  constexpr size_t kBytes = kNumSlots * static_cast<size_t>(kSlotBytes);
  Slots slots(new (kAlignment) std::byte[kBytes], [](std::byte* memory) { ::operator delete[](memory, kAlignment); });
  std::mt19937_64 random(1);
  for (size_t i = 0; i < kBytes; i += sizeof(uint64_t)) {
    const uint64_t number = random();
    std::memcpy(slots.get() + i, &number, sizeof number);
  }
  return slots;
}

using DiskMove = std::function<Event(int64_t offset, std::byte* memory)>;

struct DiskPass {
  int64_t bytes = 0;
  double rate = 0;
};

/// Transfers at 0, kSlotBytes, .. until `most` bytes or the time are used up.
DiskPass time_pass(int64_t most, const Slots& slots, const DiskMove& transfer) {
  std::array<Event, kNumSlots> events;
  const auto begin = std::chrono::steady_clock::now();
  DiskPass pass;
  for (size_t slot = 0; pass.bytes < most; slot = (slot + 1) % kNumSlots, pass.bytes += kSlotBytes) {
    events[slot].wait();
    if (std::chrono::steady_clock::now() - begin > kMeasuredTime) break;
    events[slot] = transfer(pass.bytes, slots.get() + slot * static_cast<size_t>(kSlotBytes));
  }
  for (const Event& event : events) event.wait();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  pass.rate = static_cast<double>(pass.bytes) / taken.count();
  return pass;
}

}  // namespace

TierBandwidths::Disk TierBandwidths::disk(const std::filesystem::path& folder) const {
  const auto same_folder = std::ranges::find(disks, folder, &Disk::folder);
  if (same_folder != disks.end()) return *same_folder;
  const uint64_t device = device_of(folder);
  const auto on_device = [&](const Disk& disk) {
    struct stat status {};
    return ::stat(disk.folder.c_str(), &status) == 0 && status.st_dev == device;
  };
  const auto newest = std::find_if(disks.rbegin(), disks.rend(), on_device);
  Disk result = newest == disks.rend() ? Disk() : *newest;
  result.folder = folder;
  return result;
}

std::filesystem::path tier_bandwidths_file() { return cache_folder() / "tiers.toml"; }

TierBandwidths read_tier_bandwidths() {
  const std::filesystem::path file = tier_bandwidths_file();
  TierBandwidths result;
  if (!std::filesystem::exists(file)) return result;
  const MappedFile content(file, "tiers");
  toml::table table;
  try {
    table = toml::parse(content.text(), file.string());
  } catch (const toml::parse_error& error) {
    refuse_file(file, fmt::format("line {}: {}", error.source().begin.line, error.description()));
  }
  const TierTable host(table.get("host"), "[host]", file);
  result.host = host.text("name");
  result.date = host.text("date");
  result.copy_bytes_per_second = host.rate("copy_bytes_per_second");
  result.is_copy_measured = true;
  if (!table.contains("disk")) return result;
  const toml::array* disks = table.get("disk")->as_array();
  if (disks == nullptr) refuse_file(file, "[[disk]] is not a list of tables");
  for (const toml::node& node : *disks) {
    const TierTable disk(&node, "[[disk]]", file);
    result.disks.push_back(
        {disk.text("folder"), disk.rate("read_bytes_per_second"), disk.rate("write_bytes_per_second"), true});
  }
  return result;
}

void write_tier_bandwidths(const TierBandwidths& bandwidths) {
  const auto whole = [](double rate) { return std::max<int64_t>(1, std::llround(rate)); };
  toml::array disks;
  for (const TierBandwidths::Disk& disk : bandwidths.disks) {
    disks.push_back(toml::table{{"folder", disk.folder.string()},
                                {"read_bytes_per_second", whole(disk.read_bytes_per_second)},
                                {"write_bytes_per_second", whole(disk.write_bytes_per_second)}});
  }
  toml::table host{{"name", bandwidths.host},
                   {"date", bandwidths.date},
                   {"copy_bytes_per_second", whole(bandwidths.copy_bytes_per_second)}};
  toml::table table{{"host", std::move(host)}};
  if (!disks.empty()) table.insert("disk", std::move(disks));
  std::ostringstream text;
  text << "# What `caravan doctor` measured.\n" << table << "\n";
  const std::filesystem::path file = tier_bandwidths_file();
  create_folders("tiers", file.parent_path());
  write_file_durably(file, text.str(), "tiers");
}

TierBandwidths::Disk measure_disk(const std::filesystem::path& folder, std::vector<std::string>& notes) {
  const Slots slots = make_slots();
  DiskStore store({.folders = {folder}, .owner = "doctor"});
  std::ranges::copy(store.notes(), std::back_inserter(notes));
  const std::filesystem::path made = store.speeds().front().folder;
  // Of a disk that is nearly full, a part of what is left.
  const int64_t quarter = disk::free_bytes(made) / 4 / kSlotBytes * kSlotBytes;
  const int64_t bytes = std::clamp(quarter, kSlotBytes * static_cast<int64_t>(kNumSlots), kMostMeasuredBytes);
  const DiskStore::Block block = store.make(bytes);
  const DiskPass written = time_pass(
      bytes, slots, [&](int64_t offset, std::byte* memory) { return store.write(block, offset, memory, kSlotBytes); });
  const DiskPass read = time_pass(written.bytes, slots, [&](int64_t offset, std::byte* memory) {
    return store.read(block, offset, memory, kSlotBytes);
  });
  return {made, read.rate, written.rate, true};
}

}  // namespace caravan
