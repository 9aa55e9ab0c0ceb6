#include "caravan/data/windows/cache_lock.h"

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
namespace {

/// Like flock, but repeated if a signal interrupts it. Returns 0 or the errno.
int take_lock(int descriptor, int operation) {
  while (flock(descriptor, operation) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

/// Whether this errno means that the file system has no locks. Any other means that the lock was not taken.
bool has_no_locks(int error) { return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS; }

}  // namespace

bool CacheLock::take_exclusive() {
  const int error = take_lock(descriptor_, LOCK_EX | LOCK_NB);
  excludes_others_ = error == 0;
  return error == 0 || has_no_locks(error);
}

bool CacheLock::is_of(const std::filesystem::path& path) const {
  struct stat opened {};
  struct stat present {};
  return fstat(descriptor_, &opened) == 0 && stat(path.c_str(), &present) == 0 && opened.st_ino == present.st_ino &&
         opened.st_dev == present.st_dev;
}

std::optional<CacheLock> CacheLock::share(const std::filesystem::path& path) {
  while (true) {
    CacheLock shared(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (shared.descriptor_ < 0) return std::nullopt;
    shared.excludes_others_ = take_lock(shared.descriptor_, LOCK_SH) == 0;
    if (shared.is_of(path)) return shared;
  }
}

std::optional<CacheLock> CacheLock::try_exclusive(const std::filesystem::path& path) {
  // For writing: on NFS flock is a lock of a byte range, and an exclusive one needs that.
  CacheLock exclusive(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (exclusive.descriptor_ < 0 || !exclusive.take_exclusive() || !exclusive.is_of(path)) return std::nullopt;
  return exclusive;
}

std::optional<CacheLock> CacheLock::try_create(const std::filesystem::path& path) {
  CacheLock created(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (created.descriptor_ < 0) {
    const int error = errno;
    throw ResourceError({.op = "cache",
                         .subject = path.string(),
                         .fact = fmt::format("cannot be created: {} (errno {})", std::strerror(error), error),
                         .action = "set CARAVAN_CACHE to a folder that you may write to"});
  }
  if (!created.take_exclusive() || !created.is_of(path)) return std::nullopt;
  return created;
}

CacheLock::~CacheLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

CacheLock::CacheLock(CacheLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), excludes_others_(other.excludes_others_) {}

}  // namespace caravan
