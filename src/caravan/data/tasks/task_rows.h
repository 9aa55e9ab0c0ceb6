#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "caravan/base/content_hash.h"
#include "caravan/data/windows/data_observer.h"

namespace caravan {

class WholeDocuments;

/// What the rows of a task have beside ids and labels.
struct RowShape {
  int64_t length = 0;       ///< tokens of a row
  int64_t num_sources = 0;  ///< positions at the front that the encoder of an encoder-decoder reads
  bool has_documents = false;
  bool has_positions = false;
  bool has_token_types = false;
  int64_t num_sequences = 1;  ///< equally long, of which a row is made, and which the model reads apart
};

/// Rows of equal length, row-major [rows, length] each, of a step or of an evaluation.
///   ids          tokens that the model reads
///   labels       the target at each position, kIgnoredLabel for none
///   documents    for rows with several documents, or with padding: tokens see those of equal number only
///   positions    of packed documents; else positions are 0, 1, ..
///   token_types  of pairs of texts: which of them a token belongs to
/// The last three are empty unless RowShape has them.
struct RowBuffers {
  std::span<int64_t> ids;
  std::span<int64_t> labels;
  std::span<int64_t> documents{};
  std::span<int64_t> positions{};
  std::span<int64_t> token_types{};

  /// The number of rows. Throws ShapeError unless all buffers that `shape` asks for have the same whole number of rows.
  int64_t num_rows(const RowShape& shape) const;
  RowBuffers row(int64_t index, int64_t length) const;
};

/// Calls fill(index, its buffers) for each row.
template <class Fill>
void for_each_row(const RowBuffers& rows, const RowShape& shape, const Fill& fill) {
  const int64_t count = rows.num_rows(shape);
  for (int64_t row = 0; row < count; ++row) fill(row, rows.row(row, shape.length));
}

/// The rows of a training run, whatever its task (data.task). Sample k, where k = step * global_batch + row in the
/// global batch, depends only on (data, task, seed, k): not on the number of ranks, on accumulation or on restarts. Any
/// number of threads may read them.
class TaskRows {
 public:
  TaskRows() = default;
  TaskRows(const TaskRows&) = default;
  TaskRows& operator=(const TaskRows&) = default;
  virtual ~TaskRows() = default;

  virtual RowShape shape() const = 0;
  /// Fills rows: row r has sample first + r. Throws ShapeError for buffers of other sizes. Waits for streamed texts, as
  /// prepare() does.
  virtual void fill(int64_t first, const RowBuffers& rows) const = 0;
  /// Targets of the samples [first, first + rows), exactly.
  virtual int64_t num_targets(int64_t first, int64_t rows) const = 0;

  /// The position of a run as stored in checkpoints: tokens of all rows before `sample`.
  int64_t position(int64_t sample) const { return sample * shape().length; }

  struct Draw {
    size_t source;
    int64_t sample;  ///< of this source
  };
  virtual Draw draw(int64_t sample) const = 0;
  /// The number of samples of each source before `sample`.
  virtual std::vector<int64_t> drawn(int64_t sample) const = 0;
  /// How many epochs of a source this many of its samples are. Nothing for a streamed one that is not completely known.
  virtual std::optional<double> epochs(size_t source, int64_t samples) const = 0;

  /// A shard of a streamed text, for comparing what ranks have read.
  struct SeenShard {
    std::string name;
    ContentHash content;
  };
  /// Waits until the samples [first, end) of streamed texts can be filled, and returns their shards. Samples of other
  /// texts always can. Throws as StreamedWindows::window.
  virtual std::vector<SeenShard> prepare(int64_t /*first*/, int64_t /*end*/,
                                         DataObserver& /*observer*/ = DataObserver::none()) const {
    return {};
  }
  /// Whether all samples before `end` have been prepared; the same on ranks that have prepared the same samples.
  virtual bool is_ready(int64_t /*end*/) const { return true; }

  /// The sequences of a source of whole documents; null if its rows are something else, or streamed.
  virtual const WholeDocuments* whole_documents(size_t /*source*/) const { return nullptr; }
  /// What the user should know of the rows. Of streamed texts: of the first shard, once it has been prepared.
  virtual std::vector<std::string> notes() const { return {}; }
};

/// The rows of an evaluation, in order. They are the same in every evaluation and every run of the same data and task:
/// random choices have a seed of their own.
class ValidationRows {
 public:
  ValidationRows() = default;
  ValidationRows(const ValidationRows&) = default;
  ValidationRows& operator=(const ValidationRows&) = default;
  virtual ~ValidationRows() = default;

  virtual RowShape shape() const = 0;
  virtual int64_t size() const = 0;
  /// Fills row r with row first + r. Rows from size() on are padding without targets, so that every rank can fill the
  /// same number of rows.
  virtual void fill(int64_t first, const RowBuffers& rows) const = 0;
  /// Of all rows.
  virtual int64_t num_targets() const = 0;
  /// UTF-8 bytes that all targets together stand for: bits per byte = nats over all targets / ln 2 / text_bytes. 0
  /// where targets are not the tokens of a text, each of them once.
  virtual int64_t text_bytes() const { return 0; }
};

/// The seed of the random choices of validation rows.
inline constexpr uint64_t kValidationSeed = 0x76616C6964617465;

/// A row without targets, for ranks that have none left: token 0, one document.
void fill_padding(const RowBuffers& row);

}  // namespace caravan
