#include "caravan/comm/algorithms/tune.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/algorithms/collectives.h"
#include "caravan/comm/algorithms/message_plan.h"
#include "caravan/comm/operations.h"

namespace caravan::algorithms {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLeastRepeats = 3;
constexpr double kClearly = 0.95;  // of direct's time: a smaller gain is noise

/// Times choices. In a back-end whose collectives are built on messages the verb itself uses the choice.
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
    const Operation operation = operation_of(verb, bytes / size_bytes(Dtype::fp32));
    comm_.barrier("tuning");
    const Clock::time_point begin = Clock::now();
    if (is_selectable_) {
      comm_.run(operation);
    } else {
      run(comm_, operation, choice);
    }
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }

  Operation operation_of(Verb verb, int64_t count) const {
    const Call call("tuning");
    const int size = comm_.size();
    const Parts parts = Parts::equal(count, size);
    std::vector<int64_t> counts;
    for (int rank = 0; rank < size; ++rank) counts.push_back(parts[rank].count);
    const int64_t own = parts[comm_.rank()].count;
    const auto in = [&](int64_t n) { return Buffer{in_.get(), n, Dtype::fp32, {}}; };
    const auto out = [&](int64_t n) { return Buffer{out_.get(), n, Dtype::fp32, {}}; };
    switch (verb) {
      case Verb::all_reduce: return all_reduce_operation(in(count), out(count), ReduceOp::sum, call);
      case Verb::all_gather: return all_gather_operation(in(own), out(count), counts, size, call);
      case Verb::reduce_scatter:
        return reduce_scatter_operation(in(count), out(own), ReduceOp::sum, counts, size, call);
      case Verb::all_to_all: {
        const int64_t even = count / size * size;  // equal parts: every rank sends what its peer expects
        return all_to_all_operation(in(even), out(even), {}, {}, size, call);
      }
      case Verb::broadcast: return broadcast_operation(in(count), 0, call);
      default: return reduce_operation(in(count), comm_.rank() == 0 ? out(count) : Buffer{}, ReduceOp::sum, 0, call);
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
  if (comm.size() == 1) refuse("one rank sends nothing", "start at least 2 ranks");
  if (!comm.touches_memory())
    refuse(fmt::format("the back-end {} sends nothing", comm.backend()), "choose another back-end");
  if (options.bytes.empty() || options.verbs.empty()) refuse("no sizes or no verbs", "pass at least one of each");
  for (size_t i = 0; i < options.bytes.size(); ++i) {
    const int64_t bytes = options.bytes[i];
    if (bytes > 0 && bytes % 4 == 0 && (i == 0 || bytes > options.bytes[i - 1])) continue;
    refuse(fmt::format("the sizes are {}", join(options.bytes)), "pass ascending multiples of 4 bytes");
  }
  for (const int64_t bytes : options.segment_bytes) {
    if (bytes < 1) refuse(fmt::format("segments of {} bytes", bytes), "pass at least 1 byte");
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
      // The rule of a size ends at the geometric mean of this size and the next one.
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
