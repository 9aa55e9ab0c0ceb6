#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/nn/product/product_choice.h"

namespace caravan {

/// The time of each way of doing one thing on this machine.
struct ProductTiming {
  struct Way {
    std::string text;  ///< as in to_text: "dw=mkl"
    double gflops;
  };
  std::string what;         ///< "fp32 dw"
  std::vector<Way> ways{};  ///< that of the rule first
  size_t best = 0;          ///< that of the rule, unless another is at least 3 % faster
};

struct TunedProducts {
  ProductChoice choice{};
  std::vector<ProductTiming> timings{};
};

/// The product a b^T as a layer computes it: a gradient of a weight (dw) is added to a sum.
std::function<void()> product_of_layer(const at::Tensor& a, const at::Tensor& b, ProductKind kind);

/// Times each library and arithmetic on shapes of small transformers, alternately, with this thread's number of
/// threads. Changes products_in_use while it runs; no other matrix products may run meanwhile. Takes a few seconds.
TunedProducts tune_products();

}  // namespace caravan
