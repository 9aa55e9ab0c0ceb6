#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace caravan {

/// A compiled pattern of a tokenizer.json file. Immutable: threads may share it, each with its own RegexScratch.
class Regex {
 public:
  /// `pattern` is in the dialect of tokenizer.json (regex_dialect.h). `subject`, its JSON path, names it in errors.
  /// Throws DataError for a pattern that does not compile or is not supported.
  Regex(std::string_view pattern, std::string_view subject);
  /// A pattern that matches `literal` itself.
  static Regex literal(std::string_view literal, std::string_view subject);
  /// A pattern in the syntax of PCRE2.
  static Regex pcre2(std::string pattern, std::string_view subject) { return {std::move(pattern), subject, 0}; }

 private:
  friend class RegexSearch;
  friend class RegexScratch;
  struct Code;
  Regex(std::string translated, std::string_view subject, int);
  std::shared_ptr<const Code> code_;
};

/// Scratch memory of searches. One thread at a time.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class RegexSearch;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

/// Iterates over the matches in a text, left to right, without overlap. Skips an empty match directly after a match.
class RegexSearch {
 public:
  struct Match {
    size_t begin;
    size_t end;
  };

  /// `text` is well-formed UTF-8. All arguments outlive the search.
  RegexSearch(const Regex& regex, RegexScratch& scratch, std::string_view text);
  /// The next match. Throws DataError if the pattern needs too much backtracking on this text.
  std::optional<Match> next();

 private:
  const Regex::Code& code_;
  RegexScratch::Memory& memory_;
  std::string_view text_;
  size_t from_ = 0;
  size_t last_end_ = ~size_t{0};
};

}  // namespace caravan
