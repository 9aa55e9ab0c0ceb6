#include "caravan/cost/published/table.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "caravan/base/byte_order_mark.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"

namespace caravan::published {
namespace {

constexpr size_t kLongestField = 500;

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kBlanks);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// The records of comma-separated values; a field in quotes may have commas, line ends and doubled quotes.
std::vector<std::vector<std::string>> parse_records(std::string_view text) {
  std::vector<std::vector<std::string>> records;
  std::vector<std::string> record;
  std::string field;
  bool is_quoted = false;
  const auto end_record = [&] {
    record.push_back(std::move(field));
    field.clear();
    const bool is_blank = record.size() == 1 && without_blanks(record.front()).empty();
    if (!is_blank) records.push_back(std::move(record));
    record.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_quoted) {
      const bool is_doubled = c == '"' && i + 1 < text.size() && text[i + 1] == '"';
      if (c == '"' && !is_doubled) {
        is_quoted = false;
        continue;
      }
      i += is_doubled ? 1 : 0;
      field += c;
    } else if (c == '"' && without_blanks(field).empty()) {
      is_quoted = true;
      field.clear();
    } else if (c == ',') {
      record.push_back(std::move(field));
      field.clear();
    } else if (c == '\n') {
      end_record();
    } else {
      field += c;
    }
  }
  if (!field.empty() || !record.empty()) end_record();
  return records;
}

[[noreturn]] void refuse_table(const std::string& file, const std::string& fact, const std::string& action) {
  throw DataError({.op = "published runs", .subject = file, .fact = fact, .action = action});
}

}  // namespace

std::string Row::text(std::string_view column) const {
  const auto found = texts_.find(column);
  if (found == texts_.end()) return "";
  return std::string(without_blanks(std::string_view(found->second).substr(0, kLongestField)));
}

std::string Row::lower(std::string_view column) const {
  std::string text = this->text(column);
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::optional<double> Row::number(std::string_view column) const {
  std::string text = this->text(column);
  std::erase(text, ',');
  // strtod also reads "nan", "inf" and hexadecimal numbers, which nobody means here.
  const size_t digits = text.find_first_not_of("+-");
  if (digits == std::string::npos ||
      (std::isdigit(static_cast<unsigned char>(text[digits])) == 0 && text[digits] != '.')) {
    return std::nullopt;
  }
  if (text.find_first_of("xX") != std::string::npos) text.resize(text.find_first_of("xX"));
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> Row::whole(std::string_view column, int64_t most) const {
  const std::optional<double> value = number(column);
  if (!value || *value < 0.5) return std::nullopt;
  return static_cast<int64_t>(std::nearbyint(std::min(*value, static_cast<double>(most))));
}

bool Row::flag(std::string_view column, bool otherwise) const {
  const std::string text = lower(column);
  return text.empty() ? otherwise : text[0] == 'y' || text[0] == 't' || text[0] == '1';
}

const std::vector<std::string>& described_columns() {
  static const std::vector<std::string> columns{"framework",
                                                "model",
                                                "arch",
                                                "mlp",
                                                "tied_embeddings",
                                                "layers",
                                                "hidden",
                                                "heads",
                                                "kv_heads",
                                                "ffn",
                                                "vocab",
                                                "seq",
                                                "hw",
                                                "gpus_per_node",
                                                "inter_gbps_per_gpu",
                                                "precision",
                                                "num_gpus",
                                                "dp",
                                                "zero_stage",
                                                "sharding",
                                                "tp",
                                                "seq_parallel",
                                                "pp",
                                                "vpp",
                                                "cp",
                                                "schedule",
                                                "micro_batch",
                                                "num_microbatches",
                                                "global_batch",
                                                "recompute",
                                                "recompute_detail",
                                                "flash_attn",
                                                "offload",
                                                "stage",
                                                "mem_kind"};
  return columns;
}

std::vector<Row> parse_table(std::string_view text, const std::string& file) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::vector<std::vector<std::string>> records = parse_records(text);
  if (records.empty()) refuse_table(file, "is empty", "write a header and a row for each run");
  std::vector<std::string> columns;
  for (const std::string& name : records.front()) columns.emplace_back(without_blanks(name));
  const auto is_described = [](const std::string& name) {
    return std::ranges::find(described_columns(), name) != described_columns().end();
  };
  if (std::ranges::none_of(columns, is_described)) {
    refuse_table(file, "its first line has none of the columns that describe a run",
                 "name some of " + join(described_columns()));
  }
  if (records.size() == 1) refuse_table(file, "has a header and no row", "write a row for each run");
  std::vector<Row> rows;
  for (size_t i = 1; i < records.size(); ++i) {
    std::map<std::string, std::string, std::less<>> texts;
    for (size_t k = 0; k < std::min(columns.size(), records[i].size()); ++k) texts.emplace(columns[k], records[i][k]);
    rows.emplace_back(std::move(texts));
  }
  return rows;
}

std::vector<Row> read_table(const std::filesystem::path& file) {
  const MappedFile content(file, "published runs");
  return parse_table(content.text(), file.string());
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

bool has_word(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return has_word(text, word); });
}

}  // namespace caravan::published
