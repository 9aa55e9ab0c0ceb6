#include "caravan/prove/judge.h"

#include <cmath>

#include <ATen/ops/dot.h>

namespace caravan {

double length_of(const at::Tensor& x) { return x.norm().item<double>(); }

Verdict judge(const at::Tensor& got, const at::Tensor& want, double floor, double tolerance) {
  const double apart = length_of(got - want);
  if (apart == 0) return {};
  const double length = length_of(want);
  Verdict verdict{.error = apart / (length + floor)};
  if (length == 0) return verdict;
  const double factor = at::dot(got.flatten(), want.flatten()).item<double>() / (length * length);
  const bool is_multiple = length_of(got - want * factor) <= tolerance * (std::abs(factor) * length + floor);
  if (is_multiple) verdict.factor = factor;
  return verdict;
}

}  // namespace caravan
