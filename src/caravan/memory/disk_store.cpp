#include "caravan/memory/disk_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/memory/disk/block.h"
#include "caravan/memory/disk/disk_io.h"
#include "caravan/memory/disk/failures.h"
#include "caravan/memory/disk/folder.h"
#include "caravan/memory/disk/store_file.h"

namespace caravan {
namespace {

constexpr int kThreads = 4;  // for each folder: enough pages in flight to keep a disk busy
constexpr int64_t kNoOffset = -1;

[[noreturn]] void refuse_call(const char* what, const std::string& fact) {
  throw UsageError({.op = "disk", .subject = what, .fact = fact, .action = "see DiskStore"});
}

int64_t num_pages(int64_t bytes) { return (bytes + DiskStore::kPage - 1) / DiskStore::kPage; }

}  // namespace

struct DiskStore::Files final : disk::TransferOwner {
  explicit Files(Options given);
  ~Files();
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  disk::StoredBlock make(int64_t bytes);
  Event request(const Block& block, int64_t offset, std::byte* memory, int64_t bytes, bool is_write);
  static void check(const disk::StoredBlock& block, int64_t offset, const std::byte* memory, int64_t bytes,
                    const char* what);
  disk::StoredBlock& find(const Block& block);
  void start_ready(disk::StoredBlock& block);
  void start(disk::Request& request);
  std::unique_ptr<disk::Request> take_out(disk::Request& request);
  void free_pages(const std::vector<disk::Page>& pages);
  void forget(disk::StoredBlock& block);

  void begin(const disk::Transfer& transfer) noexcept override;
  void end(const disk::Transfer& transfer, int error) noexcept override;

