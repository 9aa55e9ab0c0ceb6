// Trains on one rank, and prints a line of JSON for each step, with the time of each kernel in it: for bench/limit.py.
//   limit_profile RECIPE KEY=VALUE..     RECIPE may be ""
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/launch/ranks.h"
#include "bench/recipe_program.h"
#include "caravan/base/trace/kernel_log.h"
#include "caravan/base/trace/trace.h"
#include "caravan/train/train.h"

using namespace caravan;
using nlohmann::json;

namespace {

/// The time of each step of a run on one thread. An operator of torch takes its time with all that it calls. A kernel
/// of this library, which tells its begin (count_kernel), lasts until something else is seen: an operator, an event, a
/// node of the backward. Time between is that of "after" what came last.
class Profile final : public TraceLog, public KernelLog, public TrainObserver {
 public:
  size_t begin(std::string_view row, std::string name, Args args) override {
    const bool is_pass = std::ranges::any_of(
        args, [](const auto& arg) { return std::string_view(arg.first) == "stage" && arg.second >= 0; });
    if (row != kCompute || is_pass) return 0;
    next("after " + name);
    open_.emplace_back(++last_, name.substr(0, name.find(' ')));
    event_ = open_.back().second;
    return last_;
  }
  void end(size_t number) noexcept override {
    if (std::erase_if(open_, [&](const auto& open) { return open.first == number; }) == 0) return;
    next("after an event");
    if (!open_.empty()) event_ = open_.back().second;
  }
  void add(KernelWork work) override {
    if (depth_ == 0) next(work.what);
  }
  void stepped(const StepMetrics& metrics, bool /*is_logged*/) override {
    next();
    json times = json::array();
    for (const auto& [of, ms] : times_) times.push_back({{"event", of.first}, {"what", of.second}, {"ms", ms}});
    const int64_t faults = page_faults();
    const json line{{"ms", metrics.step_ms}, {"page_faults", faults - faults_}, {"times", std::move(times)}};
    fmt::print("{}\n", line.dump());
    faults_ = faults;
    times_.clear();
    event_ = "start";
  }
  /// Returns whether it is an operator, not a node of the backward.
  bool begin_operator(const at::RecordFunction& function) {
    if (!function.operator_name()) {
      if (depth_ == 0) next("after " + std::string(function.name()));
      return false;
    }
    if (depth_++ > 0) return true;
    std::string name = function.name();
    name = name.substr(name.rfind(':') + 1);
    // A kernel of this library may allocate.
    const bool is_inside = name.starts_with("empty") && !what_.empty();
    then_ = is_inside ? what_ : "after " + name;
    next(std::move(name));
    return true;
  }
  void end_operator(bool is_operator) {
    if (is_operator) --depth_;
    if (depth_ == 0) next(is_operator ? then_ : "after a node");
  }

 private:
  /// The time until now belongs to what came before.
  void next(std::string what = {}) {
    const auto now = std::chrono::steady_clock::now();
    if (!what_.empty()) times_[{event_, what_}] += std::chrono::duration<double, std::milli>(now - since_).count();
    since_ = now;
    what_ = std::move(what);
  }
  static int64_t page_faults() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  }

  std::map<std::pair<std::string, std::string>, double> times_;
  std::vector<std::pair<size_t, std::string>> open_;
  std::string event_ = "start", what_;
  std::string then_;  ///< what goes on after the operator
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  size_t last_ = 0;
  int depth_ = 0;
  int64_t faults_ = 0;
};

thread_local Profile* profile_of_thread = nullptr;

void profile(Recipe recipe, const std::shared_ptr<Communicator>& world) {
  const DataFolders folders = app::data_folders(recipe.folder);
  resolve_files(recipe.data, folders);
  const auto seen = std::make_shared<Profile>();
  profile_of_thread = seen.get();
  const TraceScope trace(seen);
  const KernelLogScope kernels(seen.get());
  struct Context final : at::ObserverContext {
    bool is_operator = false;
  };
  const auto begin = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    auto context = std::make_unique<Context>();
    context->is_operator = profile_of_thread->begin_operator(function);
    return context;
  };
  const auto end = [](const at::RecordFunction&, at::ObserverContext* context) {
    profile_of_thread->end_operator(static_cast<Context*>(context)->is_operator);
  };
  const auto callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  train({.recipe = std::move(recipe), .folders = folders, .observer = seen.get()}, world);
  at::removeCallback(callback);
}

}  // namespace

int main(int argc, char** argv) { return run_recipe_program(argc, argv, profile); }
