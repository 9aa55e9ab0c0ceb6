#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/data/files/corpus.h"
#include "caravan/data/tokenizer/bpe_trainer.h"

namespace caravan::app {
namespace {

Tokenizer open(const std::string& name) {
  return name == "bytes" ? Tokenizer::bytes() : Tokenizer::load(find_file(name, data_folders()));
}

std::string input_of(const TokenizerArguments& arguments) {
  if (!arguments.input.empty()) return arguments.input;
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    size_t used = 0;
    int id = 0;
    try {
      id = std::stoi(word, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != word.size()) {
      throw UsageError(
          {"tokenizer", "ids", "'" + word + "' is not a token id", "", "write integers separated by spaces"});
    }
    ids.push_back(id);
  }
  return ids;
}

void train_tokenizer(const TokenizerArguments& arguments) {
  const DataFolders folders = data_folders();
  std::vector<std::filesystem::path> files;
  for (const std::string& text : arguments.texts) {
    for (std::filesystem::path& file : find_texts(text, folders)) files.push_back(std::move(file));
  }
  const Corpus corpus(files, folders.cache, {.field = arguments.field});
  const Tokenizer tokenizer = train_bpe(corpus.documents(), arguments.vocabulary);
  tokenizer.save(arguments.out);
  fmt::print("{}: {} tokens\n", arguments.out, tokenizer.vocab_size());
}

}  // namespace

int tokenizer(const TokenizerArguments& arguments) {
  switch (arguments.action) {
    case TokenizerArguments::Action::train: train_tokenizer(arguments); break;
    case TokenizerArguments::Action::encode: {
      const std::vector<int32_t> ids = open(arguments.tokenizer).encode(input_of(arguments));
      fmt::print("{}\n", fmt::join(ids, " "));
      break;
    }
    case TokenizerArguments::Action::decode: {
      const std::string text = open(arguments.tokenizer).decode(parse_ids(input_of(arguments)));
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fputc('\n', stdout);
      break;
    }
  }
  return 0;
}

}  // namespace caravan::app
