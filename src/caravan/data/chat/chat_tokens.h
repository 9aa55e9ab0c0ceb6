#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "caravan/data/windows/token_file.h"

namespace caravan {

inline constexpr uint64_t kMarking = 1;  ///< increment when the same chats give other ids or marks

/// Token ids of chats, and a mark for each, in files of the cache.
struct ChatTokens {
  TokenFile tokens;
  TokenFile marks;
};

/// Bits of a mark.
inline constexpr int32_t kIsAnswer = 1;  ///< a token of the assistant: a target
inline constexpr int32_t kEndsChat = 2;  ///< the last token of its chat
inline bool ends_chat(int64_t mark) { return (mark & kEndsChat) != 0; }

/// As open_or_build, for documents of RenderedChat::to_json, without a token between them. A token is the assistant's
/// if it begins within an answer. The tokens' text_bytes are those of answers. Also throws DataError for a tokenizer
/// whose tokens do not spell the text byte for byte: then the assistant's tokens cannot be determined.
ChatTokens open_or_build_chats(const std::filesystem::path& cache_dir, std::span<const std::string_view> chats,
                               const Tokenizer& tokenizer, DataObserver& observer = DataObserver::none());

/// The content of the file of marks, by that of the tokens that they belong to.
ContentHash content_of_marks(const ContentHash& tokens);

/// Counts the targets of windows of chats from sums over blocks of tokens: each count reads two blocks, for any window
/// length.
class AnswerCounts {
 public:
  /// Reads the marks once; they outlive this. `packed`: the first token of a chat is not a target.
  AnswerCounts(const TokenFile& marks, bool packed);

  /// Number of targets of the window with the input tokens [first, first + count).
  int64_t num_targets(int64_t first, int64_t count) const;

  static constexpr int64_t kBlock = 256;

 private:
  int64_t scan(int64_t first, int64_t count) const;
  int64_t before(int64_t token) const;

  const TokenFile* marks_;
  bool packed_;
  std::vector<int64_t> before_;  ///< targets before each block
};

/// labels[t], the target of token first + t of chats, becomes kIgnoredLabel unless it is the assistant's.
void mark_answers(const TokenFile& marks, int64_t first, std::span<int64_t> labels);

}  // namespace caravan
