#include "caravan/data/unicode/regex_dialect.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/data/unicode/unicode_additions.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotWhiteSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

// Without C and its subcategories: what is unassigned depends on the version. Without Mn, Mc, Me: U+1171E moved between
// them.
constexpr std::array<std::string_view, 28> kCategories{"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "N",  "Nd", "Nl",
                                                       "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",
                                                       "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

constexpr int kDeepest = 50;

std::string code_point(char32_t point) { return fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(point)); }

/// One escape or literal: a code point, or the members of a set.
struct Item {
  std::optional<char32_t> point;
  std::string members;
  std::string complement;  // the members of the complement, if they can be written inside a class
  bool negated = false;    // the item is the complement of `members`
};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view subject) : text_(pattern), subject_(subject) {}

  std::string run() {
    check_utf8(text_, "tokenizer", subject_);
    alternatives(0);
    if (at_ < text_.size()) refuse("a ) without its (");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view fact) const {
    throw DataError({.op = "tokenizer",
                     .subject = std::string(subject_),
                     .fact = fmt::format("{} at offset {} of the pattern {}", fact, at_, text_),
                     .action = "supported: literals, . ^ $, classes, \\s \\S \\d \\D, \\p{..} of general categories, "
                               "groups (?:..) (?i:..) (?>..), look-around, quantifiers"});
  }

  bool done() const { return at_ == text_.size(); }
  bool take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }
  char32_t next_point() {
    if (done()) refuse("the end");
    const Utf8Step step = utf8_step(text_.substr(at_));
    at_ += step.length;
    return step.point;
  }

  void alternatives(int depth) {
    if (depth > kDeepest) refuse(fmt::format("groups nested deeper than {}", kDeepest));
    while (!done() && text_[at_] != ')') {
      if (take("|")) {
        out_ += "|";
        last_folded_ = 0;
        continue;
      }
      const size_t start = out_.size();
      if (atom(depth)) quantifier(start);
    }
    last_folded_ = 0;
  }

  /// False if no quantifier may follow.
  bool atom(int depth) {
    if (text_[at_] == '(') return group(depth);
    if (take("^") || take("$")) {
      out_ += text_[at_ - 1];
      return false;
    }
    if (take(".")) {
      out_ += "[^\\x{A}]";
    } else if (take("[")) {
      character_class();
    } else if (text_[at_] == '\\') {
      if (take("\\A") || take("\\z")) {
        out_ += text_.substr(at_ - 2, 2);
        return false;
      }
      put(escape());
      return true;
    } else {
      if (std::string_view("*+?").find(text_[at_]) != std::string_view::npos) refuse("a quantifier without an operand");
      put({.point = next_point(), .members = {}, .complement = {}});
      return true;
    }
    last_folded_ = 0;
    return true;
  }

  void put(const Item& item) {
    if (item.point) {
      if (fold_) check_foldable(*item.point);
      out_ += code_point(*item.point);
      return;
    }
    if (fold_) refuse("a set of characters inside (?i:..)");
    out_ += fmt::format("[{}{}]", item.negated ? "^" : "", item.members);
  }

  void check_foldable(char32_t point) {
    if (point >= 0x80) refuse("a character outside ASCII inside (?i:..)");
    const char now = static_cast<char>(std::tolower(static_cast<int>(point)));
    for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"}) {
      if (last_folded_ == pair[0] && now == pair[1]) refuse(fmt::format("\"{}\" inside (?i:..)", pair));
    }
    last_folded_ = now;
  }

  bool group(int depth) {
    constexpr std::array<std::string_view, 7> kOpenings{"(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!", "(?i:"};
    const bool outer_fold = fold_;
    bool is_assertion = false;
    const auto* opening =
        std::find_if(kOpenings.begin(), kOpenings.end(), [this](std::string_view open) { return take(open); });
    if (opening != kOpenings.end()) {
      out_ += *opening;
      fold_ = fold_ || *opening == "(?i:";
      is_assertion = opening->find_first_of("=!") != std::string_view::npos;
    } else {
      if (text_.substr(at_).starts_with("(?")) refuse("an option or a named group");
      take("(");
      out_ += "(?:";
    }
    last_folded_ = 0;
    alternatives(depth + 1);
    if (!take(")")) refuse("a ( without its )");
    out_ += ")";
    fold_ = outer_fold;
    return !is_assertion;
  }

  void quantifier(size_t atom_start) {
    if (done()) return;
    if (take("*") || take("+") || take("?")) {
      out_ += text_[at_ - 1];
      if (take("?") || take("+")) out_ += text_[at_ - 1];
    } else if (text_[at_] == '{') {
      if (!interval(atom_start)) return;
    } else {
      return;
    }
    last_folded_ = 0;
    if (!done() && std::string_view("*+?{").find(text_[at_]) != std::string_view::npos) {
      refuse("a quantifier of a quantifier");
    }
  }

  /// {n}, {n,}, {,m}, {n,m}; false if the brace is a literal.
  bool interval(size_t atom_start) {
    const size_t begin = at_ + 1;
    const size_t end = text_.find('}', begin);
    if (end == std::string_view::npos) return false;
    const std::string_view inside = text_.substr(begin, end - begin);
    if (inside.empty() || inside == "," || inside.find_first_not_of("0123456789,") != std::string_view::npos ||
        std::count(inside.begin(), inside.end(), ',') > 1) {
      return false;
    }
    const size_t comma = inside.find(',');
    const bool is_fixed = comma == std::string_view::npos;
    const auto number = [this](std::string_view digits) {
      if (digits.size() > 4) refuse("a repeat of more than 9999");
      return digits.empty() ? 0 : std::stoi(std::string(digits));
    };
    const int least = number(inside.substr(0, comma));
    const std::string_view most = is_fixed ? std::string_view() : inside.substr(comma + 1);
    if (!most.empty() && number(most) < least) refuse("a repeat whose bounds are exchanged");
    at_ = end + 1;
    out_ += is_fixed ? fmt::format("{{{}}}", least) : fmt::format("{{{},{}}}", least, most);
    if (!is_fixed && take("?")) {
      out_ += "?";
    } else if (take("+") || take("?")) {
      out_.insert(atom_start, "(?:");
      out_ += fmt::format("){}", text_[at_ - 1]);
    }
    return true;
  }

  void character_class() {
    const bool is_negated = take("^");
    std::string members;
    if (!done() && text_[at_] == ']') refuse("an empty class, or a ] in it that is not written \\]");
    while (!take("]")) {
      if (done()) refuse("a [ without its ]");
      if (text_[at_] == '[') refuse("a [ inside a class");
      if (text_.substr(at_).starts_with("&&")) refuse("an intersection of classes");
      const Item item = text_[at_] == '\\' ? escape() : Item{.point = next_point(), .members = {}, .complement = {}};
      if (fold_ && (!item.point || *item.point >= 0x80)) refuse("a class of other than ASCII inside (?i:..)");
      if (item.negated && item.complement.empty()) refuse("a negated property inside a class");
      members += item.point ? code_point(*item.point) : item.negated ? item.complement : item.members;
      if (!text_.substr(at_).starts_with("-") || text_.substr(at_).starts_with("-]")) continue;
      take("-");
      const Item last =
          !done() && text_[at_] == '\\' ? escape() : Item{.point = next_point(), .members = {}, .complement = {}};
      if (!item.point || !last.point || *last.point < *item.point || *last.point == U'[')
        refuse("an empty or reversed range");
      if (fold_ && *last.point >= 0x80) refuse("a class of other than ASCII inside (?i:..)");
      members += "-" + code_point(*last.point);
    }
    out_ += fmt::format("[{}{}]", is_negated ? "^" : "", members);
  }

  Item escape() {
    take("\\");
    const char32_t letter = next_point();
    const auto point = [](char32_t value) { return Item{.point = value, .members = {}, .complement = {}}; };
    switch (letter) {
      case 'n': return point('\n');
      case 'r': return point('\r');
      case 't': return point('\t');
      case 'f': return point('\f');
      case 'v': return point('\v');
      case 'a': return point('\a');
      case 'e': return point(0x1B);
      case 's': return {{}, std::string(kWhiteSpace), std::string(kNotWhiteSpace), false};
      case 'S': return {{}, std::string(kWhiteSpace), std::string(kNotWhiteSpace), true};
      case 'd': return {{}, category_members("Nd"), "", false};
      case 'D': return {{}, category_members("Nd"), "", true};
      case 'p': return property(false);
      case 'P': return property(true);
      case 'x':
      case 'u': return point(hexadecimal(letter == 'u'));
      default: break;
    }
    if (letter >= 0x80 || std::isalnum(static_cast<int>(letter)) != 0) {
      refuse(fmt::format("\\{}", text_.substr(at_ - 1, 1)));
    }
    return point(letter);
  }

  Item property(bool is_negated) {
    if (!take("{")) refuse("\\p without {");
    if (take("^")) is_negated = !is_negated;
    const size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) refuse("\\p{ without }");
    const std::string_view name = text_.substr(at_, end - at_);
    if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end()) {
      refuse(
          fmt::format("the property {} (of properties, the general categories L, M, N, P, S, Z and most parts of them "
                      "are supported)",
                      name));
    }
    at_ = end + 1;
    return {{}, category_members(name), "", is_negated};
  }

  /// \xHH, \x{H..}, \uHHHH.
  char32_t hexadecimal(bool is_u) {
    const bool is_braced = !is_u && take("{");
    const size_t most = is_u ? 4 : is_braced ? 6 : 2;
    size_t count = 0;
    char32_t value = 0;
    while (count < most && !done() && std::isxdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      value = value * 16 + static_cast<char32_t>(std::stoi(std::string(1, text_[at_]), nullptr, 16));
      ++at_;
      ++count;
    }
    const bool is_complete = is_braced ? count > 0 && take("}") : count == most;
    const bool is_scalar = value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
    // \x80 to \xff are bytes, not characters, for Oniguruma.
    if (!is_complete || !is_scalar || (!is_u && !is_braced && value >= 0x80))
      refuse("a number that is not a character");
    return value;
  }

  std::string_view text_;
  std::string_view subject_;
  std::string out_;
  size_t at_ = 0;
  bool fold_ = false;
  char last_folded_ = 0;  // the literal just before this one inside (?i:..), 0 if none
};

}  // namespace

std::string category_members(std::string_view category) {
  std::string out = fmt::format("\\p{{{}}}", category);
  for (const UnicodeAddition& addition : unicode_additions()) {
    if (!addition.category.starts_with(category)) continue;
    out += code_point(addition.first);
    if (addition.last != addition.first) out += "-" + code_point(addition.last);
  }
  return out;
}

std::string to_pcre2(std::string_view pattern, std::string_view subject) { return Translator(pattern, subject).run(); }

std::string word_members() {
  // Alphabetic (L, Nl, marks and four ranges of circled letters), M, Nd, Pc and the two join controls.
  std::string out;
  for (const char* category : {"L", "M", "Nd", "Nl", "Pc"}) out += category_members(category);
  return out + "\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";
}

std::string_view white_space_members() noexcept { return kWhiteSpace; }

}  // namespace caravan
