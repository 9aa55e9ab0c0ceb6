#include "caravan/data/unicode/regex.h"

#include <array>
#include <new>

#include <fmt/format.h>
#include <pcre2.h>

#include "caravan/base/error.h"
#include "caravan/data/unicode/regex_dialect.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {

struct Regex::Code {
  explicit Code(pcre2_code* code, std::string subject_) : compiled(code), subject(std::move(subject_)) {}
  ~Code() { pcre2_code_free(compiled); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  pcre2_code* compiled;
  std::string subject;
};

struct RegexScratch::Memory {
  Memory()
      : match(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kStackStart, kStackLimit, nullptr)) {
    if (match == nullptr || context == nullptr) throw std::bad_alloc();
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Memory() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  static constexpr size_t kStackStart = size_t{32} << 10;
  static constexpr size_t kStackLimit = size_t{64} << 20;
  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;  // null where PCRE2 was built without JIT
};

Regex::Regex(std::string_view pattern, std::string_view subject) : Regex(to_pcre2(pattern, subject), subject, 0) {}

Regex Regex::literal(std::string_view literal, std::string_view subject) {
  std::string escaped;
  while (!literal.empty()) {
    const Utf8Step step = utf8_step(literal);
    escaped += fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(step.point));
    literal.remove_prefix(step.length);
  }
  return {std::move(escaped), subject, 0};
}

Regex::Regex(std::string translated, std::string_view subject, int) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context.get());
  if (compiled == nullptr) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    throw DataError({.op = "tokenizer",
                     .subject = std::string(subject),
                     .fact = fmt::format("the pattern does not compile: {}, at offset {} of {}",
                                         reinterpret_cast<const char*>(text.data()), offset, translated),
                     .action = "correct the pattern"});
  }
  code_ = std::make_shared<const Code>(compiled, std::string(subject));
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);  // if it fails, pcre2_match interprets: slower, same matches
}

RegexScratch::RegexScratch() : memory_(std::make_unique<Memory>()) {}
RegexScratch::~RegexScratch() = default;

RegexSearch::RegexSearch(const Regex& regex, RegexScratch& scratch, std::string_view text)
    : code_(*regex.code_), memory_(*scratch.memory_), text_(text) {}

std::optional<RegexSearch::Match> RegexSearch::next() {
  while (from_ <= text_.size()) {
    const int found = pcre2_match(code_.compiled, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from_,
                                  PCRE2_NO_UTF_CHECK, memory_.match, memory_.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(found, message.data(), message.size());
      throw DataError({.op = "tokenizer",
                       .subject = code_.subject,
                       .fact = fmt::format("the pattern fails at byte {} of {}: {}", from_, text_.size(),
                                           reinterpret_cast<const char*>(message.data())),
                       .action = "use a pattern that backtracks less"});
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(memory_.match);
    const Match match{offsets[0], offsets[1]};
    if (match.begin == match.end && match.end == last_end_) {
      from_ += from_ < text_.size() ? utf8_step(text_.substr(from_)).length : 1;
      continue;
    }
    from_ = last_end_ = match.end;
    return match;
  }
  from_ = text_.size() + 1;
  return std::nullopt;
}

}  // namespace caravan
