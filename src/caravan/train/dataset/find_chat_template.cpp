#include <map>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/chat_files.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan {

std::shared_ptr<const ChatTemplate> find_chat_template(const Recipe::Data& data, const DataFolders& folders) {
  std::map<std::string, std::string> files;  // beside the tokenizer
  std::filesystem::path folder;
  if (!data.tokenizer.empty() && data.tokenizer != "bytes") {
    folder = find_file(data.tokenizer, folders).parent_path();
    files = read_text_files(folder);
  }
  const std::filesystem::path own = data.chat_template.empty() ? "" : find_file(data.chat_template, folders);
  auto found = chat_template_of(files, folder, own);
  if (found != nullptr) return found;
  throw DataError({"data", folder.empty() ? "data.format" : folder.string(),
                   "has no chat template: chats cannot be written as text", "",
                   "start from a model that has one (train.init_from), or set data.chat_template to a file"});
}

}  // namespace caravan
