#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/commands.h"
#include "apps/caravan/commands/model_source.h"
#include "apps/caravan/commands/prompts.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/world.h"
#include "caravan/generate/answers.h"

namespace caravan::app {
namespace {

using Json = nlohmann::ordered_json;
using What = AskArguments::What;

/// The texts that rank 0 reads: standard input is its alone.
std::vector<AskedText> texts_of_all(const AskArguments& arguments, Communicator& world) {
  if (world.size() == 1) return read_texts(arguments);
  const auto packed = [&] {
    Json list = Json::array();
    for (const AskedText& each : read_texts(arguments)) list.push_back({each.text, each.pair});
    const std::vector<uint8_t> bytes = Json::to_cbor(list);
    return std::string(bytes.begin(), bytes.end());
  };
  std::vector<AskedText> texts;
  for (const Json& each : Json::from_cbor(text_of_rank_0(world, packed, "texts"))) {
    texts.push_back({each[0].get<std::string>(), each[1].get<std::string>()});
  }
  return texts;
}

/// What is printed for a text.
struct Answer {
  Json json;
  std::string text;
};

Answer fill(const LanguageModel& model, const TextInput& input, int64_t top) {
  const auto masks = fill_mask(model, input, top);
  Answer answer{Json::object(), filled(model, input, masks) + "\n"};
  answer.json["filled"] = filled(model, input, masks);
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
  plan_ranks(arguments.ranks, "", /*default_ranks=*/1);  // refuses --ranks that contradicts the environment
  const RankInfo info = RankInfo::from_environment();
  const Runtime runtime({.intra_op_threads = threads_per_rank(Recipe(), info.local_world_size)});
  const auto store = open_store(info);
  const auto world = make_world("auto", info, store);
  const std::vector<AskedText> texts = texts_of_all(arguments, *world);
  const LanguageModel model =
      load(source_or_newest(arguments.source, "ask"), Mesh::create(world, {{"dp", world->size()}}),
           {.tp = arguments.tp, .pp = arguments.pp, .ep = arguments.ep});
  for (const AskedText& each : texts) {
    Answer answer = answer_of(model, {each.text, each.pair, arguments.truncate}, arguments);
    if (world->rank() != 0) continue;
    Json line{{"text", each.text}};
    if (!each.pair.empty()) line["pair"] = each.pair;
    line.update(answer.json);
    const std::string out = arguments.json ? line.dump() + "\n" : answer.text;
    std::fwrite(out.data(), 1, out.size(), stdout);
  }
  return 0;
}

}  // namespace caravan::app