  Options options;
  std::vector<std::string> notes;
  mutable std::mutex mutex;
  std::condition_variable is_idle;
  size_t num_requests = 0;
  size_t next_file = 0;
  int64_t next_id = 0;
  int64_t bytes_held = 0;
  std::unordered_map<int64_t, disk::StoredBlock> blocks;
  /// Kept, so that no error ends on an engine's thread while another reads it: libstdc++ counts its references where
  /// ThreadSanitizer does not see it.
  std::vector<std::unique_ptr<disk::Request>> failed;
  std::atomic<int64_t> bytes_written{0};
  std::atomic<int64_t> bytes_read{0};
  std::vector<std::unique_ptr<disk::StoreFile>> files;  ///< last: their engines use the others
};

namespace {

/// Each folder gets every n-th page; folders of one file system share its free space.
void check_expected_bytes(const std::vector<std::filesystem::path>& folders, int64_t bytes) {
  const auto count = static_cast<int64_t>(folders.size());
  const int64_t each = std::min(DiskStore::padded(bytes), (num_pages(bytes) + count - 1) / count * DiskStore::kPage);
  std::map<uint64_t, int64_t> needed;
  for (const auto& folder : folders) {
    int64_t& sum = needed[disk::file_system_of(folder).device];
    sum += each;
    disk::need_free_bytes(folder, std::min(sum, DiskStore::padded(bytes)));
  }
}

std::string threads_note(const std::filesystem::path& folder, bool is_direct, const std::string& refusal) {
  if (!is_direct && disk::file_system_of(folder).is_memory) {
    return fmt::format("{}: a file system in memory: what goes there takes memory of this host, not of a disk",
                       folder.string());
  }
  if (!is_direct) {
    return fmt::format("{}: its file system ({}) has no direct I/O: reads and writes pass through the page cache",
                       folder.string(), disk::file_system_of(folder).type);
  }
  return refusal.empty() ? "" : fmt::format("{}; {} threads for each folder read and write", refusal, kThreads);
}

}  // namespace

DiskStore::Files::Files(Options given) : options(std::move(given)) {
  if (options.folders.empty()) refuse_call("folders", "there are none");
  if (options.queue_depth < 1) refuse_call("queue_depth", fmt::format("is {}", options.queue_depth));
  for (auto& folder : options.folders) folder = disk::prepare_folder(folder);
  for (const auto& folder : options.folders) files.push_back(std::make_unique<disk::StoreFile>(folder, options.owner));
  check_expected_bytes(options.folders, options.expected_bytes);
  for (const auto& one : files) {
    const int descriptor = one->file.descriptor();
    const bool is_direct = one->file.is_direct();
    std::string refusal;
    if (is_direct) one->engine = disk::make_uring_engine(descriptor, options.queue_depth, *this, refusal);
    if (one->engine != nullptr) continue;
    one->engine = disk::make_thread_engine(descriptor, is_direct, std::min(options.queue_depth, kThreads), *this);
    const std::string note = threads_note(one->file.folder(), is_direct, refusal);
    if (!note.empty() && std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
  }
}

DiskStore::Files::~Files() {
  std::unique_lock lock(mutex);
  is_idle.wait(lock, [&] { return num_requests == 0; });
}

disk::StoredBlock DiskStore::Files::make(int64_t bytes) {
  // What the disk can never hold is refused before its pages are counted.
  const int64_t each = bytes / static_cast<int64_t>(files.size());
  for (const auto& one : files) {
    if (each > one->space.size()) disk::need_free_bytes(one->file.folder(), each - one->space.size());
  }
  disk::StoredBlock block{.id = next_id, .bytes = bytes};
  std::vector<int64_t> lacking(files.size(), 0);
  for (int64_t i = 0; i < num_pages(bytes); ++i) {
    const size_t file = (next_file + static_cast<size_t>(i)) % files.size();
    disk::Page page{.file = file, .bytes = std::min(kPage, bytes - i * kPage)};
    page.offset = files[file]->space.take(padded(page.bytes)).value_or(kNoOffset);
    if (page.offset == kNoOffset) lacking[file] += padded(page.bytes);
    block.pages.push_back(page);
  }
  try {
    for (size_t file = 0; file < files.size(); ++file) {
      disk::Space& space = files[file]->space;
      const int64_t more = lacking[file] == 0 ? 0 : space.missing(lacking[file]);
      if (more > 0) files[file]->file.grow(space.size(), space.size() + more);
      if (more > 0) space.grow(more);
    }
  } catch (...) {
    free_pages(block.pages);
    throw;
  }
  for (disk::Page& page : block.pages) {
    if (page.offset == kNoOffset) page.offset = files[page.file]->space.take(padded(page.bytes)).value();
  }
  next_file = (next_file + block.pages.size()) % files.size();
  return block;
}

void DiskStore::Files::free_pages(const std::vector<disk::Page>& pages) {
  for (const disk::Page& page : pages) {
    if (page.offset != kNoOffset) files[page.file]->space.give(page.offset, padded(page.bytes));
  }
}

disk::StoredBlock& DiskStore::Files::find(const Block& block) {
  const auto found = blocks.find(block.id);
  if (found == blocks.end() || found->second.is_released) {
    refuse_call("block", fmt::format("{} is not one of this store, or was released", block.id));
  }
  return found->second;
}

void DiskStore::Files::check(const disk::StoredBlock& block, int64_t offset, const std::byte* memory, int64_t bytes,
                             const char* what) {
  const bool is_inside = offset >= 0 && bytes >= 0 && offset <= block.bytes && bytes <= block.bytes - offset;
  const bool is_whole = offset % kPage == 0 && (bytes % kPage == 0 || offset + bytes == block.bytes);
  if (!is_inside || !is_whole) {
    refuse_call(what, fmt::format("{} bytes at {} are not whole pages of a block of {}", bytes, offset, block.bytes));
  }
  if (reinterpret_cast<uintptr_t>(memory) % static_cast<uintptr_t>(kSector) != 0) {
    refuse_call(what, fmt::format("memory at {} is not aligned to {}", static_cast<const void*>(memory), kSector));
  }
}

Event DiskStore::Files::request(const Block& block, int64_t offset, std::byte* memory, int64_t bytes, bool is_write) {
  const std::lock_guard lock(mutex);
  disk::StoredBlock& stored = find(block);
  check(stored, offset, memory, bytes, is_write ? "write" : "read");
  if (bytes == 0) return {};
  auto request = std::make_unique<disk::Request>();
  request->block = &stored;
  request->is_write = is_write;
  request->memory = memory;
  request->first_page = static_cast<size_t>(offset / kPage);
  request->num_pages = static_cast<size_t>(num_pages(bytes));
  request->num_left = request->num_pages;
  Event event(request->report.get_future().share());
  stored.requests.push_back(std::move(request));
  ++num_requests;
  start_ready(stored);
  return event;
}

/// Starts what no earlier request of the block has to precede.
void DiskStore::Files::start_ready(disk::StoredBlock& block) {
  for (auto one = block.requests.begin(); one != block.requests.end(); ++one) {
    if ((*one)->is_started) continue;
    const auto is_before = [&](const auto& earlier) { return (*one)->conflicts(*earlier); };
    if (std::none_of(block.requests.begin(), one, is_before)) start(**one);
  }
}

void DiskStore::Files::start(disk::Request& request) {
  request.is_started = true;
  std::vector<std::vector<disk::Transfer>> parts(files.size());
  for (size_t i = 0; i < request.num_pages; ++i) {
    const disk::Page& page = request.block->pages[request.first_page + i];
    parts[page.file].push_back({.request = &request,
                                .page = request.first_page + i,
                                .file = page.file,
                                .is_write = request.is_write,
                                .memory = request.memory + i * static_cast<size_t>(kPage),
                                .bytes = padded(page.bytes),
                                .offset = page.offset});
  }
  for (size_t file = 0; file < files.size(); ++file) {
    if (parts[file].empty()) continue;
    files[file]->start(parts[file].size());
    files[file]->engine->submit(parts[file]);
  }
}

// Only requests in order touch a page, so that its hash needs no lock.
void DiskStore::Files::begin(const disk::Transfer& transfer) noexcept {
  if (!transfer.is_write) return;
  disk::Page& page = transfer.request->block->pages[transfer.page];
  page.hash = content_hash(std::span<const std::byte>(transfer.memory, static_cast<size_t>(page.bytes)));
  page.is_written = true;
}

void DiskStore::Files::end(const disk::Transfer& transfer, int error) noexcept {
  disk::Request& request = *transfer.request;
  const disk::Page& page = request.block->pages[transfer.page];
  const std::filesystem::path& path = files[transfer.file]->file.path();
  std::exception_ptr failure;
  if (error != 0) {
    failure = disk::failed_transfer(path, transfer, error);
  } else if (!transfer.is_write && page.is_written) {
    const auto found = content_hash(std::span<const std::byte>(transfer.memory, static_cast<size_t>(page.bytes)));
    if (found != page.hash) failure = disk::wrong_page(path, page, found);
  } else if (!transfer.is_write) {
    std::memset(transfer.memory, 0, static_cast<size_t>(page.bytes));  // freed space has the bytes of another block
  }
  if (error == 0) (transfer.is_write ? bytes_written : bytes_read) += page.bytes;
  std::unique_ptr<disk::Request> complete;
  {
    const std::lock_guard lock(mutex);
    files[transfer.file]->end(error == 0 ? transfer.bytes : 0);
    if (failure && !request.error) request.error = std::move(failure);
    if (--request.num_left > 0) return;
    complete = take_out(request);
  }
  const bool has_failed = complete->error != nullptr;
  complete->report();
  if (!has_failed) return;
  const std::lock_guard lock(mutex);
  failed.push_back(std::move(complete));
}

/// Of the block's requests, all of whose transfers have ended.
std::unique_ptr<disk::Request> DiskStore::Files::take_out(disk::Request& request) {
  disk::StoredBlock& block = *request.block;
  const auto place = std::ranges::find(block.requests, &request, &std::unique_ptr<disk::Request>::get);
  std::unique_ptr<disk::Request> taken = std::move(*place);
  block.requests.erase(place);
  if (block.is_released && block.requests.empty()) {
    forget(block);
  } else {
    start_ready(block);
  }
  if (--num_requests == 0) is_idle.notify_all();
  return taken;
}

void DiskStore::Files::forget(disk::StoredBlock& block) {
  free_pages(block.pages);
  blocks.erase(block.id);
}

DiskStore::DiskStore(Options options) : files_(std::make_unique<Files>(std::move(options))) {}
DiskStore::~DiskStore() = default;

DiskStore::Block DiskStore::make(int64_t bytes) {
  if (bytes < 0) refuse_call("make", fmt::format("{} bytes", bytes));
  const std::lock_guard lock(files_->mutex);
  disk::StoredBlock block = files_->make(bytes);
  const int64_t id = files_->next_id++;
  files_->blocks.emplace(id, std::move(block));
  files_->bytes_held += bytes;
  return {id, bytes};
}

void DiskStore::release(const Block& block) {
  const std::lock_guard lock(files_->mutex);
  disk::StoredBlock& stored = files_->find(block);
  files_->bytes_held -= stored.bytes;
  stored.is_released = true;
  if (stored.requests.empty()) files_->forget(stored);
}

Event DiskStore::write(const Block& block, int64_t offset, const void* memory, int64_t bytes) {
  auto* from = static_cast<std::byte*>(const_cast<void*>(memory));  // NOLINT: a transfer of a write only reads it
  return files_->request(block, offset, from, bytes, true);
}

Event DiskStore::read(const Block& block, int64_t offset, void* memory, int64_t bytes) {
  return files_->request(block, offset, static_cast<std::byte*>(memory), bytes, false);
}

int64_t DiskStore::bytes_written() const noexcept { return files_->bytes_written; }
int64_t DiskStore::bytes_read() const noexcept { return files_->bytes_read; }

int64_t DiskStore::bytes_held() const noexcept {
  const std::lock_guard lock(files_->mutex);
  return files_->bytes_held;
}

std::vector<DiskStore::Speed> DiskStore::speeds() const {
  const std::lock_guard lock(files_->mutex);
  const auto now = std::chrono::steady_clock::now();
  std::vector<Speed> result;
  for (const auto& one : files_->files) {
    const auto running = one->num_in_flight == 0 ? std::chrono::duration<double>(0) : now - one->busy_since;
    result.push_back({one->file.folder(), one->bytes, std::chrono::duration<double>(one->busy + running).count()});
  }
  return result;
}

std::vector<std::string> DiskStore::notes() const { return files_->notes; }

}  // namespace caravan
