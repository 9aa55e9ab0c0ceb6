#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

// Tables with a text in each row: Parquet files, and Arrow's files and streams, which Hugging Face's `datasets` writes.
// Apache Arrow reads them, in a separate optional library (libcaravan_tables.so) that is loaded on demand.

/// Whether `content` begins like such a file.
bool is_table(std::string_view content);
/// By its name: .parquet or .arrow.
bool has_table_name(const std::filesystem::path& path);

/// Whether this build has the library, and what to do if it does not.
bool reads_tables();
inline constexpr const char* kWithoutTables =
    "write them as JSON lines: datasets.load_from_disk(FOLDER).to_json(\"data.jsonl\"), or "
    "datasets.load_dataset(FOLDER); or build with Apache Arrow: CARAVAN_DEPS=FOLDER, see HACKING.md";

/// Calls `take` with the text in column `field` of each row of the table `path`; "meta.text" is a member of a member.
/// Rows without a value are left out. Uses the memory of one group of rows. Throws DataError naming `path` and its
/// columns if it has no such text column or is damaged, and for any table if this build cannot read tables.
void read_table(const std::filesystem::path& path, const std::string& field,
                const std::function<void(std::string_view text)>& take);

/// Of which columns read_table_objects makes objects. "meta.label" is a member of the column meta, unless there is a
/// column of that name.
struct TableColumns {
  std::vector<std::string> needed;    ///< a table without one of them is refused
  std::vector<std::string> others{};  ///< read if the table has them
  bool reads_json = false;            ///< a text that is JSON becomes it: columns of messages may have it
};

/// Calls `take` with each row of the table as a JSON object of these columns. A member of an object without a value is
/// left out; `number` counts rows from 1. Throws as read_table; `key` is what names the column in a recipe; "": one of
/// several keys.
void read_table_objects(const std::filesystem::path& path, const TableColumns& columns, const std::string& key,
                        const std::function<void(int64_t number, std::string_view json)>& take);

/// The library's result for a table: see caravan_read_table in table_object.cpp.
struct TableOutcome {
  std::string fact;                    ///< what is wrong; "": nothing
  std::string missing{};               ///< the column that the table lacks
  std::vector<std::string> columns{};  ///< the existing columns, if it lacks one
};
using ReadTable = void(const std::string& path, const std::string& field,
                       const std::function<void(std::string_view text)>& take, TableOutcome& outcome);
using ReadTableObjects = void(const std::string& path, const TableColumns& columns,
                              const std::function<void(std::string_view json)>& take, TableOutcome& outcome);

}  // namespace caravan
