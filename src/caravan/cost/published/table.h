#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace caravan::published {

/// A row of a table of published runs: texts by column. Any may be missing, blank or odd; nothing here throws.
class Row {
 public:
  Row() = default;
  Row(std::map<std::string, std::string, std::less<>> texts) : texts_(std::move(texts)) {}  // NOLINT: a list of texts

  /// Without blanks around it, at most 500 characters; "" if it is missing.
  std::string text(std::string_view column) const;
  /// The same in lower case.
  std::string lower(std::string_view column) const;
  /// The number that the text is or begins with, without commas: "1,024", "2.5 GB".
  std::optional<double> number(std::string_view column) const;
  /// The same, if it is positive, rounded, and at most `most`.
  std::optional<int64_t> whole(std::string_view column, int64_t most = 1'000'000'000) const;
  /// "Y", "yes", "true", "1".
  bool flag(std::string_view column, bool otherwise) const;

 private:
  std::map<std::string, std::string, std::less<>> texts_;
};

/// Columns of which a table needs at least one. Others may tell more: "note", "table".
const std::vector<std::string>& described_columns();

/// Reads comma-separated values with a header. Fields may be in quotes. Throws DataError, naming the file: if it cannot
/// be read, has no header or no row, or none of described_columns().
std::vector<Row> read_table(const std::filesystem::path& file);
std::vector<Row> parse_table(std::string_view text, const std::string& file);

/// A field in quotes if it needs them.
std::string csv_field(const std::string& text);

// Words in texts of tables.

bool has_word(std::string_view text, std::string_view word);
bool has_any(std::string_view text, std::initializer_list<std::string_view> words);

}  // namespace caravan::published
