#include "caravan/base/system/file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

std::string advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "free some space, or choose another folder";
    case EROFS:
    case EACCES:
    case EPERM: return "choose a folder that may be written, or change its permissions";
    case EFBIG: return "raise the limit of file sizes (ulimit -f)";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    default: return "";
  }
}

/// Closes a descriptor that is only needed inside one function.
struct FileDescriptor {
  int value;
  ~FileDescriptor() {
    if (value >= 0) close(value);
  }
};

}  // namespace

void throw_file_error(std::string_view op, const std::filesystem::path& path, std::string_view fact, int error) {
  ErrorText text{.op = std::string(op),
                 .subject = path.string(),
                 .fact = fmt::format("{}: {} (errno {})", fact, std::strerror(error), error),
                 .action = advice(error)};
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      if (text.action.empty()) text.action = "check the path";
      throw DataError(std::move(text));
    default: throw ResourceError(std::move(text));
  }
}

void create_folders(std::string_view op, const std::filesystem::path& folder, std::string_view fact) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_file_error(op, folder, fact, error.value());
}

MappedFile::MappedFile(const std::filesystem::path& path, std::string_view op) {
  // O_NONBLOCK: a FIFO given by mistake must be refused, not waited for.
  const FileDescriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0 && errno == EACCES) {
    throw ResourceError({.op = std::string(op),
                         .subject = path.string(),
                         .fact = "may not be read: permission denied",
                         .action = "make the file and the folders above it readable for this user"});
  }
  if (file.value < 0) throw_file_error(op, path, "cannot be opened", errno);
  struct stat status {};
  if (fstat(file.value, &status) != 0) throw_file_error(op, path, "has no readable status", errno);
  if (!S_ISREG(status.st_mode)) {
    throw DataError({.op = std::string(op),
                     .subject = path.string(),
                     .fact = S_ISDIR(status.st_mode) ? "is a folder, not a file" : "is not a regular file",
                     .action = "name a file"});
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (data == MAP_FAILED) throw_file_error(op, path, "cannot be mapped", errno);
  data_ = data;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

OutputFile::OutputFile(std::filesystem::path path, std::string_view op) : path_(std::move(path)), op_(op) {
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  // Not a DataError: no data is damaged if the folder is missing or is a file.
  if (descriptor_ < 0) {
    const int error = errno;
    throw ResourceError({.op = op_,
                         .subject = path_.string(),
                         .fact = fmt::format("cannot be created: {} (errno {})", std::strerror(error), error),
                         .action = advice(error).empty() ? "check the folder" : advice(error)});
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(path_.c_str());
}

void OutputFile::reserve(int64_t bytes) {
  if (bytes <= 0) return;
  while (fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, 0, bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == ENODEV) return;
    throw_file_error(op_, path_, fmt::format("no room for {} bytes", bytes), errno);
  }
}

void OutputFile::append(std::span<const std::byte> bytes) {
  write_at(end_, bytes);
  end_ += static_cast<int64_t>(bytes.size());
}

void OutputFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_file_error(op_, path_, fmt::format("cannot be written at byte {}", offset), errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

void OutputFile::finish() {
  if (fsync(descriptor_) != 0) throw_file_error(op_, path_, "cannot be flushed to disk", errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0) {
    const int error = errno;
    unlink(path_.c_str());
    throw_file_error(op_, path_, "cannot be closed", error);
  }
}

void OutputFile::finish_as(const std::filesystem::path& to) {
  finish();
  try {
    rename_durably(path_, to, op_);
  } catch (...) {
    unlink(path_.c_str());
    throw;
  }
}

void sync_folder(const std::filesystem::path& folder, std::string_view op) {
  const FileDescriptor directory{open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.value < 0) throw_file_error(op, folder, "cannot be opened", errno);
  // EINVAL: a file system that does not sync folders.
  if (fsync(directory.value) != 0 && errno != EINVAL) throw_file_error(op, folder, "cannot be flushed to disk", errno);
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to, std::string_view op) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    throw ResourceError({.op = std::string(op),
                         .subject = to.string(),
                         .fact = fmt::format("cannot be renamed from {}: {} (errno {})", from.filename().string(),
                                             std::strerror(error), error),
                         .action = advice(error)});
  }
  sync_folder(to.has_parent_path() ? to.parent_path() : ".", op);
}

std::filesystem::path name_aside(const std::filesystem::path& path) {
  std::random_device random;
  return fmt::format("{}.{:08x}{:08x}.tmp", path.string(), random(), random());
}

void write_file_durably(const std::filesystem::path& path, std::string_view text, std::string_view op) {
  OutputFile file(name_aside(path), op);
  file.append(text);
  file.finish_as(path);
}

}  // namespace caravan
