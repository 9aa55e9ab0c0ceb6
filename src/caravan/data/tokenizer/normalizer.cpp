#include "caravan/data/tokenizer/normalizer.h"

#include <algorithm>
#include <functional>
#include <utf8proc.h>
#include <utility>

#include "caravan/data/tokenizer/byte_alphabet.h"
#include "caravan/data/unicode/character_sets.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

namespace steps = normalizing;

/// Builds the next text, and its head, from characters of the last one.
class TextBuilder {
 public:
  TextBuilder(const NormalizedText& from, std::string& out) : from_(from), out_(out) { out_.clear(); }

  /// What follows comes from the byte `at` of the last text.
  void come_from(size_t at) { is_head_ = at < from_.head; }
  void put(char32_t point) {
    append_utf8(out_, point);
    if (is_head_) head_ = out_.size();
  }
  void put(std::string_view text) {
    out_ += text;
    if (is_head_ && !text.empty()) head_ = out_.size();
  }
  bool is_empty() const { return out_.empty(); }
  NormalizedText done() const { return {out_, head_}; }

 private:
  NormalizedText from_;
  std::string& out_;
  size_t head_ = 0;
  bool is_head_ = false;
};

/// Calls `convert(point, builder)` for each character.
template <typename Convert>
NormalizedText by_character(const NormalizedText& from, std::string& out, Convert convert) {
  TextBuilder builder(from, out);
  for (size_t at = 0; at < from.text.size();) {
    const Utf8Step step = utf8_step(from.text.substr(at));
    builder.come_from(at);
    convert(step.point, builder);
    at += step.length;
  }
  return builder.done();
}

void put_lowercase(char32_t point, TextBuilder& builder) {
  const auto [first, second] = to_lowercase(point);
  builder.put(first);
  if (second != 0) builder.put(second);
}

bool is_chinese(char32_t point) {
  return (point >= 0x4E00 && point <= 0x9FFF) || (point >= 0x3400 && point <= 0x4DBF) ||
         (point >= 0x20000 && point <= 0x2A6DF) || (point >= 0x2A700 && point <= 0x2B81F) ||
         (point >= 0x2B920 && point <= 0x2CEAF) || (point >= 0xF900 && point <= 0xFAFF) ||
         (point >= 0x2F800 && point <= 0x2FA1F);
}

// What `tokenizers` calls Nmt: the rules of SentencePiece's nmt_nfkc beside NFKC.
bool is_removed_by_nmt(char32_t point) {
  return (point >= 0x1 && point <= 0x8) || point == 0xB || (point >= 0xE && point <= 0x1F) || point == 0x7F ||
         point == 0x8F || point == 0x9F;
}
bool is_space_to_nmt(char32_t point) {
  return point == 0x9 || point == 0xA || point == 0xC || point == 0xD || point == 0x1680 ||
         (point >= 0x200B && point <= 0x200F) || point == 0x2028 || point == 0x2029 || point == 0x2581 ||
         point == 0xFEFF || point == 0xFFFD;
}

/// Applies one step to the text; the result may be a view of `out`.
class StepVisitor {
 public:
  StepVisitor(const NormalizedText& from, std::string& out, RegexScratch& search)
      : from_(from), out_(out), search_(search) {}

  NormalizedText operator()(NormalForm form) const {
    const std::string_view text = to_normal_form(from_.text, form, out_);
    if (text.data() == from_.text.data()) return from_;
    std::string head;
    return {text, to_normal_form(from_.text.substr(0, from_.head), form, head).size()};
  }

  NormalizedText operator()(steps::LowercaseStep /*step*/) const { return by_character(from_, out_, put_lowercase); }

  NormalizedText operator()(steps::StripStep step) const {
    size_t begin = 0;
    size_t end = from_.text.size();
    for (size_t at = 0; step.left && at == begin && at < end;) {
      const Utf8Step character = utf8_step(from_.text.substr(at));
      at += character.length;
      if (is_white_space(character.point)) begin = at;
    }
    while (step.right && end > begin) {
      size_t last = end - 1;
      while (last > begin && is_utf8_tail(from_.text[last])) --last;
      if (!is_white_space(utf8_step(from_.text.substr(last)).point)) break;
      end = last;
    }
    return {from_.text.substr(begin, end - begin), from_.head > begin ? std::min(from_.head, end) - begin : 0};
  }

  NormalizedText operator()(steps::StripAccentsStep /*step*/) const {
    return by_character(from_, out_, [](char32_t point, TextBuilder& builder) {
      if (!is_mark(point)) builder.put(point);
    });
  }

  NormalizedText operator()(const steps::PrependStep& step) const {
    if (from_.text.empty()) return from_;
    out_.assign(step.text).append(from_.text);
    return {out_, from_.head > 0 ? from_.head + step.text.size() : 0};
  }

  NormalizedText operator()(const steps::ReplaceStep& step) const {
    TextBuilder builder(from_, out_);
    size_t done = 0;
    const auto replace = [&](size_t begin, size_t end) {
      put_unchanged(done, begin, builder);
      if (end > 0) builder.come_from(end - 1);  // so does `tokenizers`
      builder.put(step.content);
      done = end;
    };
    if (step.pattern) {
      RegexSearch search(*step.pattern, search_, from_.text);
      while (const auto match = search.next()) replace(match->begin, match->end);
    } else {
      for (size_t at = from_.text.find(step.literal); at != std::string_view::npos;
           at = from_.text.find(step.literal, done)) {
        replace(at, at + step.literal.size());
      }
    }
    put_unchanged(done, from_.text.size(), builder);
    return builder.done();
  }

