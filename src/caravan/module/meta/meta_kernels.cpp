#include "caravan/module/meta/meta_kernels.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "caravan/base/numeric/simd.h"
#include "caravan/module/meta/product_workspace.h"

namespace caravan {
namespace {
namespace on_meta {

using Optional = std::optional<at::Tensor>;
using Pair = std::tuple<at::Tensor, at::Tensor>;
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::ScalarType statistics_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}
at::Tensor if_needed(bool is_needed, const at::Tensor& like) { return is_needed ? at::empty_like(like) : at::Tensor(); }

at::Tensor index_select(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> shape = x.sizes().vec();
  if (!shape.empty()) shape[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(shape, x.options());
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
  const std::vector<int64_t> of_values = at::infer_size(a.sizes(), b.sizes());
  return at::empty(at::infer_size(condition.sizes(), of_values), condition.options().dtype(at::result_type(a, b)));
}

/// resize_ on the meta device bypasses the allocator.
at::Tensor& resized(at::Tensor& out, at::IntArrayRef shape) {
  return out.sizes() == shape ? out : out.set_(at::empty(shape, out.options()).storage(), 0, shape);
}
/// For an element-wise operator.
at::Tensor& unary_out(const at::Tensor& x, at::Tensor& out) { return resized(out, x.sizes()); }
at::Tensor& binary_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return resized(out, at::infer_size(a.sizes(), b.sizes()));
}

at::Tensor like(const at::Tensor& x) { return at::empty_like(x); }
at::Tensor floor_divide(const at::Tensor& a, const at::Tensor& b) {
  return at::empty(at::infer_size(a.sizes(), b.sizes()), a.options().dtype(at::result_type(a, b)));
}
at::Tensor scalar(const at::Tensor& x) { return at::empty({}, x.options()); }
at::Tensor isnan(const at::Tensor& x) { return at::empty_like(x, x.options().dtype(at::kBool)); }
at::Tensor hardtanh(const at::Tensor& x, const at::Scalar&, const at::Scalar&) { return at::empty_like(x); }
at::Tensor hardtanh_backward(const at::Tensor&, const at::Tensor& x, const at::Scalar&, const at::Scalar&) {
  return at::empty_like(x);
}
at::Tensor mse_loss_backward(const at::Tensor&, const at::Tensor& x, const at::Tensor&, int64_t) {
  return at::zeros_like(x);
}
at::Tensor native_dropout_backward(const at::Tensor& dy, const at::Tensor&, double) { return at::empty_like(dy); }

at::Tensor flip(const at::Tensor& x, at::IntArrayRef /*dims*/) { return at::empty_like(x); }
at::Tensor roll(const at::Tensor& x, c10::SymIntArrayRef /*shifts*/, at::IntArrayRef /*dims*/) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  out.resize_(at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes())));
  return out;
}

at::Tensor embedding_dense_backward(const at::Tensor& dy, const at::Tensor& /*ids*/, c10::SymInt rows,
                                    c10::SymInt /*padding*/, bool /*scales*/) {
  return at::zeros({rows.expect_int(), dy.size(-1)}, dy.options());
}

Triple native_layer_norm(const at::Tensor& input, c10::SymIntArrayRef shape, const Optional& weight,
                         const Optional& /*bias*/, double /*epsilon*/) {
  const at::Tensor x = input.contiguous();
  at::Tensor y = at::empty_like(x);
  std::vector<int64_t> rows = x.sizes().vec();
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(shape.size()), rows.end(), 1);
  const bool is_mixed = weight.has_value() && weight->scalar_type() != x.scalar_type();
  const auto options = x.options().dtype(is_mixed ? at::kFloat : x.scalar_type());
  return {y, at::empty(rows, options), at::empty(rows, options)};
}

Triple native_layer_norm_backward(const at::Tensor& dy, const at::Tensor& input, c10::SymIntArrayRef shape,
                                  const at::Tensor& /*mean*/, const at::Tensor& /*rstd*/, const Optional& weight,
                                  const Optional& bias, std::array<bool, 3> needed) {
  const at::Tensor x = input.contiguous();
  const at::Tensor contiguous = dy.contiguous();
  int64_t width = 1;
  for (const c10::SymInt& size : shape) width *= size.expect_int();
  const auto like = [&](const Optional& parameter) {
    return parameter.has_value() && parameter->defined() ? at::empty_like(*parameter) : at::empty({width}, x.options());
  };
  const at::Tensor dx = if_needed(needed[0], x);
  const at::Tensor dweight = needed[1] ? like(weight) : at::Tensor();
  const at::Tensor dbias = needed[2] ? like(bias.has_value() ? bias : weight) : at::Tensor();
  if (needed[1] || needed[2]) at::empty({2, at::get_num_threads(), width}, x.options());  // sums of threads
  return {dx, dweight, dbias};
}

