#pragma once

#include <string>
#include <vector>

#include "apps/caravan/options/options.h"

namespace caravan::app {

/// A text to continue, or what a user says.
struct PromptText {
  std::string text;
  std::string where;       ///< "FILE:3"; "" if it is from no file
  std::string messages{};  ///< of a chat in place of a text, as JSON; "": none
  std::string tools{};     ///< beside them; "": none
};

/// The texts or chats to continue: --prompt, the lines of --prompts, or the prompt of the default recipe. Throws
/// DataError for a file without prompts, and naming file and line for a line that holds none.
std::vector<PromptText> read_prompts(const GenerateArguments& arguments);

/// The texts of fill-mask, classify and embed: --text with --pair, or those of --texts. Throws as above, and UsageError
/// if there is neither, or fields are given for a file without them.
struct AskedText {
  std::string text;
  std::string pair;   ///< "": none
  std::string where;  ///< as of PromptText
};
std::vector<AskedText> read_texts(const AskArguments& arguments);

}  // namespace caravan::app
