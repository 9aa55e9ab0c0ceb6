#include "caravan/cost/torch_kernels.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/trace/kernel_log.h"

namespace caravan::testing::torch_kernels_test {
namespace {

class KernelList final : public KernelLog {
 public:
  void add(KernelWork work) override { kernels.push_back(std::move(work)); }
  std::vector<KernelWork> kernels;
};

/// x [tokens, in] times w [out, in], transposed.
KernelWork product_of(int64_t tokens, int64_t in, int64_t out) {
  const auto options = at::TensorOptions(at::kBFloat16).device(at::kMeta);
  const at::Tensor x = at::empty({tokens, in}, options), w = at::empty({out, in}, options);
  KernelList list;
  const KernelLogScope counted(&list);
  const TorchKernelScope operators;
  at::mm(x, w.t());
  EXPECT_EQ(list.kernels.size(), 1U);
  return list.kernels.front();
}

TEST(TorchKernels, ProductsWithUnalignedRowsSaySo) {
  EXPECT_FALSE(product_of(64, 32, 16).is_unaligned);
  EXPECT_FALSE(product_of(63, 32, 16).is_unaligned) << "rows begin at multiples of 32 and 16";
  EXPECT_TRUE(product_of(64, 32, 15).is_unaligned) << "rows of the result";
  EXPECT_TRUE(product_of(64, 31, 16).is_unaligned) << "rows of both operands";
  EXPECT_FALSE(product_of(64, 1, 16).is_unaligned) << "columns of one element";
  const KernelWork work = product_of(63, 32, 16);
  EXPECT_EQ((std::vector<int64_t>{work.m, work.n, work.k}), (std::vector<int64_t>{63, 16, 32}));
}

}  // namespace
}  // namespace caravan::testing::torch_kernels_test