Triple native_batch_norm(const at::Tensor& x, const Optional&, const Optional&, const Optional&, const Optional&,
                         bool is_training, double, double) {
  const auto options = x.options().dtype(statistics_type(x));
  const int64_t channels = is_training ? x.size(1) : 0;
  return {at::empty_like(x), at::empty({channels}, options), at::empty({channels}, options)};
}

Triple native_batch_norm_backward(const at::Tensor& /*dy*/, const at::Tensor& x, const Optional& weight,
                                  const Optional&, const Optional&, const Optional&, const Optional&, bool, double,
                                  std::array<bool, 3> needed) {
  const auto options = weight.has_value() ? weight->options() : x.options().dtype(statistics_type(x));
  const auto of_channels = [&](bool is_needed) { return is_needed ? at::empty({x.size(1)}, options) : at::Tensor(); };
  return {if_needed(needed[0], x), of_channels(needed[1]), of_channels(needed[2])};
}

Triple native_group_norm(const at::Tensor& x, const Optional&, const Optional&, c10::SymInt batch, c10::SymInt,
                         c10::SymInt, int64_t groups, double) {
  const std::array<int64_t, 2> shape{batch.expect_int(), groups};
  return {at::empty_like(x), at::empty(shape, x.options()), at::empty(shape, x.options())};
}

Triple native_group_norm_backward(const at::Tensor& /*dy*/, const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                                  const Optional& weight, c10::SymInt, c10::SymInt channels, c10::SymInt, int64_t,
                                  std::array<bool, 3> needed) {
  const auto options = weight.has_value() ? weight->options() : x.options();
  const auto of_channels = [&](bool is_needed) {
    return is_needed ? at::empty({channels.expect_int()}, options) : at::Tensor();
  };
  return {if_needed(needed[0], x), of_channels(needed[1]), of_channels(needed[2])};
}

/// Blocks of queries and keys of torch's fused attention for the CPU (FlashAttentionKernel.cpp).
struct AttentionBlocks {
  AttentionBlocks(int64_t num_queries, int64_t num_keys)
      : queries(std::min<int64_t>(num_queries, num_queries >= 768   ? 256
                                               : num_queries >= 192 ? 64
                                                                    : 32)),
        keys(std::min<int64_t>(num_keys, 512)) {}
  int64_t queries, keys;
};

/// The memory that a thread takes for products of blocks in 16 bits, which torch leaves to oneDNN.
at::Tensor block_workspace(const at::Tensor& q, const AttentionBlocks& block) {
  const auto call = [](const at::Tensor& a, const at::Tensor& b, const auto&) { return at::mm(a, b.t()); };
  const at::Tensor one = at::empty({block.queries, q.size(3)}, q.options());
  const at::Tensor other = at::empty({block.keys, q.size(3)}, q.options());
  const at::Tensor of_thread = product_workspace(one, other, std::nullopt, call);
  return at::empty({at::get_num_threads() * of_thread.numel()}, of_thread.options());
}

Pair flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& /*v*/, double, bool, const Optional&,
                     std::optional<double>) {
  const int64_t batch = q.size(0), heads = q.size(1), queries = q.size(2), width = q.size(3);
  const auto wide = q.options().dtype(statistics_type(q));
  const at::Tensor out = at::empty({batch, queries, heads, width}, q.options());
  const at::Tensor log_sum_exp = at::empty({batch, queries, heads}, wide);
  const AttentionBlocks block(queries, k.size(2));
  const int64_t threads = at::get_num_threads();
  const at::Tensor scores = at::empty({threads, block.queries * (block.keys + 2 + width)}, wide);
  const bool is_half = q.scalar_type() != wide.dtype().toScalarType();
  const at::Tensor rounded = at::empty({threads, block.queries, is_half ? block.keys : 0}, q.options());
  const at::Tensor workspace = is_half ? block_workspace(q, block) : at::Tensor();
  return {out.transpose(1, 2), log_sum_exp.transpose(1, 2)};
}

