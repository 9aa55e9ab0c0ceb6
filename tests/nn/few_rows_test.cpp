#include <array>
#include <optional>
#include <ostream>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/nn/product/few_rows_product.h"
#include "caravan/nn/product/product.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"

namespace caravan::few_rows_test {
namespace {

using testing::distance;
using testing::expect_same_on_threads;
using testing::normal;

struct Shape {
  int64_t n, k;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << s.n << " x " << s.k; }

/// Of operands, and what multiplies those of bf16.
struct Kind {
  at::ScalarType type;
  Bf16Arithmetic bf16 = Bf16Arithmetic::native;
};
constexpr std::array kKinds = {Kind{at::kFloat}, Kind{at::kBFloat16}, Kind{at::kBFloat16, Bf16Arithmetic::fp32},
                               Kind{at::kHalf}};

class FewRows : public ::testing::TestWithParam<Shape> {};

/// `x` as a part of a larger tensor of NaN, whose rows are `more` elements longer.
at::Tensor amid_nan(const at::Tensor& x, int64_t more) {
  const at::Tensor all = at::full({x.size(0) + 2, x.size(1) + more}, NAN, x.options());
  return all.narrow(0, 1, x.size(0)).narrow(1, 2, x.size(1)).copy_(x);
}

TEST_P(FewRows, areThoseOfFp64) {
  const auto [n, k] = GetParam();
  for (const auto& [type, bf16] : kKinds) {
    const at::Tensor w = normal({n, k}, 2).to(type), bias = normal({n}, 3).to(type);
    for (int64_t m = 1; m < kFewRows; ++m) {
      const at::Tensor x = normal({m, k}, 1).to(type);
      const at::Tensor exact = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
      for (const at::ScalarType out : {type, at::kFloat}) {
        const double rounding = out == at::kFloat ? 0 : out == at::kHalf ? 0x1p-11 : 0x1p-8;
        for (const at::Tensor& left : {x, amid_nan(x, 3), x.t().contiguous().t()}) {
          for (const at::Tensor& right : {w, amid_nan(w, 5)}) {
            ASSERT_TRUE(is_few_rows_product(left, right));
            const at::Tensor y = few_rows_product(left, right, std::nullopt, out, bf16);
            EXPECT_EQ(y.scalar_type(), out);
            EXPECT_LT(distance(y, exact), 2e-6 + rounding) << m << " rows of " << type;
            const at::Tensor added = few_rows_product(left, right, bias, out, bf16);
            EXPECT_LT(distance(added, exact + bias.to(at::kDouble)), 2e-6 + rounding) << m << " rows of " << type;
          }
        }
      }
    }
  }
}

/// Bit for bit: alone, among others, in any part of the weight, on any number of threads.
TEST_P(FewRows, theBitsOfARowDependOnNothingElse) {
  const auto [n, k] = GetParam();
  for (const auto& [type, bf16] : kKinds) {
    const at::Tensor x = normal({EachRowAlone::kMost, k}, 1).to(type), w = normal({n, k}, 2).to(type);
    const at::Tensor bias = normal({n}, 3).to(type);
    for (const bool is_biased : {false, true}) {
      const auto product = [&](const at::Tensor& a, const at::Tensor& b) {
        const auto added = is_biased ? std::optional(bias.narrow(0, n - b.size(0), b.size(0))) : std::nullopt;
        return few_rows_product(a, b, added, type, bf16);
      };
      const at::Tensor all = product(x, w);
      for (int64_t m = 1; m < x.size(0); m += m < kFewRows + 1 ? 1 : 15) {
        for (int64_t first = 0; first + m <= x.size(0); first += m < kFewRows ? 3 : 21) {
          const at::Tensor some = product(x.narrow(0, first, m), w);
          EXPECT_TRUE(some.equal(all.narrow(0, first, m))) << m << " rows of " << type;
        }
        const at::Tensor part = product(x.narrow(0, 0, m), w.narrow(0, n / 3, n - n / 3));
        EXPECT_TRUE(part.equal(all.narrow(0, 0, m).narrow(1, n / 3, n - n / 3))) << m << " rows of " << type;
        expect_same_on_threads([&] { return Tensors{product(x.narrow(0, 0, m), w)}; });
      }
    }
  }
}

/// A vector less, more; more than one depth of the kernel; work for several threads.
INSTANTIATE_TEST_SUITE_P(, FewRows,
                         ::testing::Values(Shape{1, 1}, Shape{1, 66}, Shape{3, 7}, Shape{17, 8}, Shape{9, 33},
                                           Shape{65, 100}, Shape{130, 1029}, Shape{130, 1030}, Shape{1001, 515},
                                           Shape{1001, 516}));

TEST(FewRowsEdges, othersAreNotTaken) {
  const at::Tensor w = normal({5, 6}, 1);
  EXPECT_FALSE(is_few_rows_product(normal({kFewRows, 6}, 2), w));
  EXPECT_FALSE(is_few_rows_product(normal({2, 6}, 2).to(at::kDouble), w.to(at::kDouble)));
  EXPECT_FALSE(is_few_rows_product(normal({2, 5}, 2), w.t()));
  EXPECT_FALSE(is_few_rows_product(normal({0, 6}, 2), w));
  // Gradients of few rows are torch's.
  const at::Tensor dy = normal({3, 5}, 4);
  EXPECT_TRUE(product(dy, w.t(), ProductKind::dx).equal(at::mm(dy, w)));
}

}  // namespace
}  // namespace caravan::few_rows_test
