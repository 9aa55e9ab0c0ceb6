#include "caravan/registry/value.h"

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {
namespace {

/// A basic string of TOML, on one line.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += fmt::format("\\{}", c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

std::string to_toml(const RecipeValue& value) {
  struct Printer {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const {
      const std::string text = fmt::format("{}", v);  // the shortest that reads back as the same value
      return text.find_first_of(".einf") == std::string::npos ? text + ".0" : text;
    }
    std::string operator()(const std::string& v) const { return quoted(v); }
    std::string operator()(const std::vector<std::string>& v) const {
      std::vector<std::string> items;
      for (const std::string& item : v) items.push_back(quoted(item));
      return "[" + join(items) + "]";
    }
    std::string operator()(const std::vector<int64_t>& v) const { return "[" + join(v) + "]"; }
    std::string operator()(const TrainTokenizer& v) const { return fmt::format("{{train = {}}}", v.vocabulary); }
    std::string operator()(const std::vector<StepPoint>& v) const {
      std::vector<std::string> items;
      for (const StepPoint& point : v) items.push_back(fmt::format("[{}, {}]", point.step, (*this)(point.value)));
      return "[" + join(items) + "]";
    }
    std::string operator()(const std::vector<ParameterGroup>& v) const {
      std::vector<std::string> items;
      for (const ParameterGroup& group : v) {
        const std::string decay = group.weight_decay ? ", weight_decay = " + (*this)(*group.weight_decay) : "";
        items.push_back(fmt::format("{{parameters = {}, lr_factor = {}{}}}", (*this)(group.parameters),
                                    (*this)(group.lr_factor), decay));
      }
      return "[" + join(items) + "]";
    }
    std::string operator()(const std::vector<DataSource>& v) const {
      std::vector<std::string> items;
      for (const DataSource& source : v) {
        items.push_back(fmt::format("{{path = {}, weight = {}}}", quoted(source.path), (*this)(source.weight)));
      }
      return "[" + join(items) + "]";
    }
  };
  return std::visit(Printer{}, value);
}

}  // namespace caravan