  NormalizedText operator()(const steps::BertStep& step) const {
    NormalizedText now = by_character(from_, out_, [&](char32_t point, TextBuilder& builder) {
      if (step.cleans && (point == 0 || point == 0xFFFD || is_other(point))) return;
      if (step.cleans && is_white_space(point)) point = ' ';
      const bool is_apart = step.separates_chinese && is_chinese(point);
      if (is_apart) builder.put(U' ');
      builder.put(point);
      if (is_apart) builder.put(U' ');
    });
    if (!step.strips_accents && !step.lowers) return now;
    std::string copy;
    if (step.strips_accents) {
      now = StepVisitor(now, copy, search_)(NormalForm::nfd);
      if (copy.empty()) now.text = copy.assign(now.text);
    } else {
      now.text = copy.assign(now.text);
    }
    return by_character(now, out_, [&](char32_t point, TextBuilder& builder) {
      if (step.strips_accents && is_nonspacing_mark(point)) return;
      step.lowers ? put_lowercase(point, builder) : builder.put(point);
    });
  }

  NormalizedText operator()(const std::shared_ptr<const Charsmap>& map) const {
    constexpr size_t kShortCluster = 6;  // bytes; longer clusters are mapped by character
    TextBuilder builder(from_, out_);
    for (size_t at = 0; at < from_.text.size();) {
      const size_t end = cluster_end(at);
      // `tokenizers` counts from the first character what follows a removed beginning.
      builder.come_from(builder.is_empty() ? 0 : at);
      const std::string_view cluster = from_.text.substr(at, end - at);
      const auto whole = cluster.size() < kShortCluster ? map->find(cluster) : std::nullopt;
      const bool is_character = utf8_step(cluster).length == cluster.size();
      if (whole || is_character) builder.put(whole.value_or(cluster));
      for (; !whole && !is_character && at < end;) {
        const std::string_view character = from_.text.substr(at, utf8_step(from_.text.substr(at)).length);
        builder.come_from(builder.is_empty() ? 0 : at);
        builder.put(map->find(character).value_or(character));
        at += character.size();
      }
      at = end;
    }
    return builder.done();
  }

  NormalizedText operator()(steps::NmtStep /*step*/) const {
    return by_character(from_, out_, [](char32_t point, TextBuilder& builder) {
      if (!is_removed_by_nmt(point)) builder.put(is_space_to_nmt(point) ? U' ' : point);
    });
  }

  NormalizedText operator()(steps::ByteLevelStep /*step*/) const {
    TextBuilder builder(from_, out_);
    const ByteAlphabet& alphabet = ByteAlphabet::instance();
    for (size_t at = 0; at < from_.text.size(); ++at) {
      builder.come_from(at);
      builder.put(alphabet.character(static_cast<unsigned char>(from_.text[at])));
    }
    return builder.done();
  }

 private:
  void put_unchanged(size_t begin, size_t end, TextBuilder& builder) const {
    const size_t head_end = std::clamp(from_.head, begin, end);
    builder.come_from(begin);
    builder.put(from_.text.substr(begin, head_end - begin));
    builder.come_from(head_end);
    builder.put(from_.text.substr(head_end, end - head_end));
  }

  /// The end of the extended grapheme cluster that begins at `at`.
  size_t cluster_end(size_t at) const {
    Utf8Step last = utf8_step(from_.text.substr(at));
    at += last.length;
    utf8proc_int32_t state = 0;
    while (at < from_.text.size()) {
      const Utf8Step next = utf8_step(from_.text.substr(at));
      const bool is_ascii = last.point < 0x80 && next.point < 0x80 && last.point != '\r';
      if (is_ascii || is_break(last.point, next.point, state)) break;
      at += next.length;
      last = next;
    }
    return at;
  }

  static bool is_break(char32_t last, char32_t next, utf8proc_int32_t& state) {
    // Known characters stand for those that the installed utf8proc does not know, or takes for something else.
    constexpr utf8proc_int32_t kAccent = 0x301;
    constexpr utf8proc_int32_t kNumberSign = 0x600;  // belongs to what follows
    constexpr utf8proc_int32_t kLetter = 0x3B1;
    const auto known = [](char32_t point) {
      if (point == 0x113D1) return kNumberSign;
      if (point == 0x11A3A) return kLetter;
      return is_late_mark(point) ? kAccent : static_cast<utf8proc_int32_t>(point);
    };
    return utf8proc_grapheme_break_stateful(known(last), known(next), &state);
  }

  NormalizedText from_;
  std::string& out_;
  RegexScratch& search_;
};

}  // namespace

NormalizedText Normalizer::apply(NormalizedText text, Scratch& scratch) const {
  std::string* out = &scratch.text;
  std::string* other = &scratch.next;
  for (const NormalizerStep& step : steps_) {
    text = std::visit(StepVisitor(text, *out, scratch.search), step);
    // If the result is a view of what the step wrote, the next step must write elsewhere.
    const std::less_equal<const char*> before;
    if (before(out->data(), text.text.data()) && before(text.text.data(), out->data() + out->size())) {
      std::swap(out, other);
    }
  }
  return text;
}

}  // namespace caravan
