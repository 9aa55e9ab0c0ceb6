#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "caravan/data/windows/cache_lock.h"
#include "caravan/data/windows/data_observer.h"

namespace caravan {

/// One file of the cache: a decoded text (<hash>.text), tokens (<hash>.tokens), the record of a shard of a streamed
/// text (<hash>.shard), a trained tokenizer (tokenizer-<hash>.json) or measured hardware (hardware-<hash>.toml).
struct CacheFile {
  std::filesystem::path path;
  int64_t bytes = 0;
  int64_t last_used_s = 0;  ///< seconds since 1970
  bool in_use = false;      ///< some process holds it open, or this user may not write it
};

/// The files of the cache in `folder`, least recently used first; shard records last: they are small, and without them
/// all previous shards are tokenized again. Empty for a missing folder.
std::vector<CacheFile> list_cache(const std::filesystem::path& folder);

struct CacheRemoval {
  int64_t files = 0;
  int64_t bytes = 0;
  int64_t bytes_left = 0;
};

/// Removes the least recently used files until at most `limit_bytes` are left (nothing: no limit), and leftovers of
/// killed processes. Never removes a file in use, nor any file that is not the cache's. Locks only the files that it
/// tries to remove.
CacheRemoval trim_cache(const std::filesystem::path& folder, std::optional<int64_t> limit_bytes);

/// The same for all files that are not in use.
CacheRemoval clear_cache(const std::filesystem::path& folder);

/// Trims a cache to which this process adds many files. It lists the files only when those added since the last time
/// may exceed the limit, and then frees extra room: so the cost per file does not grow with the cache.
class CacheTrimmer {
 public:
  CacheTrimmer(std::filesystem::path folder, std::optional<int64_t> limit_bytes)
      : folder_(std::move(folder)), limit_(limit_bytes) {}
  /// Call it after adding a file of `bytes` bytes.
  void added(int64_t bytes);
  /// How often it has listed all files.
  int64_t num_trims() const noexcept { return num_trims_; }

 private:
  std::filesystem::path folder_;
  std::optional<int64_t> limit_;
  int64_t room_ = 0;  ///< bytes that may be added before the next listing
  int64_t num_trims_ = 0;
};

/// Keeps a file of the cache from being removed while it lives, and marks it as used now. Null if the file is missing.
std::shared_ptr<const CacheLock> use_cache_file(const std::filesystem::path& path);

/// Calls `find`; if it returns false, calls `build`, which creates the file `path`. One process builds at a time; the
/// others wait for it and then call `find` again. Half-written files of processes that were killed while building
/// `path` are removed first. The folder is created if it is missing. Throws what the functions and `observer` throw,
/// and ResourceError if the folder cannot be written to.
void find_or_build(const std::filesystem::path& path, const std::function<bool()>& find,
                   const std::function<void()>& build, DataObserver& observer);

}  // namespace caravan
