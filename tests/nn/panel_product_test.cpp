#include "caravan/nn/product/panel_product.h"

#include <cmath>
#include <memory>
#include <mutex>
#include <ostream>
#include <set>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "caravan/module/initialise.h"
#include "caravan/module/parameter.h"
#include "caravan/nn/product/tile_product.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"

namespace caravan::panel_product_test {
namespace {

using testing::distance;
using testing::expect_same_on_threads;
using testing::normal;

struct Shape {
  int64_t m, n, k;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << s.m << " x " << s.n << " x " << s.k; }

class PanelProduct : public ::testing::TestWithParam<Shape> {};

/// `x` as a part of a larger tensor of NaN, whose rows are `more` elements longer.
at::Tensor amid_nan(const at::Tensor& x, int64_t more = 4) {
  const at::Tensor all = at::full({x.size(0) + 2, x.size(1) + more}, NAN, x.options());
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
      for (const at::Tensor& left : {a, amid_nan(a), amid_nan(a, 3), a.t().contiguous().t()}) {
        for (const at::Tensor& right : {b, amid_nan(b), amid_nan(b, 3), b.t().contiguous().t(), amid_nan(b.t()).t()}) {
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
                                           Shape{3, 5, 1100}, Shape{200, 7, 130}, Shape{1, 5, 40}, Shape{40, 70, 4200},
                                           Shape{20, 3, 9000}));

/// The gradient of one column, transposed: rows that begin one element apart.
TEST(PanelProductOperands, mayBeOneRow) {
  const at::Tensor a = normal({40, 1}, 1).t(), b = normal({5, 40}, 2);
  ASSERT_EQ(a.stride(0), 1);
  EXPECT_LT(distance(panel_product(a, b, std::nullopt, at::kFloat), at::mm(a.to(at::kDouble), b.to(at::kDouble).t())),
            2e-6);
}

TEST(PanelProductOperands, areRefused) {
  const at::Tensor x = at::ones({20, 4});
  EXPECT_TRUE(is_panel_product(x, x));
  EXPECT_FALSE(is_panel_product(x.to(at::kDouble), x.to(at::kDouble)));
  EXPECT_FALSE(is_panel_product(x, x.to(at::kBFloat16)));
  EXPECT_FALSE(is_panel_product(x, at::ones({0, 4})));
  EXPECT_FALSE(is_panel_product(at::ones({20, 0}), at::ones({3, 0})));
}

/// More threads than panels, and fewer; panels of all of k, and of blocks of it.
TEST(PanelProductThreads, changeNothing) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [m, n, k] :
         {Shape{300, 70, 600}, {70, 300, 600}, {300, 30, 600}, {20, 30, 600}, {90, 90, 8400}, {200, 150, 3600}}) {
      const at::Tensor a = normal({m, k}, 1).to(type), b = normal({n, k}, 2).to(type);
      if (!is_panel_product(a, b)) continue;
      expect_same_on_threads([&, type = type] { return Tensors{panel_product(a, b, std::nullopt, type)}; });
    }
  }
}

/// The number of another thread is not taken over, and scratch is for the threads that a loop gets.
TEST(Threads, keepTheirOwnNumber) {
  const int before = at::get_num_threads();
  const at::Tensor a = normal({300, 64}, 1), b = normal({256, 64}, 2);
  const at::Tensor expected = panel_product(a, b, std::nullopt, at::kFloat);
  at::Tensor result;
  int number = 0;
  std::thread([&] {
    at::set_num_threads(1);
    ASSERT_EQ(at::get_num_threads(), 1);  // torch sets it itself when it is read first
    std::thread([] { at::set_num_threads(8); }).join();
    result = panel_product(a, b, std::nullopt, at::kFloat);
    number = at::get_num_threads();
  }).join();
  at::set_num_threads(before);
  EXPECT_TRUE(result.equal(expected));
  EXPECT_EQ(number, 1);
}

/// Loops of torch's headers are plain ones in a library that is compiled without OpenMP. Of the loops of this library,
/// the one that draws bf16 weights calls operators, so that it is seen where it runs.
TEST(Threads, shareTheLoopsOfTheLibrary) {
  static std::mutex mutex;
  static std::set<std::thread::id> seen;
  const auto note = [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
    return nullptr;
  };
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  const std::vector<int64_t> shape{1024, 256};
  const Parameter parameter("weight", {.shape = shape, .init = {Init::Kind::normal, 0.02}});
  at::Tensor piece = at::empty(shape, at::kBFloat16);
  const auto callback = at::addGlobalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  initialise(piece, parameter, Box{{0, 0}, shape}, /*seed=*/1);
  at::removeCallback(callback);
  at::set_num_threads(before);
  EXPECT_EQ(seen.size(), 2);
}

}  // namespace
}  // namespace caravan::panel_product_test
