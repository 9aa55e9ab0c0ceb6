// The only source that includes Apache Arrow. See caravan/data/files/table.h.

#include <algorithm>
#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <functional>
#include <memory>
#include <optional>
#include <parquet/arrow/reader.h>
#include <parquet/schema.h>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "caravan/data/files/table.h"

namespace caravan {
namespace {

using Take = std::function<void(std::string_view text)>;

/// Returns batches of rows, one after the other, until there are none left.
using NextBatch = std::function<arrow::Result<std::shared_ptr<arrow::RecordBatch>>()>;

bool is_text(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW: return true;
    case arrow::Type::DICTIONARY: return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
    default: return false;
  }
}

/// The columns of text below `fields`, with the names of members after those of their columns.
void list_texts(const arrow::FieldVector& fields, const std::string& prefix, std::vector<std::string>& names) {
  for (const auto& field : fields) {
    if (is_text(*field->type())) names.push_back(prefix + field->name());
    if (field->type()->id() == arrow::Type::STRUCT) {
      list_texts(field->type()->fields(), prefix + field->name() + ".", names);
    }
  }
}

TableOutcome missing_column(const arrow::Schema& schema, const std::string& field) {
  TableOutcome outcome{.fact = "has no column of text " + field, .missing = field};
  list_texts(schema.fields(), "", outcome.columns);
  outcome.fact += outcome.columns.empty() ? ", and no other one: its columns are " : "; its columns are ";
  for (int i = 0; i < schema.num_fields(); ++i) {
    outcome.fact += (i == 0 ? "" : ", ") + schema.field(i)->name() + " (" + schema.field(i)->type()->ToString() + ")";
  }
  return outcome;
}

/// The column, or member of a column, of a batch that `field` names. Null if there is none. `path`: the names that
/// lead to it.
std::shared_ptr<arrow::Array> column_of(const arrow::RecordBatch& batch, const std::string& field,
                                        std::vector<std::string>& path) {
  if (auto column = batch.GetColumnByName(field)) {
    path.insert(path.begin(), field);
    return column;
  }
  for (size_t dot = field.find('.'); dot != std::string::npos; dot = field.find('.', dot + 1)) {
    const std::string first = field.substr(0, dot);
    const auto column = batch.GetColumnByName(first);
    if (column == nullptr || column->type_id() != arrow::Type::STRUCT) continue;
    const auto rows = arrow::RecordBatch::FromStructArray(column);
    if (!rows.ok()) continue;
    if (auto member = column_of(**rows, field.substr(dot + 1), path)) {
      path.insert(path.begin(), first);
      return member;
    }
  }
  return nullptr;
}

template <typename Texts>
void take_texts(const arrow::Array& column, const Take& take) {
  const auto& texts = static_cast<const Texts&>(column);
  for (int64_t row = 0; row < texts.length(); ++row) {
    if (texts.IsValid(row)) take(texts.GetView(row));
  }
}

/// The value of a row as JSON: null where there is none.
nlohmann::ordered_json value_of(const arrow::Array& column, int64_t row);

/// That of a text: JSON in it, as columns of tools have, stays text.
template <typename Texts>
nlohmann::ordered_json text_of(const arrow::Array& column, int64_t row) {
  return std::string(static_cast<const Texts&>(column).GetView(row));
}

template <typename Lists>
nlohmann::ordered_json list_of(const arrow::Array& column, int64_t row) {
  const auto& lists = static_cast<const Lists&>(column);
  auto list = nlohmann::ordered_json::array();
  for (int64_t i = lists.value_offset(row); i < lists.value_offset(row) + lists.value_length(row); ++i) {
    list.push_back(value_of(*lists.values(), i));
  }
  return list;
}

nlohmann::ordered_json object_of(const arrow::Array& column, int64_t row) {
  const auto& structs = static_cast<const arrow::StructArray&>(column);
  auto object = nlohmann::ordered_json::object();
  for (int i = 0; i < structs.num_fields(); ++i) {
    nlohmann::ordered_json value = value_of(*structs.field(i), row);
    const std::string& name = structs.struct_type()->field(i)->name();
    // A column of objects has every member of any of them. A message that calls a tool may have no content.
    if (!value.is_null() || name == "content") object[name] = std::move(value);
  }
  return object;
}

nlohmann::ordered_json value_of(const arrow::Array& column, int64_t row) {
  if (!column.IsValid(row)) return nullptr;
  switch (column.type_id()) {
    case arrow::Type::STRING: return text_of<arrow::StringArray>(column, row);
    case arrow::Type::LARGE_STRING: return text_of<arrow::LargeStringArray>(column, row);
    case arrow::Type::STRING_VIEW: return text_of<arrow::StringViewArray>(column, row);
    case arrow::Type::LIST: return list_of<arrow::ListArray>(column, row);
    case arrow::Type::LARGE_LIST: return list_of<arrow::LargeListArray>(column, row);
    case arrow::Type::STRUCT: return object_of(column, row);
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(column);
      return value_of(*coded.dictionary(), coded.GetValueIndex(row));
    }
    case arrow::Type::BOOL: return static_cast<const arrow::BooleanArray&>(column).Value(row);
    case arrow::Type::INT8: return static_cast<const arrow::Int8Array&>(column).Value(row);
    case arrow::Type::INT16: return static_cast<const arrow::Int16Array&>(column).Value(row);
    case arrow::Type::UINT8: return static_cast<const arrow::UInt8Array&>(column).Value(row);
    case arrow::Type::UINT16: return static_cast<const arrow::UInt16Array&>(column).Value(row);
    case arrow::Type::UINT32: return static_cast<const arrow::UInt32Array&>(column).Value(row);
    case arrow::Type::UINT64: return static_cast<const arrow::UInt64Array&>(column).Value(row);
    case arrow::Type::INT32: return static_cast<const arrow::Int32Array&>(column).Value(row);
    case arrow::Type::INT64: return static_cast<const arrow::Int64Array&>(column).Value(row);
    case arrow::Type::FLOAT: return static_cast<const arrow::FloatArray&>(column).Value(row);
    case arrow::Type::DOUBLE: return static_cast<const arrow::DoubleArray&>(column).Value(row);
    default: throw std::invalid_argument("has values of a kind that is not read: " + column.type()->ToString());
  }
}

