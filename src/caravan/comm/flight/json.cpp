#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/comm/flight/report.h"

namespace caravan {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "caravan flight 1";
constexpr int kMostRanks = 1 << 24;

std::string verb_name(uint8_t verb) {
  if (verb == kSplitCall) return "split";
  return verb < kNumVerbs ? std::string(name(static_cast<Verb>(verb))) : std::to_string(verb);
}

Json json_of(const FlightEntry& entry) {
  const Descriptor& call = entry.call;
  return {{"number", entry.number},
          {"group", fmt::format("{:016x}", entry.group.identity)},
          {"name", entry.group.name.data()},
          {"group_rank", entry.group.rank},
          {"group_size", entry.group.size},
          {"verb", verb_name(call.verb)},
          {"op", name(static_cast<ReduceOp>(call.op))},
          {"dtype", name(static_cast<Dtype>(call.dtype))},
          {"count", call.count},
          {"root", call.root},
          {"sequence", call.sequence},
          {"what", call.what.data()},
          {"file", call.file.data()},
          {"line", call.line},
          {"begin_ns", entry.begin_ns},
          {"end_ns", entry.end_ns},
          {"state", name(entry.state)}};
}

/// A malformed field; the message names it.
struct Wrong {
  std::string fact;
};

template <typename T>
T field(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) throw Wrong{fmt::format("\"{}\" is missing", key)};
  if constexpr (std::is_integral_v<T>) {
    if (!found->is_number_integer()) throw Wrong{fmt::format("\"{}\" is not an integer", key)};
  } else if (!found->is_string()) {
    throw Wrong{fmt::format("\"{}\" is not a string", key)};
  }
  return found->get<T>();
}

int bounded(const Json& json, const char* key, int least, int most) {
  const auto number = field<int64_t>(json, key);
  if (number < least || number > most) {
    throw Wrong{fmt::format("\"{}\" is {}, not {} to {}", key, number, least, most)};
  }
  return static_cast<int>(number);
}

/// The enumerator whose name is the value of `key`.
template <typename T, typename Name>
T named(const Json& json, const char* key, int count, Name&& name_of) {
  const auto text = field<std::string>(json, key);
  for (int i = 0; i < count; ++i) {
    if (name_of(static_cast<T>(i)) == text) return static_cast<T>(i);
  }
  throw Wrong{fmt::format("\"{}\" is \"{}\", which is unknown", key, text)};
}

template <size_t N>
void copy_cut(std::array<char, N>& to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), N - 1));
}

uint64_t identity_of(const Json& json) {
  const auto text = field<std::string>(json, "group");
  char* end = nullptr;
  const uint64_t identity = std::strtoull(text.c_str(), &end, 16);
  if (text.size() != 16 || end != text.c_str() + 16) throw Wrong{fmt::format("\"group\" is \"{}\"", text)};
  return identity;
}

FlightEntry entry_of(const Json& json) {
  FlightEntry entry;
  entry.number = field<uint64_t>(json, "number");
  entry.group.identity = identity_of(json);
  copy_cut(entry.group.name, field<std::string>(json, "name"));
  entry.group.size = bounded(json, "group_size", 1, kMostRanks);
  entry.group.rank = bounded(json, "group_rank", 0, entry.group.size - 1);
  Descriptor& call = entry.call;
  call.verb = named<uint8_t>(json, "verb", kNumVerbs + 1, verb_name);
  call.op = static_cast<uint8_t>(named<ReduceOp>(json, "op", 3, [](ReduceOp op) { return name(op); }));
  call.dtype = static_cast<uint8_t>(named<Dtype>(json, "dtype", kNumDtypes, [](Dtype dtype) { return name(dtype); }));
  call.count = field<int64_t>(json, "count");
  call.root = bounded(json, "root", -1, kMostRanks);
  call.sequence = field<uint64_t>(json, "sequence");
  copy_cut(call.what, field<std::string>(json, "what"));
  copy_cut(call.file, field<std::string>(json, "file"));
  call.line = field<uint32_t>(json, "line");
  entry.begin_ns = field<int64_t>(json, "begin_ns");
  entry.end_ns = field<int64_t>(json, "end_ns");
  entry.state = named<FlightState>(json, "state", 3, [](FlightState state) { return name(state); });
  const bool is_message =
      call.verb == static_cast<uint8_t>(Verb::send) || call.verb == static_cast<uint8_t>(Verb::recv);
  if (is_message && (call.root < 0 || call.root >= entry.group.size)) {
    throw Wrong{fmt::format("\"root\" is {}, not a rank of its communicator", call.root)};
  }
  return entry;
}

