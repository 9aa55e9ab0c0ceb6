#include <array>
#include <ctime>
#include <optional>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/text.h"
#include "caravan/data/windows/cache.h"

namespace caravan::app {
namespace {

std::string limit_text(std::optional<int64_t> bytes) { return bytes ? "limit " + format_bytes(*bytes) : "no limit"; }

std::string local_time(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  std::array<char, 32> text{};
  if (::localtime_r(&time, &parts) != nullptr) std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &parts);
  return text.data();
}

void print_size(const DataFolders& folders, const std::vector<CacheFile>& files) {
  int64_t bytes = 0;
  for (const CacheFile& file : files) bytes += file.bytes;
  fmt::print("{}: {} files, {} ({})\n", folders.cache.string(), files.size(), format_bytes(bytes),
             limit_text(folders.cache_limit_bytes));
}

void print_files(const std::vector<CacheFile>& files) {
  for (const CacheFile& file : files) {
    fmt::print("{:>12}  used {}  {}{}\n", format_bytes(file.bytes), local_time(file.last_used_s),
               file.path.filename().string(), file.in_use ? "  in use" : "");
  }
}

void clear(const DataFolders& folders) {
  const CacheRemoval removal = clear_cache(folders.cache);
  fmt::print("{}: removed {} files, {}\n", folders.cache.string(), removal.files, format_bytes(removal.bytes));
  if (removal.bytes_left > 0) fmt::print("{} are in use and stay\n", format_bytes(removal.bytes_left));
}

}  // namespace

int cache(const CacheArguments& arguments) {
  const DataFolders folders = data_folders();
  switch (arguments.action) {
    case CacheArguments::Action::list: {
      const std::vector<CacheFile> files = list_cache(folders.cache);
      print_files(files);
      print_size(folders, files);
      break;
    }
    case CacheArguments::Action::size: print_size(folders, list_cache(folders.cache)); break;
    case CacheArguments::Action::clear: clear(folders); break;
  }
  return 0;
}

}  // namespace caravan::app
