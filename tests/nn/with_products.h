#pragma once

#include <string>

#include "caravan/nn/product/product.h"

namespace caravan::testing {

/// Multiplies as `text` says (use_products) while it lives.
class WithProducts {
 public:
  explicit WithProducts(const std::string& text) : before_(products_in_use()) { use_products(text); }
  ~WithProducts() { use_products(before_); }
  WithProducts(const WithProducts&) = delete;
  WithProducts& operator=(const WithProducts&) = delete;

 private:
  std::string before_;
};

}  // namespace caravan::testing
