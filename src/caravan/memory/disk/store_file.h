#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "caravan/memory/disk/disk_file.h"
#include "caravan/memory/disk/disk_io.h"
#include "caravan/memory/disk/space.h"

namespace caravan::disk {

/// A file with what the store knows of it. Guarded by the store's mutex.
struct StoreFile {
  StoreFile(std::filesystem::path folder, const std::string& owner) : file(std::move(folder), owner) {}

  void start(size_t count) {
    if (num_in_flight == 0) busy_since = std::chrono::steady_clock::now();
    num_in_flight += count;
  }
  void end(int64_t moved) {
    bytes += moved;
    if (--num_in_flight == 0) busy += std::chrono::steady_clock::now() - busy_since;
  }

  DiskFile file;
  Space space;
  size_t num_in_flight = 0;
  std::chrono::steady_clock::time_point busy_since{};
  std::chrono::duration<double> busy{};
  int64_t bytes = 0;
  std::unique_ptr<Engine> engine{};  ///< last: it uses the file
};

}  // namespace caravan::disk
