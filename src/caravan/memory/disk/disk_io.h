#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace caravan::disk {

struct Request;

/// A part of a request in one file: a page, or what is left at the end of a block.
struct Transfer {
  Request* request = nullptr;
  size_t page = 0;  ///< of the block
  size_t file = 0;  ///< of the store
  bool is_write = false;
  std::byte* memory = nullptr;
  int64_t bytes = 0;   ///< a multiple of the sector
  int64_t offset = 0;  ///< in the file
};

/// In place of an errno: the file ended before the transfer.
inline constexpr int kEndOfFile = -1;

/// What the store does around a transfer, on a thread of the engine.
class TransferOwner {
 public:
  virtual void begin(const Transfer& transfer) noexcept = 0;
  /// `error`: 0, an errno or kEndOfFile.
  virtual void end(const Transfer& transfer, int error) noexcept = 0;

 protected:
  ~TransferOwner() = default;
};

/// Reads and writes one open file. Its end waits for what was submitted.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual void submit(const std::vector<Transfer>& transfers) = 0;
};

/// With pread and pwrite on a few threads. Without direct I/O, what is written goes to disk before its transfer ends,
/// and leaves the page cache, which would else take the memory that offload is to save.
std::unique_ptr<Engine> make_thread_engine(int descriptor, bool is_direct, int num_threads, TransferOwner& owner);

/// With io_uring, on one thread; for direct I/O. Null if it is not to be had; then `refusal` says why, unless the user
/// has switched it off: CARAVAN_IO_URING=0.
std::unique_ptr<Engine> make_uring_engine(int descriptor, int queue_depth, TransferOwner& owner, std::string& refusal);

}  // namespace caravan::disk
