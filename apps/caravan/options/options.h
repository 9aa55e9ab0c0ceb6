#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "caravan/comm/types.h"
#include "caravan/train/step_range.h"

namespace caravan::app {

/// The parsed command line. The launcher and the rank program use the same parser.
struct TrainArguments {
  std::string recipe;  ///< file; "": the default recipe
  std::optional<int> ranks;
  std::vector<std::string> overrides;
  std::optional<int64_t> stop_after;
  bool plans = false;  ///< --auto
  bool resume = false;
  std::string resume_from;  ///< a checkpoint of the run: "step_000200" or its path; "": not given
  std::string dump_dir;
  std::set<int64_t> dump_steps{0};
  std::string trace_file;
  std::optional<StepRange> trace_steps;
};

struct RunArguments {
  std::optional<int> ranks;
  std::string log_dir;             ///< "": logs have no names
  std::vector<std::string> words;  ///< the program and its arguments
};

struct NewArguments {
  std::string folder;
  std::string template_name{};  ///< "": the first one
};

/// Where the weights of a model rest: of generate, fill-mask, classify and embed.
struct OffloadArguments {
  std::string tier = "none";           ///< none, host, disk
  std::vector<std::string> disk_dirs;  ///< folders on local disks
};

struct GenerateArguments {
  std::string source;  ///< run, checkpoint or Hugging Face folder; "": the newest run
  std::optional<std::string> prompt;
  std::string prompts;                ///< a file of prompts; "": not given
  bool raw = false;                   ///< continue the prompts of a model with a chat template, too
  bool chat = false;                  ///< a conversation on the terminal
  std::optional<std::string> system;  ///< a message before those of the user
  std::optional<int64_t> tokens;
  int64_t samples = 1;  ///< of each prompt
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> typical_p;
  std::optional<double> repetition_penalty;
  double frequency_penalty = 0;
  double presence_penalty = 0;
  std::vector<std::string> logit_bias;  ///< "TOKEN=VALUE", the token by its id or its text
  std::vector<std::string> stop;
  uint64_t seed = 0;
  bool json = false;
  bool times = false;     ///< print what prompts and texts took
  bool truncate = false;  ///< of a prompt longer than the context, use the last tokens
  int64_t batch = 8;      ///< texts that are continued side by side
  int64_t beams = 1;
  std::optional<double> length_penalty;
  std::string draft;  ///< a smaller model; "": none
  int64_t draft_tokens = 4;
  bool average = false;  ///< the average of a run's weights
  std::string precision = "fp32";
  std::optional<int> ranks;
  int tp = 0, pp = 0, ep = 0;  ///< 0: see LoadOptions
  OffloadArguments offload{};
};

/// fill-mask, classify, embed
struct AskArguments {
  enum class What : uint8_t { fill_mask, classify, embed } what = What::fill_mask;
  std::string source;  ///< run, checkpoint or Hugging Face folder; "": the newest run
  std::optional<std::string> text;
  std::string pair;                       ///< "": none
  std::string texts;                      ///< a file of texts; "": not given
  std::optional<std::string> field;       ///< of its JSON lines; default: "text"
  std::optional<std::string> pair_field;  ///< default: "pair", where a line has it, without `field`
  int64_t top = 5;
  std::string pooling = "mean";
  bool json = false;
  bool truncate = false;
  std::optional<int> ranks;
  int tp = 0, pp = 0, ep = 0;  ///< 0: see LoadOptions
  OffloadArguments offload{};
};

struct EvaluateArguments {
  std::string model;                   ///< run, checkpoint or Hugging Face folder
  std::vector<std::string> texts;      ///< files, folders or patterns; empty with tasks
  std::optional<std::string> field;    ///< of texts in JSON lines; default: that of the run, or "text"
  std::vector<std::string> overrides;  ///< "data.key=value": how the texts are read
  std::string tasks;                   ///< a file of multiple-choice questions; "": none
  std::optional<int> ranks;
  std::optional<int64_t> context;        ///< tokens of a window; default: the model's
  std::optional<int64_t> stride;         ///< tokens from one window to the next; default: the context
  int64_t batch = 4;                     ///< windows of a forward pass
  std::optional<std::string> delimiter;  ///< of tasks: stands between context and choice
  bool skip_bad = false;                 ///< of tasks: leave bad lines out
  bool average = false;                  ///< the average of a run's weights
  bool json = false;
};

struct ExportArguments {
  std::string source;    ///< run, checkpoint or Hugging Face folder; "": the newest run
  std::string out;       ///< folder to write to; "": <source>/huggingface or <source>/adapter
  bool adapter = false;  ///< the adapters alone
  std::string base;      ///< of the adapters, by its name in them
  bool average = false;  ///< the average of a run's weights
};

struct ImportArguments {
  std::string source;   ///< Hugging Face folder
  std::string out;      ///< run folder to create; "": runs/<name of source>-N
  std::string adapter;  ///< folder in PEFT's format, to be merged; "": none
};

struct ProveArguments {
  std::string recipe;  ///< file; "": the default recipe
  std::vector<std::string> overrides;
  std::vector<std::string> planted;  ///< faults: "fused attention=1.01"
};

struct InspectArguments {
  std::string flight_folder;  ///< if not "": compare the flight reports in it
  std::string recipe;         ///< a recipe file, a run folder or a checkpoint; "": the default recipe
  std::optional<int> ranks;
  std::vector<std::string> overrides;
  double link_gbit_s = 0;  ///< 0: no times
  double memory_gib = 0;   ///< of a rank; 0: that of this host
  int per_host = 0;        ///< ranks of a host; 0: as many as can be started here
  bool recipe_alone = false;
  bool layouts = false;   ///< of parameters and activations, in place of costs
  bool schedule = false;  ///< of a pipeline, in place of costs
  std::string svg;        ///< file to draw it in; "": none
};

struct PlanArguments {
  std::string recipe;  ///< file; "": the default recipe
  std::vector<std::string> overrides;
  std::optional<int> ranks;  ///< default: all devices of the hardware
  std::string hardware;      ///< a file or the name of a preset
  int64_t per_host = 0;      ///< of a preset: devices; 0: 1
  int64_t hosts = 0;         ///< of a preset; 0: 1
  std::string link;          ///< of a preset, of a device to other hosts: "200Gb"; "": the usual one
  double price = 0;          ///< of a preset: of one device an hour; 0: unknown
  std::string budget;        ///< tokens of a run, "300G"; "": not given
  double seconds = 20;       ///< of processor time for the search
  std::string write;         ///< file for the recipe of the best layout; "": none
  std::string write_rows;    ///< folder for the recipes of all rows; "": none
  std::string trace;         ///< file for its predicted timeline; "": none
  std::string svg;           ///< the same, drawn; "": none
  std::string published;     ///< a table of published runs; "": not given
};

struct PlotArguments {
  std::vector<std::string> runs;
  std::vector<std::string> quantities;  ///< empty: a chart of each kind for one run; loss and speed for several
  std::string axis = "step";
  std::string svg;  ///< file to draw in; "": as text
};

struct CompareArguments {
  std::vector<std::string> runs;
};

struct ReportArguments {
  std::string run;
  std::string out;    ///< "": <run>/report.html
  std::string trace;  ///< of train --trace; "": none
};

struct TokenizerArguments {
  enum class Action : uint8_t { train, encode, decode } action = Action::train;
  std::vector<std::string> texts;  ///< train: as data.text of a recipe
  std::string field = "text";      ///< train: of JSON lines
  int64_t vocabulary = 2048;
  std::string out = "tokenizer.json";
  std::string tokenizer;  ///< encode, decode: "bytes" or a tokenizer.json
  std::string input;      ///< encode: text; decode: ids; "": standard input
};

struct DataArguments {
  std::string file;  ///< a recipe (.toml), or a text as data.text names it; "": the default recipe
  std::vector<std::string> overrides;
  int64_t first_sample = 0;
  int64_t num_samples = 1;
};

struct CacheArguments {
  enum class Action : uint8_t { list, size, clear } action = Action::list;
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
  std::string out;  ///< tune: file for the table
};

struct DoctorArguments {
  std::optional<int> ranks;
  std::vector<std::string> disks;  ///< folders to measure; none: the current one
  bool json = false;
  bool tune = false;     ///< time the libraries of matrix products instead
  std::string hardware;  ///< measure this host as hardware instead, and write this file; "": do not
};

struct AboutArguments {
  enum class What : uint8_t { version, completion, manual } what = What::version;
  std::string shell;
};

inline constexpr const char* kVersion = "caravan 0.1.0";

struct CommandLine {
  enum class Command : uint8_t {
    train,
    run,
    new_project,
    generate,
    ask,
    evaluate,
    export_model,
    import_model,
    inspect,
    plan,
    prove,
    plot,
    compare,
    report,
    tokenizer,
    inspect_data,
    cache,
    bench_comm,
    doctor,
    about
  } command;
  TrainArguments train;
  RunArguments run;
  NewArguments new_project;
  GenerateArguments generate;
  AskArguments ask;
  EvaluateArguments evaluate;
  ExportArguments export_model;
  ImportArguments import_model;
  InspectArguments inspect;
  PlanArguments plan;
  ProveArguments prove;
  PlotArguments plot;
  CompareArguments compare;
  ReportArguments report;
  TokenizerArguments tokenizer;
  DataArguments data;
  CacheArguments cache;
  BenchArguments bench;
  DoctorArguments doctor;
  AboutArguments about;
};

/// Parses the command line. Returns nothing for --help and --version; `text` is then what to print. Throws UsageError
/// for invalid arguments, naming the nearest valid choice.
std::optional<CommandLine> parse_command_line(int argc, const char* const* argv, std::string& text);

}  // namespace caravan::app
