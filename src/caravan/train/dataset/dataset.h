#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "caravan/base/content_hash.h"
#include "caravan/data/files/corpus.h"
#include "caravan/data/files/documents.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/windows/token_file.h"
#include "caravan/data/windows/token_streams.h"
#include "caravan/data/windows/train_windows.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// What rows are (data.fill): windows of a text, or whole documents and chats. Those of a streamed text are what it was
/// opened for.
enum class Fill : uint8_t { windows, whole_documents };

/// The data of a run: its tokenizer, and its texts as ids.
struct Dataset {
  struct Text {
    TokenFile tokens;
    std::optional<Documents> documents{};  ///< with data.pack = "documents"
    std::optional<TokenFile> marks{};      ///< of chats
    std::optional<TokenFile> index{};      ///< of records: see RecordTokens
    std::string name{};                    ///< as the recipe names it
    double weight = 1;                     ///< in a mixture
  };
  /// Training texts that are tokenized during the run (data.streaming).
  struct Streamed {
    std::unique_ptr<TokenStreams> texts;
    std::vector<double> weights;  ///< of each
    std::optional<PackRule> packs{};
  };
  Tokenizer tokenizer;
  std::vector<Text> train;  ///< one text, or those of a mixture; none if streamed
  Text validation;
  int64_t num_skipped_lines = 0;  ///< JSON lines, with data.skip_bad_lines; not counted in streamed texts
  std::optional<Streamed> streamed{};
  ChatCounts chats{};                      ///< not of streamed texts, but of their validation
  std::vector<std::string> class_names{};  ///< with data.task = "classify", by number: see class_names_of

  /// 0: streamed, and not known yet.
  int64_t num_train_tokens() const noexcept;
  /// The training text at an index of TrainWindows.
  const std::string& train_name(size_t text) const { return streamed ? streamed->texts->name(text) : train[text].name; }
  /// Hash of the training texts, the tokenizer and the weights of a mixture. For streamed texts: see
  /// StreamedText::content.
  ContentHash train_hash() const;
  /// Of texts, for any task of windows. They refer to the texts, which must outlive them at their present address.
  TrainWindows train_windows(int64_t context, int64_t seed, Fill fill = Fill::windows) const;
  ValidationWindows validation_windows(int64_t context, Fill fill = Fill::windows) const;
};

/// Notes for the user about the texts of a run: the share of each text of a mixture, and skipped lines.
std::vector<std::string> dataset_notes(const Dataset& dataset, const TaskRows& rows, const Recipe& recipe);

/// Folders in which files are looked up and stored. A relative path is looked up from the working folder, then from the
/// folder of the recipe, then from `home`.
struct DataFolders {
  std::filesystem::path home;                  ///< may be empty
  std::filesystem::path recipe{};              ///< the folder of the recipe; may be empty
  std::filesystem::path cache;                 ///< of token files and trained tokenizers, by content hash
  std::optional<int64_t> cache_limit_bytes{};  ///< of all files in the cache; files in use stay. None: no limit
  int64_t shard_bytes = kShardBytes;           ///< of streamed texts; the same in all runs of a checkpoint
};

/// Whether this process tokenizes streamed texts, or reads what another process on the same host tokenizes.
enum class StreamRole { builds, reads };

/// Opens what `data` names. Decoded texts, token files and trained tokenizers come from the cache and are built if
/// missing; then the cache is trimmed to its limit. A tokenizer is trained only on the training texts. Any number of
/// processes may call it at once. `context`: the tokens of a row, with data.streaming and data.fill = "best_fit".
/// Throws UsageError for a tokenizer without an end-of-text token where documents are told apart, DataError for text or
/// tokenizer files that are missing, empty or of another format, ResourceError if the cache cannot be written to, and
/// what `observer` throws.
Dataset open_dataset(const Recipe::Data& data, const DataFolders& folders,
                     DataObserver& observer = DataObserver::none(), StreamRole role = StreamRole::builds,
                     int64_t context = 0);

/// The texts of `data` alone, as validation texts of a model that has this tokenizer. Throws as open_dataset.
Dataset open_evaluation(const Recipe::Data& data, const DataFolders& folders, const Tokenizer& tokenizer,
                        DataObserver& observer = DataObserver::none());

/// Replaces each path of `data` by the absolute path of the file, so that the recipe means the same files from another
/// folder. The path of a missing file is left unchanged. Throws UsageError for an absolute path that is not UTF-8,
/// which no recipe can hold.
void resolve_files(Recipe::Data& data, const DataFolders& folders);

/// The absolute paths of the text files given by `path` of a recipe: see text_files. Throws DataError naming the
/// searched folders if there is none.
std::vector<std::filesystem::path> find_texts(const std::string& path, const DataFolders& folders);

/// The format of the files that `data` names. Throws DataError for chats whose template is missing or cannot be
/// rendered.
TextFormat text_format(const Recipe::Data& data, const DataFolders& folders);

/// data.chat_template, or else the template in the folder of data.tokenizer.
std::shared_ptr<const ChatTemplate> find_chat_template(const Recipe::Data& data, const DataFolders& folders);

/// All paths of training texts in `data`.
std::vector<std::string> text_paths(const Recipe::Data& data);

/// The absolute path of the file given by `path` of a recipe. Throws DataError naming the searched folders if it is
/// missing.
std::filesystem::path find_file(const std::string& path, const DataFolders& folders);

}  // namespace caravan
