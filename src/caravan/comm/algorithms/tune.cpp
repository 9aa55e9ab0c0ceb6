#include "caravan/comm/algorithms/tune.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/algorithms/collectives.h"
#include "caravan/comm/algorithms/schedule.h"

namespace caravan::algorithms {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLeastRepeats = 3;
constexpr double kClearly = 0.95;  // of direct's time: less is noise

/// What a choice is timed with. On a back-end whose collectives are made of messages the verb itself takes the choice.
class Bench {
 public:
  Bench(Communicator& comm, int64_t most_bytes)
      : comm_(comm),
        in_(comm.allocate(static_cast<size_t>(most_bytes))),
        out_(comm.allocate(static_cast<size_t>(most_bytes))),
        is_selectable_(comm.select(nullptr)) {}
  ~Bench() {
    if (is_selectable_) comm_.select(nullptr);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Measurement measure(Verb verb, const Choice& choice, int64_t bytes, const TuneOptions& options) {
    if (is_selectable_)
      comm_.select(std::make_shared<SelectionTable>(
          SelectionTable().with({{"", verb, Rule::kAnyRanks, Rule::kAnyBytes, choice}})));
    const double first_us = most_of_ranks(time_us(verb, choice, bytes));
    const double at_most_us = std::chrono::duration<double, std::micro>(options.at_most).count();
    const int repeats = static_cast<int>(std::clamp<double>(at_most_us / std::max(first_us, 1.0), kLeastRepeats,
                                                            std::max(options.max_repeats, kLeastRepeats)));
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) times.push_back(time_us(verb, choice, bytes));
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::ranges::nth_element(times, middle);
    return {verb, choice, bytes, repeats, most_of_ranks(*middle)};
  }

 private:
  double most_of_ranks(double value) {
    const Buffer buffer{&value, 1, Dtype::fp64, {}};
    comm_.all_reduce(buffer, buffer, ReduceOp::max, "tuning");
    return value;
  }

  double time_us(Verb verb, const Choice& choice, int64_t bytes) {
    comm_.barrier("tuning");
    const Clock::time_point begin = Clock::now();
    run(verb, choice, bytes / size_bytes(Dtype::fp32));
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }

  void run(Verb verb, const Choice& choice, int64_t count) {
    const Call call("tuning");
    const Parts parts = Parts::equal(count, comm_.size());
    std::vector<int64_t> counts;
    for (int rank = 0; rank < comm_.size(); ++rank) counts.push_back(parts[rank].count);
    const Buffer in{in_.get(), count, Dtype::fp32, {}};
    const Buffer out{out_.get(), count, Dtype::fp32, {}};
    const int64_t own = parts[comm_.rank()].count;
    const Buffer own_in{in_.get(), own, Dtype::fp32, {}};
    const Buffer own_out{out_.get(), own, Dtype::fp32, {}};
    // Equal parts, so that what is sent is what is expected.
    const int64_t each = count / comm_.size();
    const Buffer even_in{in_.get(), each * comm_.size(), Dtype::fp32, {}};
    const Buffer even_out{out_.get(), each * comm_.size(), Dtype::fp32, {}};
    if (is_selectable_) {
      switch (verb) {
        case Verb::all_reduce: return comm_.all_reduce(in, out, ReduceOp::sum, call);
        case Verb::all_gather: return comm_.all_gather(own_in, out, counts, call);
        case Verb::reduce_scatter: return comm_.reduce_scatter(in, own_out, ReduceOp::sum, counts, call);
        case Verb::all_to_all: return comm_.all_to_all(even_in, even_out, {}, {}, call);
        case Verb::broadcast: return comm_.broadcast(in, 0, call);
        default: return comm_.reduce(in, out, ReduceOp::sum, 0, call);
      }
    }
    switch (verb) {
      case Verb::all_reduce: return all_reduce(comm_, in, out, ReduceOp::sum, choice, call);
      case Verb::all_gather: return all_gather(comm_, own_in, out, counts, choice, call);
      case Verb::reduce_scatter: return reduce_scatter(comm_, in, own_out, ReduceOp::sum, counts, choice, call);
      case Verb::all_to_all: return all_to_all(comm_, even_in, even_out, {}, {}, choice, call);
      case Verb::broadcast: return broadcast(comm_, in, 0, choice, call);
      default: return reduce(comm_, in, out, ReduceOp::sum, 0, choice, call);
    }
  }

