#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/data/tokenizer/tokenizer_json.h"

namespace caravan {
namespace {

using Piece = PostProcessor::Piece;

int32_t read_id(const JsonReader& json, int64_t vocab_size) {
  const int64_t id = json.integer(0, kLargestTokenId);
  if (id >= vocab_size)
    json.refuse(fmt::format("adds the id {} of a vocabulary of {}", id, vocab_size), "correct the id");
  return static_cast<int32_t>(id);
}

std::vector<Piece> read_pieces(const JsonReader& json, const JsonReader& tokens, bool is_pair, int64_t vocab_size) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < json.size(); ++i) {
    const JsonReader piece = json.element(i);
    piece.allow_only({"SpecialToken", "Sequence"});
    const bool is_text = piece.has("Sequence");
    const JsonReader inner = piece[is_text ? "Sequence" : "SpecialToken"];
    const JsonReader type = inner["type_id"];
    Piece read{Piece::special, static_cast<int32_t>(type.integer(0, kLargestTokenId)), {}};
    if (is_text) {
      const size_t which = is_pair ? inner["id"].choice({"A", "B"}) : inner["id"].choice({"A"});
      read.kind = which == 0 ? Piece::first_text : Piece::second_text;
    } else {
      const JsonReader token = tokens[inner["id"].string()];
      if (token.is_null()) piece.refuse("names a token that special_tokens lacks", "add it there");
      const JsonReader ids = token["ids"];
      for (size_t k = 0; k < ids.size(); ++k) read.ids.push_back(read_id(ids.element(k), vocab_size));
    }
    pieces.push_back(std::move(read));
  }
  const auto has = [&](Piece::Kind kind) {
    return std::any_of(pieces.begin(), pieces.end(), [kind](const Piece& piece) { return piece.kind == kind; });
  };
  if (!has(Piece::first_text)) json.refuse("lacks the text itself, Sequence A", "add it");
  if (is_pair && !has(Piece::second_text)) json.refuse("lacks the second text, Sequence B", "add it");
  return pieces;
}

/// BertProcessing and RobertaProcessing: [CLS] A [SEP] B [SEP], <s> A </s></s> B </s>.
PostProcessor read_cls_and_sep(const JsonReader& json, bool is_roberta, int64_t vocab_size) {
  if (is_roberta) {
    json.allow_only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});  // these two: offsets only
  } else {
    json.allow_only({"type", "sep", "cls"});
  }
  const auto token = [&](const char* key) {
    const JsonReader entry = json[key];
    if (!entry.value().is_array() || entry.size() != 2)
      entry.refuse("is not a token and its id", "give [\"[SEP]\", 102]");
    return std::vector{read_id(entry.element(1), vocab_size)};
  };
  const std::vector<int32_t> cls = token("cls");
  const std::vector<int32_t> sep = token("sep");
  const int32_t second = is_roberta ? 0 : 1;
  PostProcessor processor;
  processor.single = {{Piece::special, 0, cls}, {Piece::first_text, 0, {}}, {Piece::special, 0, sep}};
  processor.pair = processor.single;
  if (is_roberta) processor.pair.push_back({Piece::special, 0, sep});
  processor.pair.push_back({Piece::second_text, second, {}});
  processor.pair.push_back({Piece::special, second, sep});
  return processor;
}

void read_processor(const JsonReader& json, int64_t vocab_size, std::optional<PostProcessor>& processor) {
  if (json.is_null()) return;
  const size_t kind =
      json["type"].choice({"ByteLevel", "Sequence", "TemplateProcessing", "BertProcessing", "RobertaProcessing"});
  if (kind == 0) {
    json.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // offsets only
    return;
  }
  if (kind == 1) {
    json.allow_only({"type", "processors"});
    const JsonReader sequence = json["processors"];
    for (size_t i = 0; i < sequence.size(); ++i) read_processor(sequence.element(i), vocab_size, processor);
    return;
  }
  if (processor) json.refuse("is a second one that adds tokens", "supported: one");
  if (kind != 2) {
    processor = read_cls_and_sep(json, kind == 4, vocab_size);
    return;
  }
  json.allow_only({"type", "single", "pair", "special_tokens"});
  const JsonReader tokens = json["special_tokens"];
  processor.emplace();
  processor->single = read_pieces(json["single"], tokens, false, vocab_size);
  processor->pair = read_pieces(json["pair"], tokens, true, vocab_size);
}

}  // namespace

PostProcessor read_post_processor(const JsonReader& json, int64_t vocab_size) {
  std::optional<PostProcessor> processor;
  read_processor(json, vocab_size, processor);
  return processor ? std::move(*processor) : PostProcessor{};
}

}  // namespace caravan
