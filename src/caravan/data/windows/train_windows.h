#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "caravan/data/chat/chat_tokens.h"
#include "caravan/data/files/documents.h"
#include "caravan/data/tasks/task_rows.h"
#include "caravan/data/windows/sampler.h"
#include "caravan/data/windows/source_turns.h"
#include "caravan/data/windows/streamed_windows.h"
#include "caravan/data/windows/token_file.h"

namespace caravan {

/// A text that training visits, whole or streamed.
struct TrainSource {
  const TokenFile* tokens;               ///< outlives the windows, as do the documents; null: streamed
  const Documents* documents = nullptr;  ///< the documents of the text, which do not see each other; null: it is one
  const TokenFile* marks = nullptr;      ///< marks of the targets of chats; null: all tokens are targets
  double weight = 1;                     ///< its share of the samples, relative to the others'
  std::string name{};                    ///< for errors
  TokenStreams* streams = nullptr;       ///< instead of tokens and documents; has the text at the source's index
  std::optional<PackRule> packs{};       ///< of a streamed text
  std::shared_ptr<const WholeDocuments> whole{};  ///< of the text: its rows; null: windows, or as the streams say
};

/// The rows of a training run, whose task is the next token (data.task = "next"). Sample k is the next window of one
/// of the texts, in the order of its Sampler, or the next of its sequences of whole documents; all texts have the same.
/// Texts take turns: see SourceTurns.
class TrainWindows final : public TaskRows {
 public:
  /// Throws DataError naming a text that is shorter than context + 1 tokens, or has no sequence, and as SourceTurns;
  /// ShapeError for context < 1.
  TrainWindows(const std::vector<TrainSource>& sources, int64_t context, uint64_t seed);

  int64_t context() const noexcept { return context_; }
  RowShape shape() const override;
  Draw draw(int64_t sample) const override { return turns_.draw(sample); }
  std::vector<int64_t> drawn(int64_t sample) const override { return turns_.drawn(sample); }
  std::optional<double> epochs(size_t source, int64_t samples) const override;
  const WholeDocuments* whole_documents(size_t source) const override { return sources_[source].whole.get(); }

  std::vector<std::string> notes() const override;

  /// Does not read the samples.
  int64_t num_targets(int64_t first, int64_t rows) const override;
  /// Whether rows have documents, which `fill` then marks.
  bool has_documents() const noexcept { return sources_.front().documents != nullptr || sources_.front().packs; }

  std::vector<SeenShard> prepare(int64_t first, int64_t end,
                                 DataObserver& observer = DataObserver::none()) const override;
  bool is_ready(int64_t end) const override;

  /// The first tokens of the window of a sample: context + 1 at most.
  void read(int64_t sample, std::span<int64_t> window) const;

  /// Row r has sample first + r; labels[r, t] is the token after ids[r, t]. Waits for streamed texts, as prepare()
  /// does.
  void fill(int64_t first, const RowBuffers& rows) const override;
  void fill(int64_t first, std::span<int64_t> input_ids, std::span<int64_t> labels, std::span<int64_t> documents = {},
            std::span<int64_t> positions = {}) const {
    fill(first, {.ids = input_ids, .labels = labels, .documents = documents, .positions = positions});
  }

 private:
  /// The location of a sample.
  struct Place {
    std::shared_ptr<const StreamedWindows::Shard> shard;  ///< holds the text, of a streamed one
    RowText text;
    std::vector<TextPiece> pieces;
    std::optional<int64_t> num_targets;  ///< of whole documents
    const AnswerCounts* answers;
  };
  Place place_of(int64_t sample) const;
  int64_t num_targets(const Place& place) const;

  /// The order in which a source is visited. Of whole documents: see TrainSource.
  struct Order {
    uint64_t seed;
    std::optional<Sampler> sampler{};
    std::shared_ptr<StreamedWindows> streamed{};
    std::shared_ptr<const AnswerCounts> answers{};  ///< of windows of chats
  };

  std::vector<TrainSource> sources_;
  std::vector<Order> orders_;
  int64_t context_;
  SourceTurns turns_;
};

}  // namespace caravan
