#include "caravan/data/chat_tokens.h"

#include <optional>
#include <vector>

#include "caravan/base/error.h"
#include "caravan/data/chat_template.h"
#include "caravan/data/corpus.h"
#include "caravan/data/sampler.h"
#include "caravan/data/tokenizer.h"

namespace caravan {
namespace {

constexpr uint64_t kMarking = 1;  ///< raise it when the same chats give other ids or marks
constexpr int64_t kNumMarks = 4;

struct MarkedChat {
  std::vector<int32_t> ids;
  std::vector<int32_t> marks;
  int64_t answer_bytes = 0;
};

MarkedChat marked(const RenderedChat& chat, const Tokenizer& tokenizer) {
  MarkedChat result{.ids = tokenizer.encode(chat.text), .marks = {}};
  size_t at = 0;
  size_t answer = 0;  // the first that does not end before
  for (const int32_t id : result.ids) {
    while (answer < chat.answers.size() && chat.answers[answer].second <= at) ++answer;
    const bool is_answer = answer < chat.answers.size() && chat.answers[answer].first <= at;
    result.marks.push_back(is_answer ? kIsAnswer : 0);
    at += tokenizer.token_bytes(id).size();
  }
  if (at != chat.text.size()) {
    throw DataError({"data", "data.tokenizer",
                     "changes the text of a chat, so that nothing says which tokens are the assistant's", "",
                     "use a tokenizer without a normalizer"});
  }
  if (!result.marks.empty()) result.marks.back() |= kEndsChat;
  for (const auto& [begin, end] : chat.answers) result.answer_bytes += static_cast<int64_t>(end - begin);
  return result;
}

std::optional<TokenFile> find_tokens(const std::filesystem::path& path, ContentHash content, DataObserver& observer) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  try {
    TokenFile file = TokenFile::open(path, observer);
    if (file.info().content == content) return file;
  } catch (const DataError&) {
    // A damaged file of the cache is built again.
  }
  return std::nullopt;
}

}  // namespace

ChatTokens open_or_build_chats(const std::filesystem::path& cache_dir, std::span<const std::string_view> chats,
                               const Tokenizer& tokenizer, DataObserver& observer) {
  SecondPass hashing(observer);
  const auto content_of = [&](std::string_view what) {
    ContentHasher hasher;
    hasher.update(kMarking);
    hasher.update(what);
    hasher.update(tokenizer.hash().high);
    hasher.update(tokenizer.hash().low);
    for (const std::string_view chat : chats) {
      hasher.update(static_cast<uint64_t>(chat.size()));
      in_pieces(chat, hashing, [&](std::string_view piece) { hasher.update(piece); });
    }
    return hasher.value();
  };
  const ContentHash of_tokens = content_of("tokens");
  const ContentHash of_marks = content_of("marks");
  const std::filesystem::path path = cache_dir / (of_tokens.hex() + ".tokens");
  const std::filesystem::path marks_path = cache_dir / (of_marks.hex() + ".tokens");
  std::optional<TokenFile> tokens, marks;
  const auto find = [&] {
    tokens = find_tokens(path, of_tokens, observer);
    marks = find_tokens(marks_path, of_marks, observer);
    return tokens && marks && tokens->size() == marks->size();
  };
  std::vector<std::shared_ptr<const CacheLock>> uses;  // until the files are open
  const auto build = [&] {
    observer.begin("tokenizing", num_bytes(chats));
    TokenFileWriter ids(path, tokenizer.vocab_size());
    TokenFileWriter of_ids(marks_path, kNumMarks);
    int64_t bytes = 0;
    for (const std::string_view json : chats) {
      const MarkedChat chat = marked(RenderedChat::from_json(json), tokenizer);
      ids.append(chat.ids);
      of_ids.append(chat.marks);
      bytes += chat.answer_bytes;
      observer.advance(static_cast<int64_t>(json.size()));
    }
    uses = {of_ids.finish(0, of_marks), ids.finish(bytes, of_tokens)};
  };
  find_or_build(path, find, build, observer);
  if (!tokens || !marks) return {TokenFile::open(path, observer), TokenFile::open(marks_path, observer)};
  return {std::move(*tokens), std::move(*marks)};
}

void mark_answers(const TokenFile& marks, int64_t first, std::span<int64_t> labels) {
  std::vector<int64_t> of_labels(labels.size());
  marks.read(first + 1, of_labels);
  for (size_t t = 0; t < labels.size(); ++t) {
    if ((of_labels[t] & kIsAnswer) == 0) labels[t] = kNoTarget;
  }
}

}  // namespace caravan
