#include "apps/caravan/bench/bench_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/text.h"
#include "caravan/comm/measure/rates.h"

namespace caravan::app {
namespace {

struct Derived {
  double algorithm_gb_s = 0;
  double bus_gb_s = 0;
  std::optional<double> limit_us;  ///< the least time that the memory allows; none for a barrier
};

Derived derive(const BenchRow& row) {
  const measure::BenchCase& what = row.bench_case;
  Derived derived;
  derived.algorithm_gb_s = static_cast<double>(what.bytes) / row.timing.median_us / 1e3;
  derived.bus_gb_s = derived.algorithm_gb_s * measure::bus_factor(what.verb, row.ranks);
  const int64_t moved = measure::memory_bytes(what.verb, row.ranks, what.bytes);
  if (row.memory && moved > 0) derived.limit_us = static_cast<double>(moved) / row.memory->best_gb_s() / 1e3;
  return derived;
}

std::string time_text(double us) {
  if (us < 1e3) return fmt::format("{:.2f} us", us);
  if (us < 1e6) return fmt::format("{:.3f} ms", us / 1e3);
  return fmt::format("{:.3f} s", us / 1e6);
}

}  // namespace

std::string json_line(const BenchRow& row) {
  const Derived derived = derive(row);
  const measure::BenchCase& what = row.bench_case;
  nlohmann::ordered_json line{{"op", name(what.verb)},
                              {"dtype", name(what.dtype)},
                              {"backend", row.backend},
                              {"bytes", what.bytes},
                              {"ranks", row.ranks},
                              {"copy", what.copy},
                              {"median_us", row.timing.median_us},
                              {"p95_us", row.timing.p95_us},
                              {"ping_ns", nullptr},
                              {"in_place", what.in_place},
                              {"min_us", row.timing.min_us},
                              {"max_us", row.timing.max_us},
                              {"samples", row.timing.num_samples},
                              {"calls_per_sample", row.timing.calls_per_sample},
                              {"algorithm_gb_s", derived.algorithm_gb_s},
                              {"bus_gb_s", derived.bus_gb_s},
                              {"copy_gb_s", nullptr},
                              {"add_gb_s", nullptr},
                              {"limit_us", nullptr},
                              {"limit_share", nullptr}};
  if (row.ping_ns) line["ping_ns"] = *row.ping_ns;
  if (row.memory) line["copy_gb_s"] = row.memory->copy_gb_s;
  if (row.memory) line["add_gb_s"] = row.memory->add_gb_s;
  if (derived.limit_us) line["limit_us"] = *derived.limit_us;
  if (derived.limit_us) line["limit_share"] = *derived.limit_us / row.timing.median_us;
  return line.dump() + "\n";
}

std::string json_line(const algorithms::Measurement& measurement, const std::string& backend, int ranks) {
  const nlohmann::ordered_json line{{"op", name(measurement.verb)},
                                    {"algorithm", name(measurement.choice.algorithm)},
                                    {"segment_bytes", measurement.choice.segment_bytes},
                                    {"backend", backend},
                                    {"bytes", measurement.bytes},
                                    {"ranks", ranks},
                                    {"median_us", measurement.median_us},
                                    {"repeats", measurement.repeats}};
  return line.dump() + "\n";
}

std::string table_head(const BenchRow& row) {
  return fmt::format("{} ranks over {}, buffers {}, {}\n", row.ranks, row.backend,
                     row.bench_case.copy ? "in plain memory" : "from Communicator::allocate",
                     row.bench_case.in_place ? "in place" : "out of place") +
         fmt::format("{:<15}{:<9}{:>9}{:>13}{:>13}{:>12}{:>10}{:>10}{:>9}\n", "op", "dtype", "size", "median", "p95",
                     "alg GB/s", "bus GB/s", "of limit", "ping ns");
}

std::string table_line(const BenchRow& row) {
  const Derived derived = derive(row);
  const bool moves = row.bench_case.verb != Verb::barrier;
  const auto rate = [&](double value) { return moves ? fmt::format("{:.2f}", value) : std::string("-"); };
  return fmt::format("{:<15}{:<9}{:>9}{:>13}{:>13}{:>12}{:>10}{:>10}{:>9}\n", name(row.bench_case.verb),
                     moves ? name(row.bench_case.dtype) : "-", moves ? format_bytes(row.bench_case.bytes) : "-",
                     time_text(row.timing.median_us), time_text(row.timing.p95_us), rate(derived.algorithm_gb_s),
                     rate(derived.bus_gb_s),
                     derived.limit_us ? fmt::format("{:.0f} %", 100 * *derived.limit_us / row.timing.median_us) : "-",
                     row.ping_ns ? fmt::format("{:.0f}", *row.ping_ns) : "-");
}

}  // namespace caravan::app
