#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/commands.h"
#include "apps/caravan/commands/model_ranks.h"
#include "apps/caravan/commands/model_source.h"
#include "apps/caravan/commands/prompts.h"
#include "caravan/base/error.h"
#include "caravan/generate/answers.h"

namespace caravan::app {
namespace {

using Json = nlohmann::ordered_json;
using What = AskArguments::What;

std::vector<AskedText> texts_of_all(const AskArguments& arguments, Communicator& world) {
  const auto read = [&] {
    Json list = Json::array();
    for (const AskedText& each : read_texts(arguments)) list.push_back({each.text, each.pair, each.where});
    return list;
  };
  std::vector<AskedText> texts;
  for (const Json& each : json_of_rank_0(world, read, "texts")) texts.push_back({each.at(0), each.at(1), each.at(2)});
  return texts;
}

/// What is printed for a text.
struct Answer {
  Json json;
  std::string text;
};

Answer fill(const LanguageModel& model, const TextInput& input, int64_t top) {
  const auto masks = fill_mask(model, input, top);
  const std::string text = filled(model, input, masks);
  Answer answer{Json{{"filled", text}}, text + "\n"};
  answer.json["masks"] = Json::array();
  for (const auto& scores : masks) {
    Json list = Json::array();
    for (const TokenScore& score : scores) {
      list.push_back({{"token", score.token}, {"id", score.id}, {"probability", score.probability}});
      answer.text += fmt::format("  {:.4f}  {}\n", score.probability, score.token);
    }
    answer.json["masks"].push_back(std::move(list));
    if (masks.size() > 1) answer.text += "\n";
  }
  return answer;
}

Answer tell_class(const LanguageModel& model, const TextInput& input) {
  Answer answer;
  const std::vector<ClassScore> scores = classify(model, input);
  answer.json["class"] = scores.front().name;
  answer.json["scores"] = Json::object();
  for (const ClassScore& score : scores) {
    answer.json["scores"][score.name] = score.probability;
    answer.text += fmt::format("{:.4f}  {}\n", score.probability, score.name);
  }
  return answer;
}

Answer tell_vector(const LanguageModel& model, const TextInput& input, const std::string& pooling) {
  const Pooling kind = pooling == "first" ? Pooling::first : pooling == "last" ? Pooling::last : Pooling::mean;
  Answer answer;
  const std::vector<float> vector = embed(model, input, kind);
  answer.json["embedding"] = vector;
  for (const float value : vector) answer.text += fmt::format("{}{:.6g}", answer.text.empty() ? "" : " ", value);
  answer.text += "\n";
  return answer;
}

Answer answer_of(const LanguageModel& model, const TextInput& input, const AskArguments& arguments) {
  switch (arguments.what) {
    case What::fill_mask: return fill(model, input, arguments.top);
    case What::classify: return tell_class(model, input);
    case What::embed: return tell_vector(model, input, arguments.pooling);
  }
  throw InternalError({"ask", "", "is of an unknown kind", "", ""});
}

}  // namespace

int ask(const AskArguments& arguments) {
  const ModelRanks ranks(arguments.ranks, arguments.offload);
  const std::vector<AskedText> texts = texts_of_all(arguments, ranks.world());
  const LanguageModel model = ranks.load(source_or_newest(arguments.source, "ask"),
                                         {.tp = arguments.tp, .pp = arguments.pp, .ep = arguments.ep});
  // Answers of several lines need to be told apart.
  const bool are_numbered = texts.size() > 1 && arguments.what != What::embed && !arguments.json;
  int64_t number = 0;
  for (const AskedText& each : texts) {
    Answer answer = answer_of(model, {each.text, each.pair, arguments.truncate, each.where}, arguments);
    if (!ranks.is_first()) continue;
    Json line{{"text", each.text}};
    if (!each.pair.empty()) line["pair"] = each.pair;
    line.update(answer.json);
    const std::string begin = are_numbered ? fmt::format("--- {} ---\n", number++) : "";
    const std::string out =
        arguments.json ? line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n" : begin + answer.text;
    std::fwrite(out.data(), 1, out.size(), stdout);
  }
  return 0;
}

}  // namespace caravan::app
