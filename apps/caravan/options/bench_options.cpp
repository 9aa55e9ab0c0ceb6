#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <memory>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/caravan/options/option_groups.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/choice/algorithm.h"
#include "caravan/comm/measure/exercise.h"
#include "caravan/comm/world.h"
#include "caravan/cost/hardware.h"

namespace caravan::app {
namespace {

/// The lists of `bench comm` as given on the command line; "": not given.
struct BenchWords {
  std::string verbs;
  std::string dtypes;
  std::string bytes;
};

const char* const kCommHelp =
    "time collectives between processes of this host\n\n"
    "Results are checked for each size before timing. A sample is the mean time of a call, on the slowest rank, over "
    "as\n"
    "many consecutive calls as take 20 us (at least one); samples are taken in 3 or more blocks of 0.4 s. Rank r is\n"
    "pinned to the r-th usable core. 'size' is the full buffer: the output of all_gather, the input of reduce_scatter\n"
    "and all_to_all. send: each rank sends to the next one. recv: half a round trip between ranks 2i and 2i+1.\n"
    "'bus GB/s': bus bandwidth as nccl-tests defines it. 'of limit': the least time that the memory needs (bytes\n"
    "read and written, at the rate at which as many threads copy or add buffers of this size) over the median time.\n"
    "'ping ns': a cache line from the core of rank 0 to that of rank 1, one way, measured between the blocks.";

const char* const kBytes = "4KiB,64KiB,1MiB,16MiB,256MiB";
const char* const kTuneBytes = "4KiB,64KiB,1MiB,16MiB";
const char* const kTable = "comm_table.json";

std::vector<std::string> words_of(const std::string& list) { return CLI::detail::split(list, ','); }

template <class T>
std::vector<T> read_names(const std::string& option, const std::string& list, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(name(static_cast<T>(i)));
  std::vector<T> values;
  for (const std::string& word : words_of(list)) {
    const auto found = std::find(names.begin(), names.end(), word);
    if (found != names.end()) {
      values.push_back(static_cast<T>(found - names.begin()));
    } else if (word == "all") {
      for (int i = 0; i < count; ++i) values.push_back(static_cast<T>(i));
    } else {
      throw UsageError({"command line", option, fmt::format("'{}' is not one of {}", word, join(names)), "",
                        fmt::format("the nearest is '{}'; 'all' selects all of them", nearest(word, names))});
    }
  }
  return values;
}

int64_t read_bytes(const std::string& word) {
  static const std::vector<std::pair<std::string, int>> units{{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const std::string unit(end, word.data() + word.size());
  const bool is_number = error == std::errc() && value > 0 && value <= INT64_MAX >> 30;
  for (const auto& [known, shift] : units) {
    if (is_number && unit == known) return value << shift;
  }
  const std::vector<std::string> names{"KiB", "MiB", "GiB"};
  throw UsageError({"command line", "--bytes", fmt::format("'{}' is not a size", word), "",
                    is_number && std::string_view("kKmMgG").find(unit.front()) != std::string_view::npos
                        ? fmt::format("write {}{}", value, nearest(unit, names))
                        : "write positive integers with an optional KiB, MiB or GiB, e.g. 4096,64KiB,1MiB"});
}

void refuse_part_of_element(int64_t bytes, Dtype dtype) {
  const int64_t size = size_bytes(dtype);
  if (bytes % size == 0) return;
  throw UsageError(
      {"command line", "--bytes",
       fmt::format("{} bytes is not a multiple of the element size of {} ({} bytes)", bytes, name(dtype), size), "",
       fmt::format("use {}", (bytes + size - 1) / size * size)});
}

void refuse_not_in_place(Verb verb) {
  if (measure::works_in_place(verb)) return;
  throw UsageError({"command line", "--in-place", fmt::format("{} cannot work in place", name(verb)), "",
                    "use it with all_reduce, all_gather, reduce_scatter, broadcast or reduce"});
}

std::vector<int64_t> read_sizes(const std::string& list) {
  std::vector<int64_t> sizes;
  for (const std::string& word : words_of(list)) sizes.push_back(read_bytes(word));
  return sizes;
}

void refuse_unknown_backend(const std::string& backend) {
  if (std::ranges::find(kBackends, backend) != kBackends.end()) return;
  const std::vector<std::string> names(kBackends.begin(), kBackends.end());
  throw UsageError({"command line", "--backend", fmt::format("'{}' is not one of {}", backend, join(names)), "",
                    fmt::format("use {}", nearest(backend, names))});
}

/// Refused before minutes of measuring.
void refuse_unwritable(const char* option, const std::string& file) {
  const std::filesystem::path path(file);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const auto refuse = [&](const char* fact) {
    throw UsageError({"command line", option, fmt::format("{}: {}", file, fact), "", "name a writable file"});
  };
  if (std::filesystem::is_directory(path)) refuse("is a folder");
  if (!std::filesystem::is_directory(folder)) refuse("its folder does not exist");
  if (::access(folder.c_str(), W_OK) != 0) refuse("its folder is not writable");
}

/// Only a description of hardware may be replaced by another one.
void refuse_other_file(const std::string& file) {
  refuse_unwritable("--hardware", file);
  if (!std::filesystem::exists(file)) return;
  try {
    read_hardware(file);
  } catch (const Error& error) {
    throw UsageError({"command line", "--hardware",
                      fmt::format("{} exists and does not describe hardware: {}", file, error.text().fact),
                      error.text().where, "name another file, or remove this one"});
  }
}

void refuse_single_rank(const BenchArguments& arguments) {
  if (!arguments.ranks || *arguments.ranks >= 2) return;
  throw UsageError({"command line", "--ranks", fmt::format("{} is too few: a rank needs a peer", *arguments.ranks), "",
                    "use 2 or more"});
}

void read_tune(const BenchWords& words, BenchArguments& arguments) {
  const char* meaningless = !words.dtypes.empty() ? "--dtype"
                            : arguments.copy      ? "--copy"
                            : arguments.in_place  ? "--in-place"
                                                  : nullptr;
  if (meaningless != nullptr) {
    throw UsageError({"command line", meaningless,
                      "has no effect with --tune, which times fp32 in plain memory, out of place", "",
                      "leave it out, or leave --tune out"});
  }
  const bool all = words.verbs.empty() || words.verbs == "all";
  if (!all) arguments.verbs = read_names<Verb>("--op", words.verbs, kNumVerbs);
  if (all) arguments.verbs.assign(std::begin(algorithms::kVerbs), std::end(algorithms::kVerbs));
  for (const Verb verb : arguments.verbs) {
    if (!algorithms::algorithms_for(verb).empty()) continue;
    throw UsageError(
        {"command line", "--op", fmt::format("{} has only one algorithm", name(verb)), "", "leave it out"});
  }
  arguments.bytes = read_sizes(words.bytes.empty() ? kTuneBytes : words.bytes);
  std::sort(arguments.bytes.begin(), arguments.bytes.end());
  for (const int64_t bytes : arguments.bytes) refuse_part_of_element(bytes, Dtype::fp32);
  if (arguments.out.empty()) arguments.out = kTable;
  refuse_unwritable("--out", arguments.out);
  refuse_single_rank(arguments);
}

void read_bench(const BenchWords& words, BenchArguments& arguments) {
  refuse_unknown_backend(arguments.backend);
  if (arguments.tune) return read_tune(words, arguments);
  if (!arguments.out.empty()) {
    throw UsageError(
        {"command line", "--out", "has no effect without --tune", "", "add --tune, or redirect the output"});
  }
  arguments.verbs = read_names<Verb>("--op", words.verbs.empty() ? "all_reduce" : words.verbs, kNumVerbs);
  arguments.dtypes = read_names<Dtype>("--dtype", words.dtypes.empty() ? "fp32" : words.dtypes, kNumDtypes);
  arguments.bytes = read_sizes(words.bytes.empty() ? kBytes : words.bytes);
  for (const int64_t bytes : arguments.bytes) {
    for (const Dtype dtype : arguments.dtypes) refuse_part_of_element(bytes, dtype);
  }
  if (arguments.in_place) {
    for (const Verb verb : arguments.verbs) refuse_not_in_place(verb);
  }
  refuse_single_rank(arguments);
}

}  // namespace

void add_bench(CLI::App& app, CommandLine& line) {
  BenchArguments& arguments = line.bench;
  const auto words = std::make_shared<BenchWords>();
  CLI::App* bench = app.add_subcommand("bench", "measure this machine");
  bench->require_subcommand(1);
  CLI::App* comm = bench->add_subcommand("comm", kCommHelp);
  comm->add_option("--ranks", arguments.ranks, "number of processes on this host, at least 2; default 2");
  comm->add_option("--op", words->verbs, "collectives, comma-separated, or all; default all_reduce, with --tune all");
  comm->add_option("--dtype", words->dtypes, "dtypes, comma-separated, or all; default fp32");
  comm->add_option("--bytes", words->bytes, std::string("sizes; default ") + kBytes + ", with --tune " + kTuneBytes);
  comm->add_option("--backend", arguments.backend, fmt::format("back-end: {}", fmt::join(kBackends, ", ")))
      ->capture_default_str();
  comm->add_flag("--copy", arguments.copy, "use plain memory instead of buffers from Communicator::allocate");
  comm->add_flag("--in-place", arguments.in_place, "input and output are the same buffer, as in nccl-tests");
  comm->add_flag("--json", arguments.json, "one JSON object per line instead of a table");
  comm->add_flag("--tune", arguments.tune,
                 "time the algorithms over messages and write the table that selects among them");
  comm->add_option("--out", arguments.out, std::string("file for the table of --tune; default ") + kTable);
  bench->callback([&line, words] {
    line.command = CommandLine::Command::bench_comm;
    read_bench(*words, line.bench);
  });
}

void add_doctor(CLI::App& app, CommandLine& line) {
  DoctorArguments& arguments = line.doctor;
  CLI::App* doctor =
      app.add_subcommand("doctor", "time every link between ranks, memory and disks, and recommend a back-end");
  auto* ranks = doctor->add_option("--ranks", arguments.ranks,
                                   "number of processes on this host; default 2, with --hardware as many as cores. "
                                   "Under torchrun or mpirun: theirs");
  auto* disks = doctor->add_option("--disk", arguments.disks,
                                   "folder whose disk is measured for offload, writing up to 256 MiB; may be repeated. "
                                   "Default: the current folder; with --hardware none");
  disks->option_text("DIR")->take_all();
  auto* json = doctor->add_flag("--json", arguments.json, "one JSON object instead of the report");
  auto* tune = doctor->add_flag("--tune", arguments.tune,
                                "time the libraries that multiply matrices instead, and use the fastest from now on");
  tune->excludes(ranks, disks, json);
  doctor
      ->add_option("--hardware", arguments.hardware,
                   "measure this host as devices of a job instead, each rank one, and write this file, which describes "
                   "them. See docs/hardware.md")
      ->option_text("FILE")
      ->check(not_empty())
      ->excludes(json, tune);
  doctor->callback([&line] {
    line.command = CommandLine::Command::doctor;
    if (!line.doctor.hardware.empty()) refuse_other_file(line.doctor.hardware);
  });
}

}  // namespace caravan::app
