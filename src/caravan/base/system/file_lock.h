#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace caravan {

/// Tries to lock an open file exclusively, without waiting, until its last descriptor is closed: by the end of the
/// process at the latest. Returns 0 or an errno: EAGAIN or EACCES if another has the lock, else there are no locks.
int try_lock_file(int descriptor) noexcept;

/// An exclusive lock, as a file: at most one FileLock of a path is held at a time, over all processes and hosts that
/// see the file. The kernel releases it when the process ends, even if it is killed; the file itself stays.
class FileLock {
 public:
  FileLock() = default;
  /// Tries to take the lock, without waiting. Creates the file if it is missing, and writes `note` into it, which
  /// describes the holder to others. Throws ResourceError or DataError if the file cannot be opened.
  FileLock(const std::filesystem::path& path, std::string_view note, std::string_view op);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

  bool is_held() const noexcept { return descriptor_ >= 0; }
  /// If another process holds the lock: its note. May be empty if the lock has only just been taken.
  const std::string& holder() const noexcept { return holder_; }
  /// False if the file system has no locks: then neither this nor anyone else holds it.
  bool is_supported() const noexcept { return is_supported_; }

 private:
  int descriptor_ = -1;
  bool is_supported_ = true;
  std::string holder_;
};

}  // namespace caravan