/// A column of texts may have JSON in place of objects.
nlohmann::ordered_json parsed(nlohmann::ordered_json value) {
  if (!value.is_string()) return value;
  auto inner = nlohmann::ordered_json::parse(value.get_ref<const std::string&>(), nullptr, false);
  return inner.is_discarded() ? value : inner;
}

/// Returns whether it is a text column.
bool take_column(const arrow::Array& column, const Take& take) {
  switch (column.type_id()) {
    case arrow::Type::STRING: take_texts<arrow::StringArray>(column, take); return true;
    case arrow::Type::LARGE_STRING: take_texts<arrow::LargeStringArray>(column, take); return true;
    case arrow::Type::STRING_VIEW: take_texts<arrow::StringViewArray>(column, take); return true;
    default: break;
  }
  if (!is_text(*column.type())) return false;
  for (int64_t row = 0; row < column.length(); ++row) {  // coded by a dictionary
    const nlohmann::ordered_json value = value_of(column, row);
    if (!value.is_null()) take(value.get_ref<const std::string&>());
  }
  return true;
}

/// The values of a field, and the names that lead to them in an object.
struct FieldValues {
  std::string field;
  std::vector<std::string> path{};
  std::shared_ptr<arrow::Array> column{};
};

/// Nothing for a field that the batch has no column for.
std::optional<FieldValues> values_of(const arrow::RecordBatch& batch, const std::string& field) {
  FieldValues values{field};
  values.column = column_of(batch, field, values.path);
  if (values.column != nullptr) return values;
  values.path = {field.substr(0, field.find('.'))};
  values.column = batch.GetColumnByName(values.path.front());
  const bool may_be_json = values.column != nullptr && is_text(*values.column->type());  // which has the member
  return may_be_json ? std::optional(std::move(values)) : std::nullopt;
}

void add_value(const FieldValues& of, int64_t row, bool reads_json, nlohmann::ordered_json& object) {
  nlohmann::ordered_json* at = &object;
  for (size_t i = 0; i + 1 < of.path.size(); ++i) {
    at = &(*at)[of.path[i]];
    if (!at->is_object()) *at = nlohmann::ordered_json::object();
  }
  nlohmann::ordered_json value;
  try {
    value = value_of(*of.column, row);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("column " + of.field + " " + error.what());
  }
  if (value.is_null() && of.path.size() > 1) return;
  (*at)[of.path.back()] = reads_json ? parsed(std::move(value)) : std::move(value);
}

/// Takes each row of a batch. Returns the name of a needed column that is missing; "": none is.
std::string take_objects(const arrow::RecordBatch& batch, const TableColumns& wanted, const Take& take) {
  std::vector<FieldValues> all;
  for (const auto* fields : {&wanted.needed, &wanted.others}) {
    for (const std::string& field : *fields) {
      if (auto values = values_of(batch, field)) {
        all.push_back(*std::move(values));
      } else if (fields == &wanted.needed) {
        return field;
      }
    }
  }
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    auto object = nlohmann::ordered_json::object();
    for (const FieldValues& values : all) add_value(values, row, wanted.reads_json, object);
    take(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  return "";
}

/// What is read of a table.
struct Reading {
  std::string field;                                               ///< a column that must be there
  std::function<bool(std::string_view leaf)> needs;                ///< whether a leaf of a Parquet file is read
  std::function<std::string(const arrow::RecordBatch& rows)> use;  ///< returns the column they lack, or ""
  TableOutcome (*missing)(const arrow::Schema& schema, const std::string& field);
};

arrow::Result<TableOutcome> read_batches(const NextBatch& next, const Reading& reading) {
  while (true) {
    ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::RecordBatch> batch, next());
    if (batch == nullptr) return TableOutcome{};
    const std::string missing = reading.use(*batch);
    if (!missing.empty()) return reading.missing(*batch->schema(), missing);
  }
}

