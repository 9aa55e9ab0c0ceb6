#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"
#include "caravan/nn/product/product_choice.h"

namespace caravan {

/// a b^T + bias: [m, k] and [n, k] -> [m, n], any strides; bias [n]. Not differentiable: for use inside autograd
/// functions. On the CPU fp32 and bf16 are multiplied as products_in_use() says, fp16 in fp32; fewer than 16 rows by
/// few_rows_product.h if they are of kind `forward`. Everything else as torch does it. The result is rounded once.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, ProductKind kind = ProductKind::forward,
                   const std::optional<at::Tensor>& bias = std::nullopt);

/// sum = a b^T, or sum += a b^T unless it is empty: in place where the chosen library can. `sum` [m, n] is contiguous,
/// fp32 (fp64 for fp64 operands). Computed as for `tokens` rows; none: for those of a.
void add_product(at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b, ProductKind kind,
                 std::optional<int64_t> tokens = std::nullopt);

/// x weight^T + bias: [.., in] and [out, in] -> [.., out]; bias [out], or null. Its three products are computed as by
/// `product`, with the number of rows of x. Differentiable once.
///   grad    of x is computed first, then those of weight and bias are handed to Parameter::accumulate_grad_later;
///           where bf16 was multiplied in fp32 they are not rounded
///   throws  ShapeError naming the weight for a width or dtype that does not fit
at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias = nullptr);

/// The same of several layers with one x, whose gradient is one sum to which their products are added.
struct WeightAndBias {
  Parameter* weight;
  Parameter* bias;  ///< or null
};
std::vector<at::Tensor> linear(const at::Tensor& x, std::span<const WeightAndBias> layers);

/// What this process would choose: the rule for its class of processor, or what `caravan doctor --tune` measured for
/// that class, changed by the words in CARAVAN_PRODUCTS. Complete (see to_text) and stable across runs. Throws
/// UsageError for an impossible CARAVAN_PRODUCTS and DataError for a damaged file.
std::string chosen_products();

/// Makes the whole process multiply as `text` says: rank 0's chosen_products(), or what a checkpoint recorded. Call it
/// before the first product. Words that are missing keep this process's own choice. Throws UsageError, naming the valid
/// words, for what this torch cannot do.
void use_products(const std::string& text);

/// What use_products set, else chosen_products(); complete.
const std::string& products_in_use();
ProductChoice product_choice_in_use();

/// The libraries that torch was built with.
std::vector<ProductLibrary> available_product_libraries();

}  // namespace caravan
