#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "caravan/data/chat/chat_tokens.h"
#include "caravan/data/files/documents.h"
#include "caravan/data/windows/sampler.h"
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
};

/// The windows of a training run. Sample k, where k = step * global_batch + row in the global batch, is the next window
/// of one of the texts, in the order of its Sampler. Texts take turns by their weights in a fixed period, so that any
/// range of samples has close to its share of each. Everything depends only on (texts, weights, context, seed, k), not
/// on the number of ranks, on accumulation or on restarts.
class TrainWindows {
 public:
  /// Weights are rounded to ten-thousandths of their sum; they are exact if they are small whole numbers, or tenths,
  /// hundredths or thousandths of such. Throws DataError naming a text that is shorter than context + 1 tokens, or
  /// whose weight is less than a ten-thousandth of the sum or not above 0; ShapeError for context < 1.
  TrainWindows(const std::vector<TrainSource>& sources, int64_t context, uint64_t seed);

  int64_t context() const noexcept { return context_; }

  struct Draw {
    size_t source;
    int64_t sample;  ///< of this source
  };
  Draw draw(int64_t sample) const;
  /// The number of samples of each source before `sample`.
  std::vector<int64_t> drawn(int64_t sample) const;
  /// How many epochs of a source this many of its samples are. Nothing for a streamed one that is not completely known.
  std::optional<double> epochs(size_t source, int64_t samples) const;

  /// The position of a run as stored in checkpoints: tokens that all ranks together trained on before `sample`.
  int64_t position(int64_t sample) const noexcept { return sample * context_; }

  /// Targets of the samples [first, first + rows). Does not read the samples.
  int64_t num_targets(int64_t first, int64_t rows) const;
  /// Whether rows have documents, which `fill` then marks.
  bool has_documents() const noexcept { return sources_.front().documents != nullptr || sources_.front().packs; }

  /// A shard of a streamed text, for comparing what ranks have read.
  struct SeenShard {
    std::string name;
    ContentHash content;
  };
  /// Waits until the samples [first, end) of streamed texts can be filled, and returns their shards. Samples of other
  /// texts always can. Throws as StreamedWindows::window.
  std::vector<SeenShard> prepare(int64_t first, int64_t end, DataObserver& observer = DataObserver::none()) const;
  /// Whether all samples before `end` have been prepared; the same on ranks that have prepared the same samples.
  bool is_ready(int64_t end) const;

  /// Fills rows: row r has sample first + r.
  ///   input_ids, labels     [rows, context], row-major, of equal size; labels[r, t] is the token after input_ids[r, t]
  ///   documents, positions  the same, with has_documents(): see Documents::mark; else not used
  /// Throws ShapeError if the sizes are not rows * context. Waits for streamed texts, as prepare() does.
  void fill(int64_t first, std::span<int64_t> input_ids, std::span<int64_t> labels, std::span<int64_t> documents = {},
            std::span<int64_t> positions = {}) const;

 private:
  /// The location of a sample.
  struct Place {
    std::shared_ptr<const StreamedWindows::Shard> shard;  ///< holds the others, of a streamed text
    const TokenFile& tokens;
    const Documents* documents;
    const TokenFile* marks;
    const AnswerCounts* answers;
    int64_t offset;
  };
  Place place_of(int64_t sample) const;

  /// The order in which a source is visited, given by one of the first two.
  struct Order {
    std::optional<Sampler> sampler{};
    std::shared_ptr<StreamedWindows> streamed{};
    std::shared_ptr<const AnswerCounts> answers{};  ///< of chats
  };

  std::vector<TrainSource> sources_;
  std::vector<Order> orders_;
  int64_t context_;
  std::vector<int64_t> quotas_;   ///< samples of each source in a period
  std::vector<size_t> turns_;     ///< source of each turn in a period
  std::vector<int64_t> earlier_;  ///< earlier turns of the same source in the period
};

}  // namespace caravan
