#include "caravan/nn/product/panel_product.h"

#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "caravan/nn/product/tile_product.h"
#include "tests/nn/tiny.h"

namespace caravan::panel_product_test {
namespace {

using testing::distance;
using testing::normal;

struct Shape {
  int64_t m, n, k;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << s.m << " x " << s.n << " x " << s.k; }

class PanelProduct : public ::testing::TestWithParam<Shape> {};

/// `x` as a part of a larger tensor of NaN.
at::Tensor amid_nan(const at::Tensor& x) {
  const at::Tensor all = at::full({x.size(0) + 2, x.size(1) + 4}, NAN, x.options());
  const at::Tensor part = all.narrow(0, 1, x.size(0)).narrow(1, 2, x.size(1));
  return part.copy_(x);
}

/// Rows and columns of both operands that are adjacent, or neither; every dtype; with and without a bias.
TEST_P(PanelProduct, isThatOfFp64) {
  const auto& [m, n, k] = GetParam();
  for (const at::ScalarType operands : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = normal({m, k}, 1).to(operands), b = normal({n, k}, 2).to(operands);
    ASSERT_EQ(is_panel_product(a, b), operands == at::kFloat || (has_bf16_tiles() && k % 2 == 0));
    if (!is_panel_product(a, b)) continue;
    const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble).t()), bias = normal({n}, 3).to(operands);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const double rounding = type == at::kFloat ? 0 : type == at::kHalf ? 0x1p-11 : 0x1p-8;
      for (const at::Tensor& left : {a, amid_nan(a), a.t().contiguous().t()}) {
        for (const at::Tensor& right : {b, amid_nan(b), b.t().contiguous().t(), amid_nan(b.t()).t()}) {
          const at::Tensor y = panel_product(left, right, std::nullopt, type);
          EXPECT_EQ(y.scalar_type(), type);
          EXPECT_LT(distance(y, exact), 2e-6 + rounding);
          const at::Tensor added = panel_product(left, right, bias, type);
          EXPECT_LT(distance(added, exact + bias.to(at::kDouble)), 2e-6 + rounding);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, PanelProduct,
                         ::testing::Values(Shape{1, 1, 1}, Shape{16, 1, 2}, Shape{17, 63, 16}, Shape{64, 64, 64},
                                           Shape{65, 130, 7}, Shape{130, 65, 514}, Shape{33, 200, 1030},
                                           Shape{3, 5, 1100}, Shape{200, 7, 130}));

TEST(PanelProductOperands, areRefused) {
  const at::Tensor x = at::ones({20, 4});
  EXPECT_TRUE(is_panel_product(x, x));
  EXPECT_FALSE(is_panel_product(x.to(at::kDouble), x.to(at::kDouble)));
  EXPECT_FALSE(is_panel_product(x, x.to(at::kBFloat16)));
  EXPECT_FALSE(is_panel_product(x, at::ones({0, 4})));
  EXPECT_FALSE(is_panel_product(at::ones({20, 0}), at::ones({3, 0})));
}

/// More threads than panels, and fewer.
TEST(PanelProductThreads, changeNothing) {
  const int before = at::get_num_threads();
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>(300, 70), {70, 300}, {300, 30}, {20, 30}}) {
    const at::Tensor a = normal({m, 600}, 1), b = normal({n, 600}, 2);
    std::vector<at::Tensor> results;
    for (const int threads : {1, 2, 5}) {
      at::set_num_threads(threads);
      results.push_back(panel_product(a, b, std::nullopt, at::kFloat));
    }
    EXPECT_TRUE(results[1].equal(results[0]));
    EXPECT_TRUE(results[2].equal(results[0]));
  }
  at::set_num_threads(before);
}

/// at::parallel_for is a plain loop in a library that is compiled without OpenMP.
TEST(PanelProductThreads, shareTheWork) {
  static std::mutex mutex;
  static std::set<std::thread::id> seen;  // that allocate a panel
  const auto note = [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
    return nullptr;
  };
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  const at::Tensor a = normal({64, 64}, 1), b = normal({256, 64}, 2);
  const auto callback = at::addGlobalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  panel_product(a, b, std::nullopt, at::kFloat);
  at::removeCallback(callback);
  at::set_num_threads(before);
  EXPECT_EQ(seen.size(), 2);
}

}  // namespace
}  // namespace caravan::panel_product_test
