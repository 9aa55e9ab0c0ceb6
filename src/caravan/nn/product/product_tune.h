#pragma once

#include <string>
#include <vector>

#include "caravan/nn/product/product_choice.h"

namespace caravan {

/// How fast each way of doing one thing is on this machine.
struct ProductTiming {
  struct Way {
    std::string text;  ///< as in to_text: "dw=mkl"
    double gflops;
  };
  std::string what;         ///< "fp32 dw"
  std::vector<Way> ways{};  ///< the one of the rule first
  size_t best = 0;          ///< the rule's, unless another is at least 3 % faster
};

struct TunedProducts {
  ProductChoice choice{};
  std::vector<ProductTiming> timings{};
};

/// Times each library and arithmetic on shapes of small transformers, in turn, with this thread's number of threads.
/// Changes products_in_use while it runs; nothing else may multiply meanwhile. Takes a few seconds.
TunedProducts tune_products();

}  // namespace caravan
