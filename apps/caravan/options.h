#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "caravan/comm/types.h"

namespace caravan::app {

/// What a command line asks for. Both programs, the launcher and the rank, read it with the same parser.
struct TrainArguments {
  std::string recipe;  ///< file; "": the default recipe
  std::optional<int> ranks;
  std::vector<std::string> overrides;
  std::optional<int64_t> stop_after;
  bool resume = false;
  std::string dump_dir;
  std::set<int64_t> dump_steps{0};
};

struct GenerateArguments {
  std::string source;  ///< run, checkpoint or Hugging Face folder; "": the newest run
  std::optional<std::string> prompt;
  std::optional<int64_t> tokens;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  uint64_t seed = 0;
};

struct ExportArguments {
  std::string directory;  ///< where to write; of a run folder: its newest checkpoint, into <run>/huggingface
  std::string from;       ///< run or checkpoint folder; "": the newest run
};

struct ImportArguments {
  std::string source;  ///< Hugging Face folder
  std::string out;     ///< run folder to make; "": runs/<name of source>-N
};

struct InspectArguments {
  std::string flight_folder;  ///< not "": compare the flight reports in it
  std::string recipe;
  std::optional<int> ranks;
  std::vector<std::string> overrides;
};

struct TokenizerArguments {
  enum class Action : uint8_t { train, encode, decode } action = Action::train;
  std::vector<std::string> texts;  ///< train: files
  int64_t vocabulary = 2048;
  std::string out = "tokenizer.json";
  std::string tokenizer;  ///< encode, decode: "bytes" or a tokenizer.json
  std::string input;      ///< encode: text; decode: ids; "": standard input
};

struct BenchArguments {
  std::optional<int> ranks;
  std::vector<Verb> verbs;
  std::vector<Dtype> dtypes;
  std::vector<int64_t> bytes;
  std::string backend = "auto";
  bool copy = false;
  bool in_place = false;
  bool json = false;
  bool tune = false;
  std::string out;  ///< tune: file of the table
};

struct DoctorArguments {
  std::optional<int> ranks;
  bool json = false;
};

struct CommandLine {
  enum class Command : uint8_t {
    train,
    generate,
    export_model,
    import_model,
    inspect,
    tokenizer,
    bench_comm,
    doctor
  } command;
  TrainArguments train;
  GenerateArguments generate;
  ExportArguments export_model;
  ImportArguments import_model;
  InspectArguments inspect;
  TokenizerArguments tokenizer;
  BenchArguments bench;
  DoctorArguments doctor;
};

/// Reads the command line. Returns nothing if it was answered here (--help, --version: `text` holds what to print).
/// Throws UsageError for what it does not understand, naming the nearest valid choice.
std::optional<CommandLine> parse_command_line(int argc, const char* const* argv, std::string& text);

}  // namespace caravan::app
