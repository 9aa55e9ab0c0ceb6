#include "caravan/cost/step_fit.h"

#include <algorithm>
#include <cmath>

#include "caravan/cost/hardware_costs.h"

namespace caravan {
namespace {

/// A step, in parts of its time: what is known, and what each unknown multiplies.
struct StepRow {
  double known = 0;    ///< products and attention
  double kernels = 0;  ///< number
  double bytes = 0;    ///< of other kernels
};

StepRow row_of(const HardwareDevice& device, const std::string& dtype, const TimedStep& step) {
  HardwareDevice bare = device;
  bare.launch_seconds = 0;
  for (ProductRate& rate : bare.products) rate.kernel_seconds = 0;
  Hardware alone{.devices = {bare}, .hosts = {{.device = bare.name}}, .levels = {{.name = "host", .devices = 1}}};
  const HardwareCosts costs(std::move(alone));
  StepRow row;
  for (KernelWork work : step.kernels) {
    ++row.kernels;
    if (work.kind == KernelWork::Kind::memory) {
      row.bytes += static_cast<double>(work.bytes);
      continue;
    }
    if (work.dtype == "int") work.dtype = dtype;
    row.known += costs.seconds(work, bare);
  }
  row.known /= step.seconds;
  row.kernels /= step.seconds;
  row.bytes /= step.seconds;
  return row;
}

}  // namespace

StepFit fit_kernels(const HardwareDevice& device, const std::string& dtype, const std::vector<TimedStep>& steps) {
  std::vector<StepRow> rows;
  double nn = 0, nb = 0, bb = 0, ny = 0, by = 0;
  for (const TimedStep& step : steps) {
    const StepRow& row = rows.emplace_back(row_of(device, dtype, step));
    const double left = 1 - row.known;
    nn += row.kernels * row.kernels;
    nb += row.kernels * row.bytes;
    bb += row.bytes * row.bytes;
    ny += row.kernels * left;
    by += row.bytes * left;
  }
  StepFit fit;
  const double determinant = nn * bb - nb * nb;
  const bool is_known = determinant > 1e-9 * nn * bb;
  double of_byte = is_known ? (nn * by - nb * ny) / determinant : 0;
  fit.kernel_seconds = is_known ? (bb * ny - nb * by) / determinant : 0;
  // Neither takes less than no time: then the other explains what there is. So it does if steps are too alike to tell.
  if (!is_known || fit.kernel_seconds < 0 || of_byte < 0) {
    const bool has_bytes = is_known && of_byte >= 0;
    fit.kernel_seconds = has_bytes || nn == 0 ? 0 : std::max(0.0, ny / nn);
    of_byte = has_bytes ? std::max(0.0, by / bb) : 0;
  }
  fit.kernel_bytes_per_second = of_byte > 0 ? 1 / of_byte : 0;
  for (const StepRow& row : rows) {
    const double formula = row.known + fit.kernel_seconds * row.kernels + of_byte * row.bytes;
    const double error = std::abs(std::log(std::max(formula, 1e-9)));
    fit.typical_error += error * error / static_cast<double>(rows.size());
    fit.worst_error = std::max(fit.worst_error, error);
  }
  fit.typical_error = std::sqrt(fit.typical_error);
  return fit;
}

}  // namespace caravan
