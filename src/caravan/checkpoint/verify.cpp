#include "caravan/checkpoint/verify.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/comm/agree.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// An error as text, for the other ranks.
std::string pack(const ErrorText& text, bool is_data_error) {
  const json packed{{"is_data_error", is_data_error},
                    {"op", text.op},
                    {"subject", text.subject},
                    {"fact", text.fact},
                    {"action", text.action}};
  return packed.dump(-1, ' ', false, json::error_handler_t::replace);  // a path need not be UTF-8
}

[[noreturn]] void throw_packed(const std::string& packed, std::string where) {
  const json root = json::parse(packed);
  ErrorText text{root["op"].get<std::string>(), root["subject"].get<std::string>(), root["fact"].get<std::string>(),
                 std::move(where), root["action"].get<std::string>()};
  if (root["is_data_error"].get<bool>()) throw DataError(std::move(text));
  throw ResourceError(std::move(text));
}

/// The first error of these files, packed; "" if there is none.
std::string first_failure(const fs::path& folder, const std::map<std::string, ManifestFile>& files,
                          const std::vector<std::string>& names) {
  std::string current;
  try {
    for (const std::string& name : names) {
      current = name;
      verify_file(folder, name, files.at(name));
    }
  } catch (const DataError& error) {
    return pack(error.text(), true);
  } catch (const Error& error) {
    return pack(error.text(), false);
  } catch (const std::exception& error) {
    return pack({"checkpoint", (folder / current).string(), error.what(), "", ""}, false);
  }
  return "";
}

}  // namespace

void verify_file(const fs::path& folder, const std::string& name, const ManifestFile& listed) {
  const fs::path path = folder / name;
  if (content_hash(MappedFile(path, "checkpoint").bytes()).hex() == listed.hash) return;
  throw DataError({"checkpoint", path.string(), "does not have the hash that was written: it was altered", "",
                   "the checkpoint is damaged: use an older one of the same run"});
}

void verify_files(const fs::path& folder, const std::map<std::string, ManifestFile>& files, Communicator& world) {
  const std::string mine = first_failure(folder, files, files_of_rank(files, world.rank(), world.size()));
  const std::vector<std::string> failures = gather_texts(world, mine, "checkpoint");
  const auto first = std::ranges::find_if(failures, [](const std::string& text) { return !text.empty(); });
  if (first == failures.end()) return;
  throw_packed(*first, world.size() == 1 ? "" : fmt::format("read by rank {}", first - failures.begin()));
}

std::vector<std::string> files_of_rank(const std::map<std::string, ManifestFile>& files, int rank, int num_ranks) {
  std::vector<std::pair<int64_t, std::string>> largest_first;
  for (const auto& [name, file] : files) largest_first.emplace_back(-file.bytes, name);
  std::ranges::sort(largest_first);
  std::vector<int64_t> load(static_cast<size_t>(num_ranks));
  std::vector<std::string> mine;
  for (const auto& [bytes, name] : largest_first) {
    const auto least = std::ranges::min_element(load);
    *least -= bytes;
    if (least - load.begin() == rank) mine.push_back(name);
  }
  return mine;
}

}  // namespace caravan
