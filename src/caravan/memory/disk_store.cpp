#include "caravan/memory/disk_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/fd.h"

namespace caravan {

struct DiskStore::Files {
  Options options;
  Fd file;
  std::atomic<int64_t> end{0}, written{0}, read{0}, held{0}, next{0};
};

DiskStore::DiskStore(Options options) : files_(std::make_unique<Files>()) {
  std::filesystem::create_directories(options.folders.at(0));
  const auto path = options.folders.at(0) / fmt::format("{}_{}", options.owner, getpid());
  files_->file = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ::unlink(path.c_str());
  files_->options = std::move(options);
}
DiskStore::~DiskStore() = default;

DiskStore::Block DiskStore::make(int64_t bytes) {
  files_->held += bytes;
  const Block block{files_->end.fetch_add((bytes + kPage - 1) / kPage * kPage), bytes};
  if (::ftruncate(files_->file.get(), files_->end) != 0) throw ResourceError({.op = "disk", .fact = "grow"});
  return block;
}
void DiskStore::release(const Block& block) { files_->held -= block.bytes; }

Event DiskStore::write(const Block& block, int64_t offset, const void* memory, int64_t bytes) {
  files_->written += bytes;
  if (::pwrite(files_->file.get(), memory, bytes, block.id + offset) != bytes)
    throw ResourceError({.op = "disk", .fact = "write"});
  return {};
}
Event DiskStore::read(const Block& block, int64_t offset, void* memory, int64_t bytes) {
  files_->read += bytes;
  if (::pread(files_->file.get(), memory, bytes, block.id + offset) != bytes)
    throw ResourceError({.op = "disk", .fact = "read"});
  return {};
}
int64_t DiskStore::bytes_written() const noexcept { return files_->written; }
int64_t DiskStore::bytes_read() const noexcept { return files_->read; }
int64_t DiskStore::bytes_held() const noexcept { return files_->held; }
std::vector<std::string> DiskStore::notes() const { return {}; }

}  // namespace caravan
