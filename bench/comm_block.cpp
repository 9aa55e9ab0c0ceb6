// comm_block FOLDER [BACKEND]: one rank that times blocks of calls on request and otherwise sleeps in read(2), so that
// another library can use the cores. Takes its rank from the environment, as every program here does.
//
// Reads lines from FOLDER/command.RANK, the same on every rank, and answers each with one line in FOLDER/answer.RANK:
//   check OP DTYPE BYTES PLACE MEMORY                          right | wrong WHY
//   run OP DTYPE BYTES PLACE MEMORY WARM_UPS SAMPLES CALLS     times SECONDS.. (of CALLS calls each, back to back)
//   ping                                                       ping NANOSECONDS | ping -
//   memory BYTES                                               memory COPY_GB_S ADD_GB_S
//   quit
// PLACE: in, out (in and out are one buffer, or two). MEMORY: arena (Communicator::allocate), plain.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/measure/core_ping.h"
#include "caravan/comm/measure/cores.h"
#include "caravan/comm/measure/exercise.h"
#include "caravan/comm/measure/memory_rate.h"
#include "caravan/comm/measure/sampling.h"
#include "caravan/comm/world.h"

namespace caravan {
namespace {

class BlockRank {
 public:
  explicit BlockRank(Communicator& world) : world_(world), ping_(world, 0, 1) {}

  /// The answer to one command.
  std::string answer(const std::string& command) {
    std::istringstream words(command);
    std::string what;
    words >> what;
    if (what == "ping") {
      const auto ns = ping_.measure();
      return ns ? fmt::format("ping {}", *ns) : "ping -";
    }
    if (what == "memory") {
      int64_t bytes = 0;
      words >> bytes;
      const measure::MemoryRates rates = measure::measure_memory(world_, bytes);
      return fmt::format("memory {} {}", rates.copy_gb_s, rates.add_gb_s);
    }
    if (what != "check" && what != "run") refuse(command);
    measure::Exercise& exercise = exercise_of(words, command);
    if (what == "check") {
      const std::string wrong = exercise.check();
      return wrong.empty() ? "right" : "wrong " + wrong;
    }
    return run(exercise, words, command);
  }

 private:
  [[noreturn]] static void refuse(const std::string& command) {
    throw UsageError({"comm_block", command, "is not a command", "", "see the head of bench/comm_block.cpp"});
  }

  template <class T>
  static T named(const std::string& word, int count, const std::string& command) {
    for (int i = 0; i < count; ++i) {
      if (word == name(static_cast<T>(i))) return static_cast<T>(i);
    }
    refuse(command);
  }

  /// Buffers are kept while the size stays: two sides of a pair may both be ours.
  measure::Exercise& exercise_of(std::istringstream& words, const std::string& command) {
    std::string verb;
    std::string dtype;
    std::string place;
    std::string memory;
    measure::BenchCase what;
    words >> verb >> dtype >> what.bytes >> place >> memory;
    if (!words) refuse(command);
    what.verb = named<Verb>(verb, kNumVerbs, command);
    what.dtype = named<Dtype>(dtype, kNumDtypes, command);
    what.in_place = place == "in" && measure::works_in_place(what.verb);
    what.copy = memory == "plain";
    if (what.bytes != bytes_) exercises_.clear();
    bytes_ = what.bytes;
    const std::string key = fmt::format("{} {} {} {}", verb, dtype, place, memory);
    return exercises_.try_emplace(key, world_, what).first->second;
  }

  std::string run(measure::Exercise& exercise, std::istringstream& words, const std::string& command) {
    int64_t warm_ups = 0;
    int64_t samples = 0;
    int64_t calls = 0;
    words >> warm_ups >> samples >> calls;
    if (!words || samples < 1 || calls < 1) refuse(command);
    for (int64_t i = 0; i < warm_ups; ++i) exercise.call();
    std::string answer = "times";
    for (const double seconds : measure::time_block(
             world_, [&] { exercise.call(); }, samples, calls)) {
      answer += fmt::format(" {:.9f}", seconds);
    }
    return answer;
  }

  Communicator& world_;
  measure::CorePing ping_;
  std::map<std::string, measure::Exercise> exercises_;
  int64_t bytes_ = -1;
};

int serve(const std::string& folder, const std::string& backend) {
  const RankInfo info = RankInfo::from_environment();
  const auto store = open_store(info);
  const auto world = make_world(backend, info, store);
  const measure::PinnedThread pinned(measure::usable_cores(), info.local_rank);
  std::ifstream commands(fmt::format("{}/command.{}", folder, info.rank));
  std::ofstream answers(fmt::format("{}/answer.{}", folder, info.rank));
  BlockRank rank(*world);
  answers << "ready" << std::endl;
  for (std::string command; std::getline(commands, command) && command != "quit";) {
    answers << rank.answer(command) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace caravan

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "comm_block FOLDER [BACKEND]\n";
    return 2;
  }
  try {
    return caravan::serve(argv[1], argc > 2 ? argv[2] : "auto");
  } catch (const caravan::Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  }
}