Triple flash_attention_backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const at::Tensor& /*out*/, const at::Tensor& /*log_sum_exp*/, double, bool,
                                const Optional&, std::optional<double>) {
  const auto zeros = [](const at::Tensor& x) { return at::zeros(x.transpose(1, 2).sizes(), x.options()); };
  const at::Tensor dq = zeros(q), dk = zeros(k), dv = zeros(v);
  const at::Tensor contiguous = dy.transpose(1, 2).contiguous();
  const AttentionBlocks block(q.size(2), k.size(2));
  const auto wide = q.options().dtype(statistics_type(q));
  const int64_t threads = at::get_num_threads(), scores = 2 * block.queries * block.keys;
  const bool is_half = q.scalar_type() != wide.dtype().toScalarType();
  const at::Tensor of_scores = at::empty({threads, scores}, wide);
  const at::Tensor rounded = at::empty({threads, is_half ? scores : 0}, q.options());
  const at::Tensor of_rows = at::empty({threads, block.queries}, wide);
  const at::Tensor workspace = is_half ? block_workspace(q, block) : at::Tensor();
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

/// Whether scaled_dot_product_attention chooses the fused kernel for such tensors on the CPU.
bool is_fused_on_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Optional& mask) {
  const auto is_dense = [](const at::Tensor& x) { return x.dim() == 4 && x.numel() > 0 && x.stride(-1) == 1; };
  if (!is_dense(q) || !is_dense(k) || !is_dense(v) || k.sizes() != v.sizes()) return false;
  const bool is_differentiated = mask.has_value() && mask->requires_grad();
  return q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3) && !is_differentiated;
}

/// In place of torch's own choice, which on meta tensors is always products.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Optional& mask,
                     double dropout, bool is_causal, std::optional<double> scale, bool is_grouped) {
  if (dropout > 0 || !is_fused_on_cpu(q, k, v, mask)) {
    return std::get<0>(
        at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, is_causal, std::nullopt, scale, is_grouped));
  }
  const bool is_boolean = mask.has_value() && mask->scalar_type() == at::kBool;
  const Optional bias = is_boolean ? Optional(at::zeros(mask->sizes(), q.options())) : mask;
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, bias, scale));
}

std::vector<int64_t> ints(c10::SymIntArrayRef all) {
  std::vector<int64_t> values;
  for (const c10::SymInt& value : all) values.push_back(value.expect_int());
  return values;
}
int64_t at_dim(const std::vector<int64_t>& of_dims, size_t dim) {
  return of_dims.size() == 1 ? of_dims[0] : of_dims[dim];
}

/// Elements of a copy in oneDNN's layout, which it makes of some operands: channels in blocks of a vector.
int64_t in_blocks(const at::Tensor& x, bool is_weight = false) {
  const int64_t block = simd::detected_isa() >= simd::Isa::avx512 ? 16 : 8;
  const auto padded = [block](int64_t channels) { return (channels + block - 1) / block * block; };
  const int64_t channels = std::max<int64_t>(x.size(0) * x.size(1), 1);
  return x.numel() / channels * (is_weight ? padded(x.size(0)) : x.size(0)) * padded(x.size(1));
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const Optional& /*bias*/,
                       c10::SymIntArrayRef strides, c10::SymIntArrayRef paddings, c10::SymIntArrayRef dilations,
                       bool transposed, c10::SymIntArrayRef output_paddings, c10::SymInt groups) {
  const std::vector<int64_t> stride = ints(strides), padding = ints(paddings), dilation = ints(dilations);
  const std::vector<int64_t> more = ints(output_paddings);
  std::vector<int64_t> shape{x.size(0), transposed ? weight.size(1) * groups.expect_int() : weight.size(0)};
  for (int64_t i = 2; i < x.dim(); ++i) {
    const auto dim = static_cast<size_t>(i - 2);
    const int64_t kernel = at_dim(dilation, dim) * (weight.size(i) - 1) + 1;
    const int64_t step = at_dim(stride, dim), pad = 2 * at_dim(padding, dim);
    shape.push_back(transposed ? (x.size(i) - 1) * step - pad + kernel + at_dim(more, dim)
                               : (x.size(i) + pad - kernel) / step + 1);
  }
  at::Tensor result = at::empty(shape, x.options());
  const at::Tensor copies = at::empty({in_blocks(x) + in_blocks(weight, true) + in_blocks(result)}, x.options());
  return result;
}

