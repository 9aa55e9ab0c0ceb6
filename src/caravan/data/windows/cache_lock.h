#pragma once

#include <filesystem>
#include <optional>

namespace caravan {

/// An advisory lock on a file (flock). It ends with this object or with the process, even if that is killed. Two locks
/// of one process exclude each other, too. On a file system without locks every attempt succeeds, and the lock has no
/// effect.
class CacheLock {
 public:
  /// A shared lock on an existing file. Waits while an exclusive lock is held. Returns nothing if the file is missing
  /// or cannot be opened.
  static std::optional<CacheLock> share(const std::filesystem::path& path);
  /// An exclusive lock on an existing file, without waiting. Returns nothing if the file is missing, may not be written
  /// by this user, is locked, or was replaced meanwhile.
  static std::optional<CacheLock> try_exclusive(const std::filesystem::path& path);
  /// The same, but creates the file if it is missing. Throws ResourceError if that fails.
  static std::optional<CacheLock> try_create(const std::filesystem::path& path);

  ~CacheLock();
  CacheLock(CacheLock&& other) noexcept;
  CacheLock& operator=(CacheLock&&) = delete;

  /// False on a file system without locks, where others may still use the file.
  bool excludes_others() const noexcept { return excludes_others_; }

 private:
  explicit CacheLock(int descriptor) : descriptor_(descriptor) {}
  /// Does not wait. Returns false if the file is locked.
  bool take_exclusive();
  /// Whether `path` still names the locked file: a file that was removed or replaced protects nothing.
  bool is_of(const std::filesystem::path& path) const;

  int descriptor_;
  bool excludes_others_ = true;
};

}  // namespace caravan