  Communicator& comm_;
  std::shared_ptr<void> in_;
  std::shared_ptr<void> out_;
  bool is_selectable_;
};

void check(const Communicator& comm, const TuneOptions& options) {
  const auto refuse = [](std::string fact, std::string action) {
    throw UsageError({.op = "tune", .fact = std::move(fact), .action = std::move(action)});
  };
  if (comm.size() == 1) refuse("one rank sends nothing", "start 2 ranks or more");
  if (!comm.touches_memory()) refuse(fmt::format("{} moves nothing", comm.backend()), "choose another back-end");
  if (options.bytes.empty() || options.verbs.empty()) refuse("no sizes or no verbs", "give one at least");
  for (size_t i = 0; i < options.bytes.size(); ++i) {
    const int64_t bytes = options.bytes[i];
    if (bytes > 0 && bytes % 4 == 0 && (i == 0 || bytes > options.bytes[i - 1])) continue;
    refuse(fmt::format("the sizes are {}", join(options.bytes)), "give ascending multiples of 4 bytes");
  }
  for (const int64_t bytes : options.segment_bytes) {
    if (bytes < 1) refuse(fmt::format("segments of {} bytes", bytes), "give 1 byte or more");
  }
}

std::vector<Choice> choices_for(Verb verb, const TuneOptions& options) {
  std::vector<Choice> choices;
  for (const Algorithm algorithm : algorithms_for(verb)) {
    if (algorithm != Algorithm::chain) choices.push_back({algorithm});
    if (algorithm != Algorithm::chain) continue;
    for (const int64_t bytes : options.segment_bytes) choices.push_back({algorithm, bytes});
  }
  return choices;
}

/// The fastest of the measurements of one verb and size, of which the first is direct's.
Choice fastest(std::span<const Measurement> measurements) {
  const Measurement* best = &measurements.front();
  for (const Measurement& one : measurements.subspan(1)) {
    const double limit = best == &measurements.front() ? kClearly * best->median_us : best->median_us;
    if (one.median_us < limit) best = &one;
  }
  return best->choice;
}

}  // namespace

TuneResult tune(Communicator& comm, const TuneOptions& options) {
  check(comm, options);
  TuneResult result;
  std::vector<Rule> rules;
  Bench bench(comm, options.bytes.back());
  for (const Verb verb : options.verbs) {
    const std::vector<Choice> choices = choices_for(verb, options);
    if (choices.empty()) check_serves(Algorithm::direct, verb);
    for (size_t i = 0; i < options.bytes.size(); ++i) {
      for (const Choice& choice : choices) {
        result.measurements.push_back(bench.measure(verb, choice, options.bytes[i], options));
        if (options.report) options.report(result.measurements.back());
      }
      const Choice best = fastest(std::span(result.measurements).last(choices.size()));
      // The rule of a size ends at the geometric mean of it and the next one.
      const bool is_last = i + 1 == options.bytes.size();
      const double mean =
          is_last ? 0 : std::sqrt(static_cast<double>(options.bytes[i]) * static_cast<double>(options.bytes[i + 1]));
      const int64_t end = is_last ? Rule::kAnyBytes : static_cast<int64_t>(mean);
      if (!rules.empty() && rules.back().verb == verb && rules.back().choice == best) {
        rules.back().max_bytes = end;
      } else {
        rules.push_back({std::string(comm.backend()), verb, comm.size(), end, best});
      }
    }
  }
  result.table = SelectionTable().with(std::move(rules));
  return result;
}

std::string to_string(const std::vector<Measurement>& measurements) {
  std::string table;
  for (size_t i = 0; i < measurements.size();) {
    const Measurement& first = measurements[i];
    size_t end = i;
    while (end < measurements.size() && measurements[end].verb == first.verb &&
           measurements[end].bytes == first.bytes) {
      ++end;
    }
    const std::span row = std::span(measurements).subspan(i, end - i);
    const Choice best = fastest(row);
    table += fmt::format("{:<15}{:>10}", name(first.verb), format_bytes(first.bytes));
    for (const Measurement& one : row) {
      table += fmt::format("  {} {:.1f} us{}", to_string(one.choice), one.median_us, one.choice == best ? "*" : "");
    }
    table += "\n";
    i = end;
  }
  return table;
}

}  // namespace caravan::algorithms
