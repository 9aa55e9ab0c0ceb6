#include "caravan/data/tokenizer/tokenizer_json.h"

namespace caravan {
namespace {

constexpr int64_t kMostStripped = 1'000'000;

DecoderStep read_strip(const JsonReader& json) {
  json.allow_only({"type", "content", "start", "stop"});
  DecoderStep step{.kind = DecoderStep::strip};
  step.text = read_character(json["content"]);
  step.start = static_cast<size_t>(json["start"].integer(0, kMostStripped));
  step.stop = static_cast<size_t>(json["stop"].integer(0, kMostStripped));
  return step;
}

DecoderStep read_replace(const JsonReader& json) {
  json.allow_only({"type", "pattern", "content"});
  DecoderStep step{.kind = DecoderStep::replace};
  std::tie(step.pattern, step.text) = read_replaced(json["pattern"]);
  step.content = json["content"].string();
  return step;
}

void read_steps(const JsonReader& json, std::vector<DecoderStep>& steps) {
  switch (json["type"].choice(
      {"ByteLevel", "WordPiece", "Metaspace", "ByteFallback", "Fuse", "Strip", "Replace", "BPEDecoder", "Sequence"})) {
    case 0:  // its settings are those of the pre-tokenizer of this name
      json.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      steps.push_back({.kind = DecoderStep::byte_level});
      return;
    case 1:
      json.allow_only({"type", "prefix", "cleanup"});
      steps.push_back(
          {.kind = DecoderStep::word_piece, .text = json["prefix"].string(), .cleans = json["cleanup"].boolean()});
      return;
    case 2: {
      Metaspace metaspace = read_metaspace_settings(json);
      steps.push_back({.kind = DecoderStep::metaspace,
                       .text = std::move(metaspace.mark),
                       .keeps_first = metaspace.scheme == PrependScheme::never});
      return;
    }
    case 3:
      json.allow_only({"type"});
      steps.push_back({.kind = DecoderStep::byte_fallback});
      return;
    case 4:
      json.allow_only({"type"});
      steps.push_back({.kind = DecoderStep::fuse});
      return;
    case 5: steps.push_back(read_strip(json)); return;
    case 6: steps.push_back(read_replace(json)); return;
    case 7:
      json.allow_only({"type", "suffix"});
      if (json["suffix"].string().empty()) json["suffix"].refuse("is empty", "give the suffix of words, such as </w>");
      steps.push_back({.kind = DecoderStep::bpe, .text = json["suffix"].string()});
      return;
    default: break;
  }
  json.allow_only({"type", "decoders"});
  const JsonReader sequence = json["decoders"];
  for (size_t i = 0; i < sequence.size(); ++i) read_steps(sequence.element(i), steps);
}

}  // namespace

TextDecoder read_decoder(const JsonReader& json) {
  if (json.is_null()) return {};
  std::vector<DecoderStep> steps;
  read_steps(json, steps);
  // Without steps tokens are joined by nothing, unlike without decoder.
  if (steps.empty()) steps.push_back({.kind = DecoderStep::fuse});
  return TextDecoder(std::move(steps));
}

}  // namespace caravan
