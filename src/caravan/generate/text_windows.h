#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/generate/kv_cache.h"
#include "caravan/generate/text_model.h"

namespace caravan {

/// Runs a model on texts that grow, and keeps what it has computed of them. Of a text that outgrows the context the
/// model sees a window: its earlier half is dropped.
class TextWindows {
 public:
  /// The ids [first, seen) of a text are in the cache.
  struct Window {
    KvCache::Sequence sequence = -1;
    size_t first = 0, seen = 0;
    std::vector<int64_t> source{};  ///< of a model with an encoder: what its first pass reads besides; then empty

    bool needs_source() const noexcept { return !source.empty(); }
  };
  /// A window, and all ids of its text.
  struct Text {
    Window* window;
    std::span<const int64_t> ids;
  };

  explicit TextWindows(TextModel model);

  /// Of a text of so many ids: its last ones that fit. With a source it must not outgrow the context.
  Window open(size_t num_ids, std::vector<int64_t> source = {});
  Window fork(const Window& of);
  void close(const Window& window) { cache_.remove(window.sequence); }
  /// The text has other ids from `num_ids` on.
  void cut(Window& window, size_t num_ids);

  /// How many of the ids the model has not seen, 0 or more; moves a window that they outgrow.
  int64_t num_fresh(Window& window, size_t num_ids);
  /// How many further ids stay within the window.
  int64_t room(const Window& window, size_t num_ids) const;
  /// Lets the model see the fresh ids, and returns the logits after the `last` last of them: [texts, last, vocabulary],
  /// undefined on a rank that does not hold them. The texts go together (go_together). Up to KvCache::kMostQueries
  /// fresh ids give a text the same bits alone, with others, and in several passes; more give it the same bits alone
  /// and with others, on a processor with tiles (has_fp32_tiles).
  at::Tensor run(std::span<const Text> texts, int64_t last = 1);
  /// How many texts a pass may have, each of up to `fresh` fresh ids.
  int64_t most_texts(int64_t fresh) const;
  /// Whether a pass may have a text of so many fresh ids beside one of at least as many: as many, or, of texts that the
  /// model begins to see, nearly as many, since the shorter takes the time of the longer.
  bool go_together(const Window& longer, int64_t fresh_of_longer, const Window& shorter, int64_t fresh) const;

  const TextModel& model() const noexcept { return model_; }
  const KvCache& cache() const noexcept { return cache_; }

 private:
  TextModel model_;
  KvCache cache_;
};

}  // namespace caravan
