#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "caravan/base/content_hash.h"

namespace caravan::disk {

struct Page {
  size_t file = 0;     ///< of the store
  int64_t offset = 0;  ///< in the file
  int64_t bytes = 0;   ///< without padding
  ContentHash hash{};
  bool is_written = false;
};

struct StoredBlock;

/// A read or write of consecutive pages.
struct Request {
  StoredBlock* block = nullptr;
  bool is_write = false;
  std::byte* memory = nullptr;
  size_t first_page = 0;
  size_t num_pages = 0;
  bool is_started = false;
  size_t num_left = 0;       ///< pages
  std::exception_ptr error;  ///< the first
  /// Completes the event.
  std::packaged_task<void()> report{[this] {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }};

  /// Whether the order of both matters.
  bool conflicts(const Request& other) const noexcept {
    return (is_write || other.is_write) && first_page < other.first_page + other.num_pages &&
           other.first_page < first_page + num_pages;
  }
};

struct StoredBlock {
  int64_t id = 0;
  int64_t bytes = 0;
  std::vector<Page> pages{};
  std::list<std::unique_ptr<Request>> requests{};  ///< not complete, in the order of the calls
  bool is_released = false;
};

}  // namespace caravan::disk
