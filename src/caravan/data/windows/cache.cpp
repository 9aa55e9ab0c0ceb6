#include "caravan/data/windows/cache.h"

#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kPollInterval{20};
/// Age from which a half-written file is removed if no process holds its lock.
constexpr int64_t kStaleAfterS = 60;

bool is_hex(std::string_view text, size_t length) {
  return text.size() == length && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Whether `name` is the name of a finished file of the cache.
bool is_cache_name(std::string_view name) {
  constexpr std::string_view kTokens = ".tokens";
  constexpr std::string_view kText = ".text";
  constexpr std::string_view kShard = ".shard";
  constexpr size_t kHash = 32;
  if (name.ends_with(kTokens)) return is_hex(name.substr(0, name.size() - kTokens.size()), kHash);
  if (name.ends_with(kShard)) return is_hex(name.substr(0, name.size() - kShard.size()), kHash);
  if (name.ends_with(kText)) return is_hex(name.substr(0, name.size() - kText.size()), kHash);
  const auto is_between = [&](std::string_view prefix, std::string_view suffix) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) return false;
    return is_hex(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()), kHash);
  };
  return is_between("tokenizer-", ".json") || is_between("hardware-", ".toml");
}

/// The finished file of which `name` is a half-written form, "" if it is not one: see name_aside.
std::string finished_name(std::string_view name) {
  constexpr std::string_view kAside = ".tmp";
  constexpr size_t kRandom = 16;
  if (!name.ends_with(kAside)) return "";
  name.remove_suffix(kAside.size());
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || !is_hex(name.substr(dot + 1), kRandom)) return "";
  name = name.substr(0, dot);
  return is_cache_name(name) ? std::string(name) : "";
}

fs::path lock_path(const fs::path& path) { return path.string() + ".lock"; }

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    all.push_back(at->path());
  return all;
}

void remove_half_written(const fs::path& path) {
  std::error_code ignored;
  for (const fs::path& file : files_of(path.parent_path())) {
    if (finished_name(file.filename().string()) == path.filename()) fs::remove(file, ignored);
  }
}

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Leftovers of killed processes: half-written files, and lock files that no process holds. On a file system without
/// locks a live builder cannot be detected, so the empty lock files stay.
void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::path& file : files_of(folder)) {
    const std::string name = file.filename().string();
    struct stat status {};
    const bool is_old = stat(file.c_str(), &status) == 0 && seconds_now() - status.st_mtime >= kStaleAfterS;
    if (!is_old) continue;
    if (name.ends_with(".lock") && is_cache_name(std::string_view(name).substr(0, name.size() - 5))) {
      const auto lock = CacheLock::try_exclusive(file);
      if (lock && lock->excludes_others()) fs::remove(file, ignored);
    } else if (const std::string finished = finished_name(name); !finished.empty()) {
      const fs::path lock_file = lock_path(folder / finished);
      const bool is_being_built = fs::exists(lock_file, ignored) && !CacheLock::try_exclusive(lock_file);
      if (!is_being_built) fs::remove(file, ignored);
    }
  }
}

bool remove_unused(const fs::path& path) {
  const auto lock = CacheLock::try_exclusive(path);
  std::error_code error;
  return lock && fs::remove(path, error);
}

/// In the order of list_cache, without in_use.
std::vector<CacheFile> list_unlocked(const fs::path& folder) {
  std::vector<CacheFile> all;
  for (const fs::path& file : files_of(folder)) {
    struct stat status {};
    if (!is_cache_name(file.filename().string()) || stat(file.c_str(), &status) != 0) continue;
    all.push_back(
        {.path = file, .bytes = status.st_size, .last_used_s = std::max(status.st_atim.tv_sec, status.st_mtim.tv_sec)});
  }
  std::sort(all.begin(), all.end(), [](const CacheFile& a, const CacheFile& b) {
    const bool a_is_shard = a.path.extension() == ".shard";
    if (a_is_shard != (b.path.extension() == ".shard")) return !a_is_shard;
    return a.last_used_s != b.last_used_s ? a.last_used_s < b.last_used_s : a.path < b.path;
  });
  return all;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  throw ResourceError({.op = "cache",
                       .subject = folder.string(),
                       .fact = fmt::format("cannot be created: {}", error.message()),
                       .action = "set CARAVAN_CACHE to a folder that you may write to"});
}

/// Waits for the right to build `path`.
class BuildLock {
 public:
  BuildLock(const fs::path& path, DataObserver& observer) : path_(lock_path(path)) {
    bool is_waiting = false;
    while (true) {
      if (auto lock = CacheLock::try_create(path_)) {
        lock_ = std::make_unique<const CacheLock>(std::move(*lock));
        return;
      }
      if (!is_waiting) observer.begin("waiting for another process that prepares the same text", 0);
      is_waiting = true;
      observer.advance(0);
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  ~BuildLock() { unlink(path_.c_str()); }
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

 private:
  fs::path path_;
  std::unique_ptr<const CacheLock> lock_;
};

}  // namespace

std::vector<CacheFile> list_cache(const fs::path& folder) {
  std::vector<CacheFile> all = list_unlocked(folder);
  for (CacheFile& file : all) file.in_use = !CacheLock::try_exclusive(file.path).has_value();
  return all;
}

CacheRemoval trim_cache(const fs::path& folder, std::optional<int64_t> limit_bytes) {
  remove_leftovers(folder);
  const std::vector<CacheFile> files = list_unlocked(folder);
  CacheRemoval removal;
  for (const CacheFile& file : files) removal.bytes_left += file.bytes;
  for (const CacheFile& file : files) {
    if (!limit_bytes || removal.bytes_left <= *limit_bytes) break;
    if (!remove_unused(file.path)) continue;
    ++removal.files;
    removal.bytes += file.bytes;
    removal.bytes_left -= file.bytes;
  }
  return removal;
}

void CacheTrimmer::added(int64_t bytes) {
  if (!limit_) return;
  room_ -= bytes;
  if (room_ >= 0) return;
  ++num_trims_;
  const int64_t reserve = *limit_ / 64;
  room_ = std::max(*limit_ - trim_cache(folder_, *limit_ - reserve).bytes_left, reserve);
}

CacheRemoval clear_cache(const fs::path& folder) { return trim_cache(folder, 0); }

std::shared_ptr<const CacheLock> use_cache_file(const fs::path& path) {
  auto lock = CacheLock::share(path);
  if (!lock) return nullptr;
  // Set here, because most file systems are mounted without exact access times.
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
  utimensat(AT_FDCWD, path.c_str(), times, 0);
  return std::make_shared<const CacheLock>(std::move(*lock));
}

void find_or_build(const fs::path& path, const std::function<bool()>& find, const std::function<void()>& build,
                   DataObserver& observer) {
  if (find()) return;
  make_folder(path.parent_path());
  const BuildLock lock(path, observer);
  if (find()) return;
  remove_half_written(path);
  build();
}

}  // namespace caravan
