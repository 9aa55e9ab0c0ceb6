#include "caravan/base/system/file_lock.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "caravan/base/system/file.h"

namespace caravan {
namespace {

std::string read_note(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t got = ::pread(descriptor, text.data(), text.size(), 0);
  return got > 0 ? std::string(text.data(), static_cast<size_t>(got)) : "";
}

}  // namespace

// A lock of the open file rather than of the process (F_SETLK): closing another descriptor of the same file does not
// release it, and two locks of one process exclude each other. NFS supports both.
int try_lock_file(int descriptor) noexcept {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  int result = 0;
  do {
    result = ::fcntl(descriptor, F_OFD_SETLK, &whole);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

FileLock::FileLock(const std::filesystem::path& path, std::string_view note, std::string_view op) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) throw_file_error(op, path, "cannot be opened", errno);
  const int error = try_lock_file(descriptor);
  if (error != 0) {
    is_supported_ = error == EAGAIN || error == EACCES;
    if (is_supported_) holder_ = read_note(descriptor);
    ::close(descriptor);
    return;
  }
  descriptor_ = descriptor;
  // The note is only for messages: a full disk must not keep a run from starting here.
  if (::ftruncate(descriptor, 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(descriptor, note.data(), note.size(), 0);
  }
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileLock::FileLock(FileLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      is_supported_(other.is_supported_),
      holder_(std::move(other.holder_)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  is_supported_ = other.is_supported_;
  holder_ = std::move(other.holder_);
  return *this;
}

}  // namespace caravan