arrow::Result<TableOutcome> read_parquet(const std::shared_ptr<arrow::io::RandomAccessFile>& file,
                                         const Reading& reading) {
  ARROW_ASSIGN_OR_RAISE(const std::unique_ptr<parquet::arrow::FileReader> reader,
                        parquet::arrow::OpenFile(file, arrow::default_memory_pool()));
  const auto metadata = reader->parquet_reader()->metadata();
  std::vector<int> columns;
  for (int i = 0; i < metadata->num_columns(); ++i) {
    if (reading.needs(metadata->schema()->Column(i)->path()->ToDotString())) columns.push_back(i);
  }
  std::shared_ptr<arrow::Schema> schema;
  ARROW_RETURN_NOT_OK(reader->GetSchema(&schema));
  if (columns.empty()) return reading.missing(*schema, reading.field);
  std::vector<int> groups;
  for (int i = 0; i < metadata->num_row_groups(); ++i) groups.push_back(i);
  ARROW_ASSIGN_OR_RAISE(const std::unique_ptr<arrow::RecordBatchReader> batches,
                        reader->GetRecordBatchReader(groups, columns));
  ARROW_ASSIGN_OR_RAISE(const TableOutcome outcome, read_batches([&] { return batches->Next(); }, reading));
  // A batch has only the requested columns.
  return outcome.fact.empty() ? outcome : reading.missing(*schema, outcome.missing);
}

arrow::Result<TableOutcome> read_arrow_file(const std::shared_ptr<arrow::io::RandomAccessFile>& file,
                                            const Reading& reading) {
  ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchFileReader::Open(file));
  int index = 0;
  const auto next = [&]() -> arrow::Result<std::shared_ptr<arrow::RecordBatch>> {
    if (index == reader->num_record_batches()) return nullptr;
    return reader->ReadRecordBatch(index++);
  };
  return read_batches(next, reading);
}

arrow::Result<TableOutcome> read_any(const std::string& path, const Reading& reading) {
  ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::io::RandomAccessFile> file,
                        arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ));
  ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::Buffer> beginning, file->ReadAt(0, 8));
  const auto magic = static_cast<std::string_view>(*beginning);
  if (magic.starts_with("PAR1")) return read_parquet(file, reading);
  if (magic.starts_with("ARROW1")) return read_arrow_file(file, reading);
  ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchStreamReader::Open(file));
  return read_batches([&] { return reader->Next(); }, reading);
}

TableOutcome missing_objects(const arrow::Schema& schema, const std::string& field) {
  TableOutcome outcome{
      .fact = "has no column " + field + "; its columns are ", .missing = field, .columns = schema.field_names()};
  for (size_t i = 0; i < outcome.columns.size(); ++i) outcome.fact += (i == 0 ? "" : ", ") + outcome.columns[i];
  return outcome;
}

void read(const std::string& path, const Reading& reading, TableOutcome& outcome) {
  try {
    const arrow::Result<TableOutcome> result = read_any(path, reading);
    outcome = result.ok() ? *result : TableOutcome{.fact = result.status().ToString()};
  } catch (const std::invalid_argument& error) {
    outcome = {.fact = error.what()};
  }
}

}  // namespace
}  // namespace caravan

extern "C" __attribute__((visibility("default"))) void caravan_read_table(
    const std::string& path, const std::string& field, const std::function<void(std::string_view text)>& take,
    caravan::TableOutcome& outcome) {
  const auto needs = [&](std::string_view leaf) { return leaf == field; };
  const auto use = [&](const arrow::RecordBatch& rows) {
    std::vector<std::string> path;
    const auto column = caravan::column_of(rows, field, path);
    return column != nullptr && caravan::take_column(*column, take) ? std::string() : field;
  };
  caravan::read(path, {field, needs, use, caravan::missing_column}, outcome);
}

extern "C" __attribute__((visibility("default"))) void caravan_read_table_objects(
    const std::string& path, const caravan::TableColumns& columns,
    const std::function<void(std::string_view json)>& take, caravan::TableOutcome& outcome) {
  const auto is_below = [](std::string_view name, std::string_view of) {
    return name.starts_with(of) && (name.size() == of.size() || name[of.size()] == '.');
  };
  const auto needs = [&](std::string_view leaf) {  // of a text, its JSON may have the field
    const auto is_of = [&](const std::string& field) { return is_below(leaf, field) || is_below(field, leaf); };
    return std::ranges::any_of(columns.needed, is_of) || std::ranges::any_of(columns.others, is_of);
  };
  const auto use = [&](const arrow::RecordBatch& rows) { return caravan::take_objects(rows, columns, take); };
  caravan::read(path, {columns.needed.front(), needs, use, caravan::missing_objects}, outcome);
}
