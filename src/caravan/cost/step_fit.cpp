#include "caravan/cost/step_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "caravan/cost/hardware_costs.h"
#include "caravan/cost/nonnegative_fit.h"

namespace caravan {
namespace {

/// What steps are made of, in parts of the time that is not known: kernels, bytes of those that compute no product, and
/// bytes of operands and results of products.
enum Unknown : size_t { kKernels, kBytes, kOperands, kNumUnknowns };
using Row = std::array<double, kNumUnknowns>;

struct StepRow {
  double known = 0;  ///< products and attention, in parts of the time
  Row unknown{};     ///< for each, by what it is multiplied
};

StepRow row_of(const HardwareDevice& device, const std::string& dtype, const TimedStep& step) {
  HardwareDevice bare = device;
  bare.launch_seconds = 0;
  bare.memory_bytes_per_second = HUGE_VAL;
  for (ProductRate& rate : bare.products) rate.kernel_seconds = rate.operand_bytes_per_second = 0;
  Hardware alone{.devices = {bare}, .hosts = {{.device = bare.name}}, .levels = {{.name = "host", .devices = 1}}};
  const HardwareCosts costs(std::move(alone));
  StepRow row;
  for (KernelWork work : step.kernels) {
    row.unknown[kKernels] += 1 / step.seconds;
    if (work.kind == KernelWork::Kind::memory) {
      row.unknown[kBytes] += static_cast<double>(work.bytes) / step.seconds;
      continue;
    }
    if (work.dtype == "int") work.dtype = dtype;
    if (work.kind == KernelWork::Kind::product) row.unknown[kOperands] += product_bytes(work) / step.seconds;
    row.known += costs.seconds(work, bare) / step.seconds;
  }
  return row;
}

constexpr double kNoLimit = 1e15;  // bytes a second of what takes no time
double rate_of_byte(double seconds) { return seconds > 0 ? 1 / seconds : kNoLimit; }

/// What is expected before anything is measured: bytes go at the rate of the memory. A rate that is none or half of
/// that weighs as much as an error of kDoubt in one step, so that steps which are too alike to tell bytes from kernels
/// give none that is absurd.
void add_expected(const HardwareDevice& device, std::vector<Row>& rows, std::vector<double>& targets) {
  constexpr double kDoubt = 0.02;
  if (device.memory_bytes_per_second <= 0) return;
  for (const Unknown bytes : {kBytes, kOperands}) {
    rows.emplace_back()[bytes] = kDoubt * device.memory_bytes_per_second;
    targets.push_back(kDoubt);
  }
}

}  // namespace

StepFit fit_kernels(const HardwareDevice& device, const std::string& dtype, const std::vector<TimedStep>& steps) {
  std::vector<Row> rows;
  std::vector<double> known, left;
  for (const TimedStep& step : steps) {
    const StepRow row = row_of(device, dtype, step);
    rows.push_back(row.unknown);
    known.push_back(row.known);
    left.push_back(1 - row.known);
  }
  const size_t num_steps = rows.size();
  add_expected(device, rows, left);
  const Row found = fit_nonnegative(rows, left);
  StepFit fit{.kernel_seconds = found[kKernels],
              .kernel_bytes_per_second = rate_of_byte(found[kBytes]),
              .operand_bytes_per_second = rate_of_byte(found[kOperands])};
  for (size_t i = 0; i < num_steps; ++i) {
    const double formula = std::inner_product(found.begin(), found.end(), rows[i].begin(), known[i]);
    const double error = std::abs(std::log(std::max(formula, 1e-9)));
    fit.typical_error += error * error / static_cast<double>(num_steps);
    fit.worst_error = std::max(fit.worst_error, error);
  }
  fit.typical_error = std::sqrt(fit.typical_error);
  return fit;
}

}  // namespace caravan
