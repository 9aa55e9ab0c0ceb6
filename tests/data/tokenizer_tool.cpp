#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

#include "caravan/base/error.h"
#include "caravan/data/tokenizer/bpe_trainer.h"
#include "caravan/data/tokenizer/tokenizer.h"

/// For fixtures/make.py, fixtures/fuzz.py, and for measuring:
///   encode TOKENIZER_JSON        stdin: texts, each as its size in bytes (little-endian uint32) and the bytes;
///                                stdout: for each text the number of ids and the ids, as int32
///   encode-all TOKENIZER_JSON    stdin: texts as above, in pairs; stdout: for each pair, in the same form, the ids
///                                and the type ids of the first and of both, with special tokens and without: 8 lists
///   decode TOKENIZER_JSON        stdin: lists of ids as int32, each after its size in bytes; stdout: for each the text
///                                and the streamed text, with special tokens and without: 4 texts
///   train VOCAB_SIZE TEXT        stdout: the tokenizer.json
///   train-documents VOCAB_SIZE   stdin: documents, in the format of encode
///   time TOKENIZER_JSON TEXT     encodes a file five times and prints the best speed
///   time-texts TOKENIZER_JSON    the same for stdin, in the format of encode
namespace {

using caravan::Tokenizer;

std::string read_all(std::istream& in) { return {std::istreambuf_iterator<char>(in), {}}; }

std::vector<std::string_view> texts_of(std::string_view input) {
  std::vector<std::string_view> texts;
  for (size_t at = 0; at + 4 <= input.size();) {
    uint32_t size = 0;
    std::memcpy(&size, input.data() + at, sizeof size);
    texts.push_back(input.substr(at + 4, size));
    at += 4 + size;
  }
  return texts;
}

void put_number(int32_t number) { std::cout.write(reinterpret_cast<const char*>(&number), sizeof number); }

void put_ids(const std::vector<int32_t>& ids) {
  put_number(static_cast<int32_t>(ids.size()));
  for (const int32_t id : ids) put_number(id);
}

void put_text(const std::string& text) {
  put_number(static_cast<int32_t>(text.size()));
  std::cout << text;
}

int encode(const char* json) {
  const Tokenizer tokenizer = Tokenizer::load(json);
  const std::string input = read_all(std::cin);
  for (const std::string_view text : texts_of(input)) put_ids(tokenizer.encode(text));
  return 0;
}

int encode_all(const char* json) {
  const Tokenizer tokenizer = Tokenizer::load(json);
  const std::string input = read_all(std::cin);
  const std::vector<std::string_view> texts = texts_of(input);
  for (size_t i = 0; i + 1 < texts.size(); i += 2) {
    for (const bool adds : {true, false}) {
      for (const caravan::Encoding& encoding :
           {tokenizer.encode_single(texts[i], adds), tokenizer.encode_pair(texts[i], texts[i + 1], adds)}) {
        put_ids(encoding.ids);
        put_ids(encoding.type_ids);
      }
    }
  }
  return 0;
}

int decode(const char* json) {
  const Tokenizer tokenizer = Tokenizer::load(json);
  const std::string input = read_all(std::cin);
  for (const std::string_view list : texts_of(input)) {
    std::vector<int32_t> ids(list.size() / sizeof(int32_t));
    std::memcpy(ids.data(), list.data(), ids.size() * sizeof(int32_t));
    for (const bool skips : {false, true}) {
      put_text(tokenizer.decode(ids, skips));
      caravan::TextStream stream(tokenizer, skips);
      std::string text;
      for (const int32_t id : ids) text += stream.put(id);
      put_text(text + stream.finish());
    }
  }
  return 0;
}

int train(int64_t vocab_size, const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text = read_all(file);
  const std::string_view documents[] = {text};
  std::cout << caravan::train_bpe(documents, vocab_size).to_json();
  return 0;
}

int train_documents(int64_t vocab_size) {
  const std::string input = read_all(std::cin);
  std::cout << caravan::train_bpe(texts_of(input), vocab_size).to_json();
  return 0;
}

int time(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  size_t bytes = 0;
  size_t count = 0;
  for (const std::string_view text : texts) bytes += text.size();
  for (int round = 0; round < 5; ++round) {
    const auto start = Clock::now();
    count = 0;
    tokenizer.encode(texts, std::nullopt, [&](std::span<const int32_t> ids) { count += ids.size(); });
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::cout << bytes << " bytes, " << count << " ids, " << best << " s, " << static_cast<double>(bytes) / best / 1e6
            << " MB/s\n";
  return 0;
}

int time_file(const char* json, const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text = read_all(file);
  return time(Tokenizer::load(json), {text});
}

int time_texts(const char* json) {
  const std::string input = read_all(std::cin);
  return time(Tokenizer::load(json), texts_of(input));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 2 ? argv[1] : "";
  try {
    if (verb == "encode") return encode(argv[2]);
    if (verb == "encode-all") return encode_all(argv[2]);
    if (verb == "decode") return decode(argv[2]);
    if (verb == "train" && argc > 3) return train(std::stoll(argv[2]), argv[3]);
    if (verb == "train-documents") return train_documents(std::stoll(argv[2]));
    if (verb == "time" && argc > 3) return time_file(argv[2], argv[3]);
    if (verb == "time-texts") return time_texts(argv[2]);
  } catch (const caravan::Error& error) {
    std::cerr << error.what() << '\n';
    return error.exit_code();
  }
  std::cerr << "usage: tokenizer_tool encode|encode-all|decode JSON | train SIZE TEXT | train-documents SIZE | time "
               "JSON TEXT | "
               "time-texts JSON\n";
  return 2;
}
