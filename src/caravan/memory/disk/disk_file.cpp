#include "caravan/memory/disk/disk_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <new>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file_lock.h"
#include "caravan/base/text.h"
#include "caravan/memory/disk/folder.h"

namespace caravan::disk {
namespace {

constexpr const char* kPrefix = "caravan-";
constexpr const char* kSuffix = ".blocks";
constexpr size_t kProbeBytes = 4096;

std::string plain(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-') c = '_';
  }
  return text;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return plain(name.data());
}

/// When this process started, in clock ticks since the start of the host: tells it from a later one with its number.
std::string start_time() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream words(text.substr(std::min(text.size(), text.rfind(')') + 1)));  // the name may contain blanks
  std::string word;
  for (int field = 3; field <= 22; ++field) words >> word;
  return word;
}

std::string new_name(const std::string& owner) {
  static std::atomic<int> count{0};  // a process may have several stores
  return fmt::format("{}{}-{}-{}-{}-{}{}", kPrefix, owner.empty() ? "store" : plain(owner), host_name(), ::getpid(),
                     start_time(), count++, kSuffix);
}

bool has_name(const Fd& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_nlink > 0;
}

/// A file whose lock is free belongs to nobody who lives. Its maker may not have locked it yet: it then finds that it
/// has no name any more, and makes another.
void remove_leftovers(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || !entry.is_regular_file(error)) continue;
    const Fd file(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (file && try_lock_file(file.get()) == 0 && has_name(file)) ::unlink(entry.path().c_str());
  }
}

/// Whether the file can be read and written without the page cache, which some file systems say only when it is done.
bool set_direct(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) return false;
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{kProbeBytes}); }
  };
  const std::unique_ptr<std::byte[], Free> sector(new (std::align_val_t{kProbeBytes}) std::byte[kProbeBytes]());
  const bool works = ::pwrite(descriptor, sector.get(), kProbeBytes, 0) == ssize_t{kProbeBytes} &&
                     ::pread(descriptor, sector.get(), kProbeBytes, 0) == ssize_t{kProbeBytes};
  [[maybe_unused]] const int emptied = ::ftruncate(descriptor, 0);
  if (!works) ::fcntl(descriptor, F_SETFL, flags);
  return works;
}

int reserve(int descriptor, int64_t from, int64_t to) {
  int result = 0;
  do {
    result = ::fallocate(descriptor, 0, from, to - from);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return 0;
  const int error = errno;
  // A file system that cannot reserve: a full disk then shows when it is written.
  if (error == EOPNOTSUPP || error == ENOSYS) return ::ftruncate(descriptor, to) == 0 ? 0 : errno;
  [[maybe_unused]] const int restored = ::ftruncate(descriptor, from);  // what it did get must not fill the disk
  return error;
}

void check_file_limit(const std::filesystem::path& path, int64_t bytes) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (static_cast<uint64_t>(bytes) <= limit.rlim_cur) return;
  throw ResourceError(
      {.op = "disk",
       .subject = path.string(),
       .fact = fmt::format("a file of {} is needed, and files may have {} ({} bytes) here", format_bytes(bytes),
                           format_bytes(static_cast<int64_t>(limit.rlim_cur)), limit.rlim_cur),
       .action = "raise the limit of file sizes (ulimit -f)"});
}

}  // namespace

DiskFile::DiskFile(std::filesystem::path folder, const std::string& owner) : folder_(std::move(folder)) {
  const bool is_memory = file_system_of(folder_).is_memory;
  remove_leftovers(folder_);
  do {
    path_ = folder_ / new_name(owner);
    file_ = Fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file_) {
      throw ResourceError({.op = "disk",
                           .subject = folder_.string(),
                           .fact = fmt::format("no file can be made in it: {}", system_error(errno)),
                           .action = "choose a folder that may be written"});
    }
    // Another store may hold it for a moment, about to remove it. Without locks nobody removes anything.
    int error = 0;
    while ((error = try_lock_file(file_.get())) == EAGAIN || error == EACCES) ::usleep(100);
  } while (!has_name(file_));
  is_direct_ = !is_memory && set_direct(file_.get());
}

DiskFile::~DiskFile() { ::unlink(path_.c_str()); }

void DiskFile::grow(int64_t from, int64_t to) const {
  check_file_limit(path_, to);
  need_free_bytes(folder_, to - from);
  const int error = reserve(file_.get(), from, to);
  if (error == 0) return;
  if (error == ENOSPC || error == EDQUOT)
    need_free_bytes(folder_, to - from);  // others have been faster: says what is left
  throw ResourceError({.op = "disk",
                       .subject = path_.string(),
                       .fact = fmt::format("cannot grow from {} to {}, with {} free: {}", format_bytes(from),
                                           format_bytes(to), format_bytes(free_bytes(folder_)), system_error(error)),
                       .action = "free some space, or add folders on other disks"});
}

}  // namespace caravan::disk
