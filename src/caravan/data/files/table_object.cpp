// The only source that includes Apache Arrow. See caravan/data/files/table.h.

#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <memory>
#include <parquet/arrow/reader.h>
#include <parquet/schema.h>

#include "caravan/data/files/table.h"

namespace caravan {
namespace {

using Take = std::function<void(std::string_view text)>;

/// Returns batches of rows, one after the other, until there are none left.
using NextBatch = std::function<arrow::Result<std::shared_ptr<arrow::RecordBatch>>()>;

bool is_text(const arrow::DataType& type) {
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING ||
         type.id() == arrow::Type::STRING_VIEW;
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
  TableOutcome outcome{.fact = "has no column of text " + field, .columns = {}};
  list_texts(schema.fields(), "", outcome.columns);
  outcome.fact += outcome.columns.empty() ? ", and no other one: its columns are " : "; its columns are ";
  for (int i = 0; i < schema.num_fields(); ++i) {
    outcome.fact += (i == 0 ? "" : ", ") + schema.field(i)->name() + " (" + schema.field(i)->type()->ToString() + ")";
  }
  return outcome;
}

/// The column, or member of a column, of a batch that `field` names. Null if there is none.
std::shared_ptr<arrow::Array> column_of(const arrow::RecordBatch& batch, const std::string& field) {
  if (auto column = batch.GetColumnByName(field)) return column;
  for (size_t dot = field.find('.'); dot != std::string::npos; dot = field.find('.', dot + 1)) {
    const auto column = batch.GetColumnByName(field.substr(0, dot));
    if (column == nullptr || column->type_id() != arrow::Type::STRUCT) continue;
    const auto rows = arrow::RecordBatch::FromStructArray(column);
    if (!rows.ok()) continue;
    if (auto member = column_of(**rows, field.substr(dot + 1))) return member;
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

/// Returns whether it is a text column.
bool take_column(const arrow::Array& column, const Take& take) {
  switch (column.type_id()) {
    case arrow::Type::STRING: take_texts<arrow::StringArray>(column, take); return true;
    case arrow::Type::LARGE_STRING: take_texts<arrow::LargeStringArray>(column, take); return true;
    case arrow::Type::STRING_VIEW: take_texts<arrow::StringViewArray>(column, take); return true;
    default: return false;
  }
}

arrow::Result<TableOutcome> read_batches(const NextBatch& next, const std::string& field, const Take& take) {
  while (true) {
    ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::RecordBatch> batch, next());
    if (batch == nullptr) return TableOutcome{};
    const auto column = column_of(*batch, field);
    if (column == nullptr || !take_column(*column, take)) return missing_column(*batch->schema(), field);
  }
}

arrow::Result<TableOutcome> read_parquet(const std::shared_ptr<arrow::io::RandomAccessFile>& file,
                                         const std::string& field, const Take& take) {
  ARROW_ASSIGN_OR_RAISE(const std::unique_ptr<parquet::arrow::FileReader> reader,
                        parquet::arrow::OpenFile(file, arrow::default_memory_pool()));
  const auto metadata = reader->parquet_reader()->metadata();
  std::vector<int> columns;
  for (int i = 0; i < metadata->num_columns(); ++i) {
    if (metadata->schema()->Column(i)->path()->ToDotString() == field) columns.push_back(i);
  }
  std::shared_ptr<arrow::Schema> schema;
  ARROW_RETURN_NOT_OK(reader->GetSchema(&schema));
  if (columns.empty()) return missing_column(*schema, field);
  std::vector<int> groups;
  for (int i = 0; i < metadata->num_row_groups(); ++i) groups.push_back(i);
  ARROW_ASSIGN_OR_RAISE(const std::unique_ptr<arrow::RecordBatchReader> batches,
                        reader->GetRecordBatchReader(groups, columns));
  ARROW_ASSIGN_OR_RAISE(const TableOutcome outcome, read_batches([&] { return batches->Next(); }, field, take));
  // A batch has only the requested column.
  return outcome.fact.empty() ? outcome : missing_column(*schema, field);
}

arrow::Result<TableOutcome> read_arrow_file(const std::shared_ptr<arrow::io::RandomAccessFile>& file,
                                            const std::string& field, const Take& take) {
  ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchFileReader::Open(file));
  int index = 0;
  const auto next = [&]() -> arrow::Result<std::shared_ptr<arrow::RecordBatch>> {
    if (index == reader->num_record_batches()) return nullptr;
    return reader->ReadRecordBatch(index++);
  };
  return read_batches(next, field, take);
}

arrow::Result<TableOutcome> read_any(const std::string& path, const std::string& field, const Take& take) {
  ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::io::RandomAccessFile> file,
                        arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ));
  ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::Buffer> beginning, file->ReadAt(0, 8));
  const auto magic = static_cast<std::string_view>(*beginning);
  if (magic.starts_with("PAR1")) return read_parquet(file, field, take);
  if (magic.starts_with("ARROW1")) return read_arrow_file(file, field, take);
  ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchStreamReader::Open(file));
  return read_batches([&] { return reader->Next(); }, field, take);
}

}  // namespace
}  // namespace caravan

extern "C" __attribute__((visibility("default"))) void caravan_read_table(
    const std::string& path, const std::string& field, const std::function<void(std::string_view text)>& take,
    caravan::TableOutcome& outcome) {
  const arrow::Result<caravan::TableOutcome> result = caravan::read_any(path, field, take);
  outcome = result.ok() ? *result : caravan::TableOutcome{.fact = result.status().ToString(), .columns = {}};
}
