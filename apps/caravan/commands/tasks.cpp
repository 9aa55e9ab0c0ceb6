#include "apps/caravan/commands/tasks.h"

#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/data/files/json_lines.h"

namespace caravan::app {
namespace {

/// The field of the line that has one of these names.
JsonReader field(const JsonReader& line, const std::string& where, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (line.has(name)) return line[name];
  }
  throw DataError({"evaluate", where, "the line has no field " + join(names, " or "), "", "add it, or use --skip-bad"});
}

Question question_of(const nlohmann::json& object, const std::string& where) {
  const JsonReader line(object, "", where, "evaluate");
  Question question;
  question.context = field(line, where, {"context", "query"}).string();
  const JsonReader choices = field(line, where, {"choices"});
  if (!choices.value().is_array() || choices.size() < 2)
    choices.refuse("is not a list of two or more", "list the answers");
  for (size_t i = 0; i < choices.size(); ++i) question.choices.push_back(choices.element(i).string());
  const auto last = static_cast<int64_t>(question.choices.size()) - 1;
  question.gold = field(line, where, {"gold", "answer", "label"}).integer(0, last);
  return question;
}

}  // namespace

TaskFile read_tasks(const std::filesystem::path& path, bool skip_bad,
                    const std::function<EncodedQuestion(const Question&)>& encode) {
  const MappedFile content(path, "evaluate");
  TaskFile file;
  const auto take = [&](int64_t number, const nlohmann::json& object) {
    const std::string where = fmt::format("{}:{}", path.string(), number);
    const Question question = question_of(object, where);
    try {
      file.questions.push_back(encode(question));
    } catch (const DataError& error) {
      const ErrorText& text = error.text();
      throw DataError({text.op, where, text.subject + " " + text.fact, text.where, text.action});
    }
  };
  LineSplitter lines([&](int64_t number, std::string_view line) {
    try {
      take(number, parse_json_line(line, path, number));
    } catch (const DataError&) {
      if (!skip_bad) throw;
      ++file.skipped;
    }
  });
  lines.put(content.text());
  lines.finish();
  if (file.questions.empty()) {
    throw DataError(
        {"evaluate", path.string(),
         file.skipped > 0 ? fmt::format("holds no question; {} bad lines", file.skipped) : "holds no question", "",
         R"(write a line {"context": "1 + 1 =", "choices": [" 2", " 3"], "gold": 0} for each)"});
  }
  return file;
}

}  // namespace caravan::app
