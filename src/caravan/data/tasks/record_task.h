#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "caravan/data/tasks/records.h"
#include "caravan/data/tasks/sequence_pair.h"
#include "caravan/data/tasks/task_rows.h"
#include "caravan/data/windows/source_turns.h"

namespace caravan {

/// Makes a row of a record. Immutable.
class RecordTask {
 public:
  RecordTask() = default;
  RecordTask(const RecordTask&) = delete;
  RecordTask& operator=(const RecordTask&) = delete;
  virtual ~RecordTask() = default;

  virtual RowShape shape() const = 0;
  virtual void fill(const RecordList::Texts& record, const RowBuffers& row) const = 0;
  virtual int64_t num_targets(const RecordList::Size& record) const = 0;
  /// Whether nothing can be learned of a record, whatever the model: a preference of an answer to the same answer.
  virtual bool is_idle(const RecordList& /*records*/, int64_t /*record*/) const { return false; }
};

/// The numbers of tokens of two texts after truncation to `room` in all, as `transformers` with longest_first: the
/// longer loses tokens until both are equally long, then both; an odd token is left to the longer. Without room both
/// are 0.
std::pair<int64_t, int64_t> longest_first(int64_t first, int64_t second, int64_t room);

/// The position of a row that has the label.
enum class LabelPlace : uint8_t {
  first,  ///< of models in which every token sees all others: position 0
  last,   ///< of decoders: the last real token
};

/// Classification of texts, or of pairs of them. A row is the record with the tokenizer's special tokens, truncated
/// (the end of a text; of a pair: longest_first) and padded at the end. One label is the record's class, all others
/// are kIgnoredLabel. With LabelPlace::first rows have documents: real tokens 1, padding 0. Pairs have token types.
class ClassifyTask final : public RecordTask {
 public:
  /// Throws ShapeError for a context without room for a token of each text.
  ClassifyTask(const Tokenizer& tokenizer, int64_t context, bool are_pairs, LabelPlace place);

  RowShape shape() const override;
  void fill(const RecordList::Texts& record, const RowBuffers& row) const override;
  int64_t num_targets(const RecordList::Size& /*record*/) const override { return 1; }

 private:
  Tokenizer tokenizer_;
  int64_t context_;
  int64_t num_special_;
  int64_t pad_;
  bool are_pairs_;
  LabelPlace place_;
};

/// Sequence to sequence: a target to learn for each source.
///
/// For an encoder-decoder (source_context > 0) a row is that of fill_sequence_pair, with documents. Source and target
/// have the tokenizer's special tokens, and the end token if these do not end with it; each is truncated to its part.
///
/// For a decoder a row is [source, end, target, end] of context + 1 tokens, as inputs and next tokens; labels are those
/// of the target and its end only. The source has the tokenizer's special tokens. Both texts are truncated as
/// longest_first does, end tokens never.
class PairTask final : public RecordTask {
 public:
  struct Settings {
    int64_t context = 0;
    int64_t source_context = 0;              ///< 0: a decoder
    std::optional<int64_t> decoder_start{};  ///< of an encoder-decoder; default: the pad token
  };
  /// Throws UsageError for a tokenizer without an end token, ShapeError for contexts without room for a token of each
  /// text.
  PairTask(const Tokenizer& tokenizer, const Settings& settings);

  RowShape shape() const override;
  void fill(const RecordList::Texts& record, const RowBuffers& row) const override;
  int64_t num_targets(const RecordList::Size& record) const override;

 private:
  bool is_decoder() const noexcept { return settings_.source_context == 0; }
  std::pair<int64_t, int64_t> truncated(int64_t source, int64_t target) const;
  std::vector<int64_t> ended(std::span<const int32_t> text, bool has_special) const;
  void fill_decoder(const std::vector<int64_t>& source, const std::vector<int64_t>& target,
                    const RowBuffers& row) const;

  Tokenizer tokenizer_;
  Settings settings_;
  int64_t end_;
  int64_t pad_;
  bool adds_end_ = false;    ///< the tokenizer's special tokens end with the end token
  int64_t num_special_ = 0;  ///< tokens beside a text with special tokens, the end included
};

/// Records that training visits.
struct RecordSource {
  RecordList records;
  double weight = 1;
  std::string name{};
};

/// Rows of a task of records. Each epoch of a source visits all its records in another random order.
class RecordTaskRows final : public TaskRows {
 public:
  /// Reads the sizes of records, and of a few the tokens. Throws DataError for a source without records, or whose
  /// records are all idle, and as SourceTurns.
  RecordTaskRows(std::vector<RecordSource> sources, std::shared_ptr<const RecordTask> task, uint64_t seed);

  RowShape shape() const override { return task_->shape(); }
  void fill(int64_t first, const RowBuffers& rows) const override;
  int64_t num_targets(int64_t first, int64_t rows) const override;
  Draw draw(int64_t sample) const override { return turns_.draw(sample); }
  std::vector<int64_t> drawn(int64_t sample) const override { return turns_.drawn(sample); }
  std::optional<double> epochs(size_t source, int64_t samples) const override;
  std::vector<std::string> notes() const override { return notes_; }

 private:
  void check_source(const RecordSource& source);
  /// The source and the number of the record of a sample.
  std::pair<const RecordList*, int64_t> record_of(int64_t sample) const;

  std::vector<RecordSource> sources_;
  SourceTurns turns_;
  std::shared_ptr<const RecordTask> task_;
  uint64_t seed_;
  std::vector<std::string> notes_;
};

/// Their evaluation: every record once, in the order of the files.
class RecordTaskValidation final : public ValidationRows {
 public:
  RecordTaskValidation(RecordList records, std::shared_ptr<const RecordTask> task)
      : records_(std::move(records)), task_(std::move(task)) {}

  RowShape shape() const override { return task_->shape(); }
  int64_t size() const override { return records_.size(); }
  void fill(int64_t first, const RowBuffers& rows) const override;
  int64_t num_targets() const override;

 private:
  RecordList records_;
  std::shared_ptr<const RecordTask> task_;
};

}  // namespace caravan
