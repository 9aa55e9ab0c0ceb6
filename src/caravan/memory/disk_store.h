#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "caravan/device/event.h"

namespace caravan {

/// Blocks of bytes of one rank on disk, which live as long as this. Reads and writes are asynchronous, bypass the page
/// cache (O_DIRECT) where the file system allows, and are spread over the folders page by page. Each page has a
/// checksum, kept in memory.
///
/// A store has one file in each folder, which it removes when it ends. It also removes the files that a killed process
/// has left there; a file of a process that lives is untouched. Thread-safe: a block is used by one thread at a time.
class DiskStore {
 public:
  /// The unit of checksums and of striping; offsets of reads and writes are multiples of it.
  static constexpr int64_t kPage = int64_t{1} << 20;
  /// Alignment in memory and on disk.
  static constexpr int64_t kSector = 4096;
  static constexpr int64_t padded(int64_t bytes) noexcept { return (bytes + kSector - 1) / kSector * kSector; }

  struct Options {
    std::vector<std::filesystem::path> folders{};  ///< at least one; made if missing
    std::string owner{};                           ///< distinguishes the stores of the ranks of a job: "rank_3"
    int64_t expected_bytes = 0;                    ///< checked against the free space of the folders before anything is
                                                   ///< written
    int queue_depth = 16;                          ///< pages in flight in each folder
  };

  /// Throws UsageError for a folder that is not one, whose parent is missing, or on a network file system;
  /// ResourceError if it is read-only or too small: names folder, free and needed bytes.
  explicit DiskStore(Options options);
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  struct Block {
    int64_t id = -1;
    int64_t bytes = 0;
  };
  /// Reserves space on disk. It holds zeros until it is written. Throws ResourceError naming folder,
  /// free and needed bytes if the disk is full.
  Block make(int64_t bytes);
  /// Its space is free when what is in flight is complete.
  void release(const Block& block);

  /// `bytes` bytes at `offset`, a multiple of kPage; they end at a multiple of kPage or at the end of the block.
  /// `memory` is aligned to kSector and holds padded(bytes) bytes, of which a read may change the padding. It stays
  /// valid until the event is complete. What touches a page of the block happens in the order of the calls.
  /// Event::wait throws ResourceError for a disk that is full or fails, DataError for a page whose checksum differs;
  /// both name the file and the offset.
  Event write(const Block& block, int64_t offset, const void* memory, int64_t bytes);
  Event read(const Block& block, int64_t offset, void* memory, int64_t bytes);

  int64_t bytes_written() const noexcept;
  int64_t bytes_read() const noexcept;
  int64_t bytes_held() const noexcept;  ///< of all blocks
  /// What went to and from a folder, and the time in which something was in flight there: how fast it has been.
  struct Speed {
    std::filesystem::path folder;
    int64_t bytes = 0;
    double seconds = 0;
  };
  std::vector<Speed> speeds() const;
  /// What a user should know once: that a file system has no direct I/O, or that io_uring is refused. Empty: nothing.
  std::vector<std::string> notes() const;

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

}  // namespace caravan
