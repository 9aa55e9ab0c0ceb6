#include "caravan/data/files/table.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/own_file.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

constexpr std::string_view kParquet = "PAR1";
constexpr std::string_view kArrowFile = "ARROW1";
constexpr std::string_view kArrowStream = "\xff\xff\xff\xff"sv;

/// Beside the program; otherwise its name, for the dynamic linker's search.
std::string object_path() {
  constexpr const char* kFile = "libcaravan_tables.so";
  const fs::path own = own_file(kFile);
  return own.empty() ? kFile : own.string();
}

struct TableObject {
  ReadTable* read = nullptr;
  ReadTableObjects* read_objects = nullptr;
  std::string missing;  ///< why it is missing
};

const TableObject& table_object() {
  static const TableObject object = [] {
    void* handle = dlopen(object_path().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return TableObject{.missing = dlerror()};
    auto* read = reinterpret_cast<ReadTable*>(dlsym(handle, "caravan_read_table"));
    if (read == nullptr) return TableObject{.missing = dlerror()};
    auto* read_objects = reinterpret_cast<ReadTableObjects*>(dlsym(handle, "caravan_read_table_objects"));
    if (read_objects == nullptr) return TableObject{.missing = dlerror()};
    return TableObject{.read = read, .read_objects = read_objects, .missing = ""};
  }();
  return object;
}

void require_tables(const fs::path& path) {
  if (table_object().read != nullptr) return;
  throw DataError({"data", path.string(), "is a table (Parquet or Arrow), and this build reads no tables",
                   table_object().missing, kWithoutTables});
}

/// `key`: what names the column in a recipe; "": one of several keys.
void check_outcome(const fs::path& path, std::string_view key, const TableOutcome& outcome) {
  if (outcome.fact.empty()) return;
  std::string action = "name a whole file, and columns of texts, numbers, lists or objects";
  if (!outcome.columns.empty()) {
    const std::string& column = nearest(outcome.missing, outcome.columns);
    action = key.empty() ? fmt::format("name a column of the table, such as {}", column)
                         : fmt::format("name another column, such as {} = \"{}\"", key, column);
  }
  throw DataError({"data", path.string(), outcome.fact, "", std::move(action)});
}

}  // namespace

bool is_table(std::string_view content) {
  return content.starts_with(kParquet) || content.starts_with(kArrowFile) || content.starts_with(kArrowStream);
}

bool has_table_name(const fs::path& path) { return path.extension() == ".parquet" || path.extension() == ".arrow"; }

bool reads_tables() { return table_object().read != nullptr; }

void read_table(const fs::path& path, const std::string& field,
                const std::function<void(std::string_view text)>& take) {
  require_tables(path);
  TableOutcome outcome;
  table_object().read(path.string(), field, take, outcome);
  check_outcome(path, "data.field", outcome);
}

void read_table_objects(const fs::path& path, const TableColumns& columns, const std::string& key,
                        const std::function<void(int64_t number, std::string_view json)>& take) {
  require_tables(path);
  TableOutcome outcome;
  int64_t number = 0;
  table_object().read_objects(
      path.string(), columns, [&](std::string_view json) { take(++number, json); }, outcome);
  check_outcome(path, key, outcome);
}

}  // namespace caravan
