#pragma once

#include <filesystem>
#include <optional>

namespace caravan {

/// An advisory lock on a file (flock). It ends with this object or with the process, however that ends. Two locks of one
/// process exclude each other, too. On a file system without locks every attempt succeeds.
class CacheLock {
 public:
  /// A shared lock on an existing file. Waits while somebody holds an exclusive one. Returns nothing if the file is
  /// missing or cannot be opened.
  static std::optional<CacheLock> share(const std::filesystem::path& path);
  /// An exclusive lock on an existing file, without waiting. Returns nothing if the file is missing, cannot be opened,
  /// is locked, or was replaced meanwhile.
  static std::optional<CacheLock> try_exclusive(const std::filesystem::path& path);
  /// The same, but creates the file if it is missing. Throws ResourceError if that fails.
  static std::optional<CacheLock> try_create(const std::filesystem::path& path);

  ~CacheLock();
  CacheLock(CacheLock&& other) noexcept;
  CacheLock& operator=(CacheLock&&) = delete;

 private:
  explicit CacheLock(int descriptor) : descriptor_(descriptor) {}
  bool take_exclusive() const;
  /// Whether `path` still names the locked file: a file that was removed or replaced protects nothing.
  bool is_of(const std::filesystem::path& path) const;

  int descriptor_;
};

}  // namespace caravan
