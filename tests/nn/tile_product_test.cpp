#include "caravan/nn/product/tile_product.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"

namespace caravan::tile_product_test {
namespace {

using testing::distance;
using testing::expect_same_on_threads;
using testing::normal;

struct Sizes {
  int64_t k, m, n;
};

std::ostream& operator<<(std::ostream& out, const Sizes& s) { return out << s.k << " x " << s.m << " x " << s.n; }

class TileProduct : public ::testing::TestWithParam<Sizes> {};

/// Both orders in which it multiplies, tiles that are not full, rows of a wider tensor.
TEST_P(TileProduct, addsToTheSum) {
  const auto& [k, m, n] = GetParam();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = normal({k, m + 3}, 1).to(type).narrow(1, 1, m),
                     b = normal({k, n + 1}, 2).to(type).narrow(1, 1, n);
    const at::Tensor before = normal({m, n}, 3);
    at::Tensor sum = before.clone(), of_empty = at::full({m, n}, NAN);
    ASSERT_EQ(is_tiled_sum(sum, a, b), type == at::kFloat || has_bf16_tiles());
    if (!is_tiled_sum(sum, a, b)) continue;
    const at::Tensor exact = at::mm(a.to(at::kDouble).t(), b.to(at::kDouble));
    add_tiled_product(sum, /*is_empty=*/false, a, b);
    add_tiled_product(of_empty, /*is_empty=*/true, a, b);
    // Operands are exact in either type, sums are in fp32: of up to 1,300 products of numbers around 1.
    EXPECT_LT(distance(sum, before.to(at::kDouble) + exact), 2e-6) << type;
    EXPECT_LT(distance(of_empty, exact), 2e-6) << type;
  }
}

INSTANTIATE_TEST_SUITE_P(, TileProduct,
                         ::testing::Values(Sizes{1, 1, 1}, Sizes{16, 16, 16}, Sizes{17, 3, 5}, Sizes{300, 64, 64},
                                           Sizes{515, 130, 33}, Sizes{513, 33, 130}, Sizes{1300, 200, 7},
                                           Sizes{1025, 7, 200}, Sizes{2, 129, 65}));

TEST(TileProductOperands, areRefused) {
  const at::Tensor sum = at::zeros({4, 4}), x = at::ones({8, 4});
  EXPECT_TRUE(is_tiled_sum(sum, x, x));
  EXPECT_FALSE(is_tiled_sum(sum, at::ones({4, 8}).t(), x));
  EXPECT_FALSE(is_tiled_sum(sum, x, at::ones({1, 4}).expand({8, 4}))) << "rows that overlap";
  EXPECT_FALSE(is_tiled_sum(sum.to(at::kDouble), x, x));
  EXPECT_FALSE(is_tiled_sum(sum, x.to(at::kDouble), x.to(at::kDouble)));
  EXPECT_FALSE(is_tiled_sum(sum, x, x.to(at::kBFloat16)));
  EXPECT_FALSE(is_tiled_sum(at::zeros({8, 4}).t().narrow(1, 0, 4), x, x));
  EXPECT_FALSE(is_tiled_sum(at::zeros({4, 0}), x, at::ones({8, 0})));
}

TEST(TileProductThreads, changeNothing) {
  for (const auto& [k, m, n] : {Sizes{600, 300, 70}, Sizes{600, 70, 300}}) {
    const at::Tensor a = normal({k, m}, 1), b = normal({k, n}, 2);
    expect_same_on_threads([&] {
      const at::Tensor sum = at::ones({a.size(1), b.size(1)});
      add_tiled_product(sum, false, a, b);
      return Tensors{sum};
    });
  }
}

}  // namespace
}  // namespace caravan::tile_product_test