FlightReport report_of(const Json& json) {
  if (!json.is_object()) throw Wrong{"it is not an object"};
  if (field<std::string>(json, "format") != kFormat) throw Wrong{fmt::format("\"format\" is not \"{}\"", kFormat)};
  FlightReport report;
  report.job = field<std::string>(json, "job");
  report.world_size = bounded(json, "world_size", 1, kMostRanks);
  report.rank = bounded(json, "rank", 0, report.world_size - 1);
  report.written_by = bounded(json, "written_by", 0, report.world_size - 1);
  report.backend = field<std::string>(json, "backend");
  report.host = field<std::string>(json, "host");
  report.reason = field<std::string>(json, "reason");
  report.written_ns = field<int64_t>(json, "written_ns");
  report.written_unix_ns = field<int64_t>(json, "written_unix_ns");
  const auto operations = json.find("operations");
  if (operations == json.end() || !operations->is_array()) throw Wrong{"\"operations\" is not a list"};
  for (const Json& operation : *operations) {
    try {
      if (!operation.is_object()) throw Wrong{"it is not an object"};
      report.entries.push_back(entry_of(operation));
      const size_t i = report.entries.size() - 1;
      if (i > 0 && report.entries[i].number <= report.entries[i - 1].number) throw Wrong{"it is out of order"};
    } catch (Wrong& wrong) {
      throw Wrong{fmt::format("operation {}: {}", &operation - operations->get_ptr<const Json::array_t*>()->data(),
                              wrong.fact)};
    }
  }
  return report;
}

}  // namespace

std::string to_json(const FlightReport& report) {
  const Json head = {{"format", kFormat},
                     {"job", report.job},
                     {"rank", report.rank},
                     {"world_size", report.world_size},
                     {"written_by", report.written_by},
                     {"backend", report.backend},
                     {"host", report.host},
                     {"reason", report.reason},
                     {"written_ns", report.written_ns},
                     {"written_unix_ns", report.written_unix_ns}};
  // Texts may be cut in the middle of a character.
  constexpr auto kReplace = Json::error_handler_t::replace;
  std::string text = head.dump(1, ' ', false, kReplace);
  text.resize(text.size() - 2);  // "\n}"
  text += ",\n \"operations\": [";
  for (size_t i = 0; i < report.entries.size(); ++i) {
    text += i == 0 ? "\n  " : ",\n  ";
    text += json_of(report.entries[i]).dump(-1, ' ', false, kReplace);
  }
  return text + "\n ]\n}\n";
}

FlightReport flight_report_from_json(std::string_view text, const std::filesystem::path& path) {
  std::string fact;
  try {
    return report_of(Json::parse(text));
  } catch (const Json::parse_error& error) {
    fact = fmt::format("is not JSON: it breaks at byte {} of {}", error.byte, text.size());
  } catch (const Json::exception& error) {
    fact = fmt::format("is not a flight report: {}", error.what());
  } catch (const Wrong& wrong) {
    fact = fmt::format("is not a flight report: {}", wrong.fact);
  }
  throw DataError({.op = "flight",
                   .subject = path.string(),
                   .fact = std::move(fact),
                   .action = "take it out of the folder to compare the others"});
}

}  // namespace caravan
