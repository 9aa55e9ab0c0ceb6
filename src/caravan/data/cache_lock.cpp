#include "caravan/data/cache_lock.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

/// An error other than "locked" means that the file system has no locks.
bool CacheLock::take_exclusive() const {
  return flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR);
}

bool CacheLock::is_of(const std::filesystem::path& path) const {
  struct stat opened {};
  struct stat present {};
  return fstat(descriptor_, &opened) == 0 && stat(path.c_str(), &present) == 0 && opened.st_ino == present.st_ino &&
         opened.st_dev == present.st_dev;
}

std::optional<CacheLock> CacheLock::share(const std::filesystem::path& path) {
  while (true) {
    CacheLock lock(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (lock.descriptor_ < 0) return std::nullopt;
    while (flock(lock.descriptor_, LOCK_SH) != 0 && errno == EINTR) {
    }
    if (lock.is_of(path)) return lock;
  }
}

std::optional<CacheLock> CacheLock::try_exclusive(const std::filesystem::path& path) {
  CacheLock lock(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (lock.descriptor_ < 0 || !lock.take_exclusive() || !lock.is_of(path)) return std::nullopt;
  return lock;
}

std::optional<CacheLock> CacheLock::try_create(const std::filesystem::path& path) {
  CacheLock lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (lock.descriptor_ < 0) {
    const int error = errno;
    throw ResourceError({.op = "cache",
                         .subject = path.string(),
                         .fact = fmt::format("cannot be created: {} (errno {})", std::strerror(error), error),
                         .where = {},
                         .action = "set CARAVAN_CACHE to a folder that you may write to"});
  }
  if (!lock.take_exclusive() || !lock.is_of(path)) return std::nullopt;
  return lock;
}

CacheLock::~CacheLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

CacheLock::CacheLock(CacheLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

}  // namespace caravan