Triple convolution_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                            at::OptionalSymIntArrayRef /*bias*/, c10::SymIntArrayRef, c10::SymIntArrayRef,
                            c10::SymIntArrayRef, bool, c10::SymIntArrayRef, c10::SymInt, std::array<bool, 3> needed) {
  const at::Tensor copies = at::empty({in_blocks(dy) + in_blocks(x) + in_blocks(weight, true)}, x.options());
  return {if_needed(needed[0], x), if_needed(needed[1], weight),
          needed[2] ? at::empty({dy.size(1)}, dy.options()) : at::Tensor()};
}

at::Tensor adaptive_avg_pool2d(const at::Tensor& x, c10::SymIntArrayRef size) {
  std::vector<int64_t> shape = x.sizes().vec();
  std::copy_n(ints(size).begin(), 2, shape.end() - 2);
  return at::empty(shape, x.options());
}
at::Tensor adaptive_avg_pool2d_backward(const at::Tensor& /*dy*/, const at::Tensor& x) { return at::zeros_like(x); }

Pair native_dropout(const at::Tensor& x, double, std::optional<bool>) {
  return {at::empty_like(x), at::empty_like(x, x.options().dtype(at::kBool))};
}

}  // namespace on_meta

/// Adds kernels to operators that have none on meta tensors.
class MetaRegistration {
 public:
  template <class Kernel>
  void add(const char* op, Kernel* kernel) {
    const std::string name = op;
    const size_t dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    const auto schema = c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload});
    if (schema.has_value() && !schema->hasKernelForDispatchKey(c10::DispatchKey::Meta)) library_.impl(op, kernel);
  }
  /// For an operator that is made of others, and not by this kernel on other devices.
  template <class Kernel>
  void replace(const char* op, Kernel* kernel) {
    autograd_.impl(op, kernel);
  }

 private:
  torch::Library library_{torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__};
  torch::Library autograd_{torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__};
};

MetaRegistration* add_meta_kernels() {
  auto* kernels = new MetaRegistration;  // never destroyed: static tensors are used after main()
  kernels->add("index_select", &on_meta::index_select);
  kernels->add("where.self", &on_meta::where);
  kernels->add("logical_not.out", &on_meta::unary_out);
  kernels->add("abs.out", &on_meta::unary_out);
  kernels->add("logical_and.out", &on_meta::binary_out);
  kernels->add("logical_or.out", &on_meta::binary_out);
  kernels->add("logical_xor.out", &on_meta::binary_out);
  kernels->add("relu", &on_meta::like);
  kernels->add("hardswish", &on_meta::like);
  kernels->add("floor_divide", &on_meta::floor_divide);
  kernels->add("max", &on_meta::scalar);
  kernels->add("min", &on_meta::scalar);
  kernels->add("isnan", &on_meta::isnan);
  kernels->add("hardtanh", &on_meta::hardtanh);
  kernels->add("hardtanh_backward", &on_meta::hardtanh_backward);
  kernels->add("mse_loss_backward", &on_meta::mse_loss_backward);
  kernels->add("flip", &on_meta::flip);
  kernels->add("roll", &on_meta::roll);
  kernels->add("where.self_out", &on_meta::where_out);
  kernels->add("embedding_dense_backward", &on_meta::embedding_dense_backward);
  kernels->add("native_layer_norm", &on_meta::native_layer_norm);
  kernels->add("native_layer_norm_backward", &on_meta::native_layer_norm_backward);
  kernels->add("native_batch_norm", &on_meta::native_batch_norm);
  kernels->add("native_batch_norm_backward", &on_meta::native_batch_norm_backward);
  kernels->add("native_group_norm", &on_meta::native_group_norm);
  kernels->add("native_group_norm_backward", &on_meta::native_group_norm_backward);
  kernels->add("_scaled_dot_product_flash_attention_for_cpu", &on_meta::flash_attention);
  kernels->add("_scaled_dot_product_flash_attention_for_cpu_backward", &on_meta::flash_attention_backward);
  kernels->replace("scaled_dot_product_attention", &on_meta::attention);
  kernels->add("convolution", &on_meta::convolution);
  kernels->add("convolution_backward", &on_meta::convolution_backward);
  kernels->add("_adaptive_avg_pool2d", &on_meta::adaptive_avg_pool2d);
  kernels->add("_adaptive_avg_pool2d_backward", &on_meta::adaptive_avg_pool2d_backward);
  kernels->add("native_dropout", &on_meta::native_dropout);
  kernels->add("native_dropout_backward", &on_meta::native_dropout_backward);
  return kernels;
}

}  // namespace

bool register_meta_kernels() {
  static const MetaRegistration* kernels = add_meta_kernels();
  return kernels != nullptr;
}

}  // namespace caravan
