#include "caravan/formats/checkpoint/verify.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/system/mapped_pages.h"
#include "caravan/comm/calls/agree.h"

namespace caravan {

namespace fs = std::filesystem;

namespace {

/// The hash of a file that may be larger than memory.
ContentHash hash_of_file(const MappedFile& file) {
  constexpr size_t kBytesAtOnce = 8 << 20;
  ContentHasher hasher;
  for (std::span<const std::byte> left = file.bytes(); !left.empty();) {
    const std::span<const std::byte> some = left.first(std::min(left.size(), kBytesAtOnce));
    hasher.update(some);
    drop_mapped_pages(some);
    left = left.subspan(some.size());
  }
  return hasher.value();
}

}  // namespace

void verify_file(const fs::path& folder, const std::string& name, const ManifestFile& listed) {
  const fs::path path = folder / name;
  if (hash_of_file(MappedFile(path, "checkpoint")).hex() == listed.hash) return;
  throw DataError({"checkpoint", path.string(), "does not have the hash that was written: it was altered", "",
                   "the checkpoint is damaged: use an older one of the same run"});
}

void verify_files(const fs::path& folder, const std::map<std::string, ManifestFile>& files, Communicator& world) {
  all_or_none(
      world,
      [&] {
        for (const std::string& name : files_of_rank(files, world.rank(), world.size()))
          verify_file(folder, name, files.at(name));
      },
      "checkpoint");
}

std::vector<std::string> files_of_rank(const std::map<std::string, ManifestFile>& files, int rank, int num_ranks) {
  std::vector<std::pair<int64_t, std::string>> largest_first;
  for (const auto& [name, file] : files) largest_first.emplace_back(-file.bytes, name);
  std::ranges::sort(largest_first);
  using Load = std::pair<int64_t, int>;  // bytes so far, and the rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (int n = 0; n < num_ranks; ++n) least.emplace(0, n);
  std::vector<std::string> mine;
  for (const auto& [bytes, name] : largest_first) {
    const auto [load, next] = least.top();
    least.pop();
    least.emplace(load - bytes, next);
    if (next == rank) mine.push_back(name);
  }
  return mine;
}

}  // namespace caravan
