// The recorded calls of ATen ops give the recorded results: other tests rely on it that a sample is replayed as it was
// called.
#include "tests/global/op_samples.h"

#include <set>
#include <string>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

namespace caravan::testing::op_samples_test {
namespace {

const std::filesystem::path kFile = CARAVAN_SOURCE_DIR "/tests/global/op_samples.pt";

/// Other processors have other vector instructions and so another order of sums: 1e-12 of doubles, whose sums have at
/// most 2304 terms. What is not double is short of digits that such an order costs.
double tolerance(at::ScalarType dtype) {
  if (dtype == at::kDouble || dtype == at::kComplexDouble) return 1e-12;
  return dtype == at::kFloat || dtype == at::kComplexFloat ? 1e-5 : 1e-2;
}

::testing::AssertionResult same(const c10::IValue& value, const c10::IValue& expected) {
  if (expected.isTensor() && value.isTensor()) {
    const auto& a = value.toTensor();
    const auto& b = expected.toTensor();
    if (a.dtype() != b.dtype() || a.sizes() != b.sizes()) return ::testing::AssertionFailure() << "dtype or sizes";
    if (at::equal(a, b)) return ::testing::AssertionSuccess();
    const bool integral = at::isIntegralType(a.scalar_type(), true);
    const double allowed = integral ? 0 : tolerance(a.scalar_type());
    if (integral || !at::allclose(a.resolve_conj(), b, allowed, allowed, true)) {
      return ::testing::AssertionFailure() << a << "\nwas recorded as\n" << b;
    }
    return ::testing::AssertionSuccess();
  }
  if (expected.isList() && value.isList()) {
    const auto a = value.toList();
    const auto b = expected.toList();
    if (a.size() != b.size()) return ::testing::AssertionFailure() << "length of a list";
    for (size_t i = 0; i < a.size(); ++i) {
      if (auto result = same(a[i], b[i]); !result) return result;
    }
    return ::testing::AssertionSuccess();
  }
  if (value.isTensor() && !value.toTensor().defined() && expected.isNone()) return ::testing::AssertionSuccess();
  if (value.tagKind() == expected.tagKind() && value.equals(expected).toBool()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << value << " was recorded as " << expected;
}

TEST(OpSamples, give_the_recorded_outputs) {
  std::set<std::string> ops;
  size_t replayed = 0;
  for (const auto& sample : read_op_samples(kFile)) {
    SCOPED_TRACE(c10::toString(sample.op().operator_name()));
    ops.insert(c10::toString(sample.op().operator_name()));
    const auto outputs = sample.replay();
    if (!sample.determined()) continue;
    ++replayed;
    ASSERT_EQ(outputs.size(), sample.outputs().size());
    for (size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(same(outputs[i], sample.outputs()[i]));
  }
  EXPECT_GT(ops.size(), 1000u);
  EXPECT_GT(replayed, 3000u);
}

TEST(OpSamples, have_tensors_of_their_own_each_time) {
  const auto samples = read_op_samples(kFile);
  const auto& sample = samples.front();
  const auto first = sample.arguments();
  const auto second = sample.arguments();
  for (size_t i = 0; i < first.size(); ++i) {
    if (!first[i].isTensor()) continue;
    EXPECT_NE(first[i].toTensor().const_data_ptr(), second[i].toTensor().const_data_ptr());
    EXPECT_EQ(first[i].toTensor().strides(), second[i].toTensor().strides());
  }
}

TEST(OpSamples, refuse_a_missing_file) { EXPECT_THROW(read_op_samples("/nowhere/op_samples.pt"), std::runtime_error); }

}  // namespace
}  // namespace caravan::testing::op_samples_test
