#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/memory/disk_store.h"

namespace caravan::testing {

/// Memory for transfers of `bytes`: aligned, padded, and with bytes behind it that no read may change.
class AlignedMemory {
 public:
  explicit AlignedMemory(int64_t bytes, uint64_t seed = 0)
      : bytes_(static_cast<size_t>(bytes)), padded_(static_cast<size_t>(DiskStore::padded(bytes))) {
    data_.reset(new (std::align_val_t{static_cast<size_t>(DiskStore::kSector)}) std::byte[padded_ + kGuard]);
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < padded_; i += sizeof(uint64_t)) {
      const uint64_t number = seed == 0 ? 0 : random();
      std::memcpy(data_.get() + i, &number, sizeof number);
    }
    std::memset(data_.get() + padded_, 0x5A, kGuard);
  }

  std::byte* data() const { return data_.get(); }
  std::vector<std::byte> content() const { return {data_.get(), data_.get() + bytes_}; }
  bool is_guard_whole() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (data_.get()[padded_ + i] != std::byte{0x5A}) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t{static_cast<size_t>(DiskStore::kSector)});
    }
  };
  static constexpr size_t kGuard = 64;
  size_t bytes_;
  size_t padded_;
  std::unique_ptr<std::byte[], Free> data_;
};

/// A folder for a store, on a disk or in memory, with io_uring or without, for the duration of a test.
class DiskFolder {
 public:
  struct Way {
    const char* name;
    bool is_memory;
    bool has_uring;
  };
  static constexpr Way kWays[] = {{"io_uring", false, true}, {"threads", false, false}, {"memory", true, true}};

  explicit DiskFolder(const Way& way) {
    std::string pattern =
        (way.is_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/caravan_disk_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder: " + pattern);
    path_ = pattern;
    way.has_uring ? ::unsetenv("CARAVAN_IO_URING") : ::setenv("CARAVAN_IO_URING", "0", 1);
  }
  ~DiskFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    ::unsetenv("CARAVAN_IO_URING");
  }
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The files of stores below it.
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      if (entry.is_regular_file()) found.push_back(entry.path());
    }
    return found;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace caravan::testing
