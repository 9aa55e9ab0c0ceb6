#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "caravan/base/system/fd.h"

namespace caravan::disk {

/// A file of one store, which it alone uses: made and locked here, removed at the end. The lock says to others that its
/// process lives.
class DiskFile {
 public:
  /// Also removes the files in `folder` whose processes have ended without doing so. Throws ResourceError.
  DiskFile(std::filesystem::path folder, const std::string& owner);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  /// Takes the space on disk that makes a file of `from` bytes one of `to` bytes. Throws ResourceError if there is not
  /// enough; then nothing has changed.
  void grow(int64_t from, int64_t to) const;

  const std::filesystem::path& folder() const noexcept { return folder_; }
  const std::filesystem::path& path() const noexcept { return path_; }
  int descriptor() const noexcept { return file_.get(); }
  bool is_direct() const noexcept { return is_direct_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path path_;
  Fd file_;
  bool is_direct_ = false;
};

}  // namespace caravan::disk
