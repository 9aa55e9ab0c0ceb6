#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/nn/tiny.h"

namespace caravan::testing {

using Op = std::function<at::Tensor(const Tensors&)>;

/// Makes parameters from tensors; their .grad is then the sum of the accumulated gradients.
class Slots {
 public:
  Parameter& of(const at::Tensor& value, const std::string& name = "weight") {
    slots_.push_back(std::make_unique<Parameter>(name, ParameterSpec{.shape = value.sizes().vec()}));
    slots_.back()->set_requires_grad(value.requires_grad());
    slots_.back()->set_sharded(value, {});
    return *slots_.back();
  }

 private:
  std::vector<std::unique_ptr<Parameter>> slots_;
};

struct Tolerance {
  at::ScalarType type;
  double value;
};
/// For one op: a few roundings in fp64 and fp32; bf16 and fp16 are rounded to 8 and 11 bits at the end.
inline constexpr Tolerance kTolerances[] = {
    {at::kDouble, 1e-14}, {at::kFloat, 4e-7}, {at::kBFloat16, 4e-3}, {at::kHalf, 6e-4}};

/// Compares value and gradients of `ours` with `reference` in fp64 on the same (rounded) inputs. `sums` scales the
/// tolerance for sums of many products.
inline void compare(const Op& ours, const Op& reference, const Tensors& inputs, double sums = 1) {
  for (const auto& [type, one] : kTolerances) {
    const double tolerance = one * sums;
    Tensors a;
    Tensors b;
    for (const at::Tensor& input : inputs) {
      a.push_back(input.to(type).detach().clone().requires_grad_(true));
      b.push_back(a.back().detach().to(at::kDouble).requires_grad_(true));
    }
    const at::Tensor x = ours(a);
    const at::Tensor y = reference(b);
    EXPECT_EQ(x.scalar_type(), type);
    ASSERT_EQ(x.sizes(), y.sizes());
    EXPECT_LT(distance(x, y), tolerance) << c10::toString(type);
    const at::Tensor outer = normal(x.sizes().vec(), 77).to(type);
    x.backward(outer);
    y.backward(outer.to(at::kDouble));
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_LT(distance(a[i].grad(), b[i].grad()), 2 * tolerance) << c10::toString(type) << " gradient " << i;
    }
  }
}

/// `compute` gives the same bits on any number of threads.
inline void expect_same_on_threads(const std::function<Tensors()>& compute) {
  const int before = at::get_num_threads();
  std::vector<Tensors> all;
  for (const int threads : {1, 2, 3, 5}) {
    at::set_num_threads(threads);
    all.push_back(compute());
  }
  at::set_num_threads(before);
  for (const Tensors& results : all) {
    ASSERT_EQ(results.size(), all[0].size());
    for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].equal(all[0][i])) << "tensor " << i;
  }
}

}  // namespace caravan::testing
