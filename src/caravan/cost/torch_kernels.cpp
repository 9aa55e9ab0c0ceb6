#include "caravan/cost/torch_kernels.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/accumulate.h>

#include "caravan/base/trace/kernel_log.h"
#include "caravan/global/state.h"
#include "caravan/module/count_kernel.h"

namespace caravan {
namespace {

/// How the work of an operator follows from its arguments.
enum class Rule : uint8_t {
  composite,  ///< what it calls counts
  free,       ///< views, allocations
  touches,    ///< reads its inputs, writes its outputs
  writes,     ///< its first input is only written: copy_, fill_
  picks,      ///< reads as much of its first input as it writes
  scatters,   ///< writes as much of its first input as the others have
  product,    ///< the last two tensors of the first three
  attention,  ///< query, key, value
  attention_backward,
  convolution,
  convolution_backward,
};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

Rule rule_of(std::string_view name) {
  if (name.starts_with("empty") || name.starts_with("new_empty")) return Rule::free;
  if (is_one_of(name,
                {"resize_", "set_", "detach", "detach_", "_local_scalar_dense", "item", "is_nonzero", "result_type",
                 "requires_grad_", "record_stream", "_fused_sdp_choice", "can_cast", "retain_grad"})) {
    return Rule::free;
  }
  if (is_one_of(name, {"copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_"})) return Rule::writes;
  if (is_one_of(name, {"index_select", "embedding", "gather", "index", "take"})) return Rule::picks;
  if (is_one_of(name, {"index_copy_", "index_add_", "index_put_", "_index_put_impl_", "scatter_", "scatter_add_"})) {
    return Rule::scatters;
  }
  if (is_one_of(name, {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "mv", "dot", "linear",
                       "_addmm_activation", "matmul"})) {
    return Rule::product;
  }
  if (name.starts_with("_scaled_dot_product_") && name.find("math") == name.npos) {
    return name.ends_with("_backward") ? Rule::attention_backward : Rule::attention;
  }
  if (name.find("convolution") != name.npos) {
    return name.ends_with("_backward") ? Rule::convolution_backward : Rule::convolution;
  }
  return Rule::touches;
}

/// "aten::add_" is "add_"; the output variant "mm.out" has the name "aten::mm".
std::string_view short_name(std::string_view name) {
  const size_t colons = name.rfind("::");
  return colons == name.npos ? name : name.substr(colons + 2);
}

/// What is kept of a tensor: not the tensor itself, whose number of owners torch looks at.
struct Seen {
  const void* tensor;
  std::vector<int64_t> sizes, strides;
  at::ScalarType type;
  int64_t bytes;

  explicit Seen(const at::Tensor& x)
      : tensor(x.unsafeGetTensorImpl()),
        sizes(x.sizes().vec()),
        strides(x.strides().vec()),
        type(x.scalar_type()),
        bytes(static_cast<int64_t>(x.nbytes())) {}
  size_t dim() const noexcept { return sizes.size(); }
  int64_t numel() const noexcept { return c10::multiply_integers(sizes); }
  /// Whether all rows, or columns of a transposed matrix, begin at multiples of 8 elements.
  bool is_aligned() const noexcept {
    if (dim() < 2) return true;
    const auto begins = [this](size_t i) { return sizes[i] == 1 || strides[i] == 1 || strides[i] % 8 == 0; };
    return begins(dim() - 1) && begins(dim() - 2);
  }
};

template <class Values>
std::vector<Seen> tensors_of(const Values& values) {
  std::vector<Seen> all;
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) all.emplace_back(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) all.emplace_back(tensor);
  }
  return all;
}

int64_t bytes_of(const std::vector<Seen>& all) {
  int64_t bytes = 0;
  for (const Seen& x : all) bytes += x.bytes;
  return bytes;
}

/// An operator that has begun.
struct Call final : at::ObserverContext {
  Rule rule = Rule::free;
  std::string_view name;
  std::vector<Seen> inputs, outputs;
  bool is_causal = false;    ///< one of its flags is true
  bool is_in_place = false;  ///< see OperatorRule
};

KernelWork memory_work(const Call& call, int64_t bytes) {
  const Seen& first = call.outputs.empty() ? call.inputs.front() : call.outputs.front();
  return {.what = std::string(call.name), .dtype = dtype_name_of(first.type), .bytes = bytes};
}

std::optional<KernelWork> product_work(const Call& call) {
  const bool has_summand =
      call.name.starts_with("addmm") || call.name.starts_with("baddbmm") || call.name == "_addmm_activation";
  const size_t first = has_summand ? 1 : 0;
  if (call.inputs.size() < first + 2) return std::nullopt;
  const Seen &a = call.inputs[first], &b = call.inputs[first + 1];
  if (a.dim() == 0 || b.dim() == 0 || a.numel() == 0) return std::nullopt;
  const int64_t k = a.sizes.back();
  const int64_t batch = a.dim() == 3 && b.dim() == 3 ? a.sizes[0] : 1;
  return KernelWork{.kind = KernelWork::Kind::product,
                    .what = std::string(call.name),
                    .dtype = dtype_name_of(a.type),
                    .batch = batch,
                    .m = a.numel() / std::max<int64_t>(1, k * batch),
                    .n = b.numel() / std::max<int64_t>(1, k * batch),
                    .k = k,
                    .bytes = a.bytes + b.bytes + bytes_of(call.outputs),
                    .is_unaligned = !a.is_aligned() || !b.is_aligned() ||
                                    !std::ranges::all_of(call.outputs, [](const Seen& y) { return y.is_aligned(); })};
}

std::optional<KernelWork> attention_work(const Call& call, bool is_backward) {
  const size_t first = is_backward ? 1 : 0;
  if (call.inputs.size() < first + 3 || call.inputs[first].dim() != 4) return std::nullopt;
  const std::vector<int64_t>&q = call.inputs[first].sizes, &k = call.inputs[first + 1].sizes;
  return KernelWork{.kind = KernelWork::Kind::attention,
                    .what = std::string(call.name),
                    .dtype = dtype_name_of(call.inputs[first].type),
                    .batch = q[0] * q[1],
                    .m = q[2],
                    .n = k[2],
                    .k = q[3],
                    .products = is_backward ? 5 : 2,
                    .is_causal = call.is_causal,
                    .bytes = bytes_of(call.inputs) + bytes_of(call.outputs)};
}

/// As products of patches and filters; backward: those of the input and of the weight.
std::optional<KernelWork> convolution_work(const Call& call, bool is_backward) {
  const size_t first = is_backward ? 1 : 0;
  if (call.inputs.size() < first + 2 || call.outputs.empty()) return std::nullopt;
  const Seen& weight = call.inputs[first + 1];
  const Seen& y = is_backward ? call.inputs.front() : call.outputs.front();
  if (y.dim() < 3 || weight.dim() != y.dim()) return std::nullopt;
  const int64_t channels = std::max<int64_t>(1, weight.sizes[0]);
  return KernelWork{.kind = KernelWork::Kind::product,
                    .what = std::string(call.name),
                    .dtype = dtype_name_of(weight.type),
                    .m = y.numel() / channels,
                    .n = channels,
                    .k = weight.numel() / channels,
                    .products = is_backward ? 2 : 1,
                    .bytes = bytes_of(call.inputs) + bytes_of(call.outputs)};
}

std::optional<KernelWork> work_of(const Call& call) {
  const int64_t in = bytes_of(call.inputs), out = bytes_of(call.outputs);
  const int64_t first = call.inputs.empty() ? 0 : call.inputs.front().bytes;
  switch (call.rule) {
    case Rule::composite:
    case Rule::free: return std::nullopt;
    case Rule::writes: return memory_work(call, in);
    case Rule::picks: return memory_work(call, in - first + 2 * out);
    case Rule::scatters: return memory_work(call, 2 * (in - first));
    case Rule::product: return product_work(call);
    case Rule::attention: return attention_work(call, /*is_backward=*/false);
    case Rule::attention_backward: return attention_work(call, /*is_backward=*/true);
    case Rule::convolution: return convolution_work(call, /*is_backward=*/false);
    case Rule::convolution_backward: return convolution_work(call, /*is_backward=*/true);
    case Rule::touches: break;
  }
  return memory_work(call, in + out);
}

/// Whether an operator gave back its input as it is.
bool is_input(const Call& call) {
  return !call.outputs.empty() &&
         std::ranges::find(call.inputs, call.outputs.front().tensor, &Seen::tensor) != call.inputs.end();
}

struct OperatorRule {
  Rule rule = Rule::composite;
  bool is_in_place = false;  ///< its output is its input, which it writes
};

OperatorRule find_rule(const at::RecordFunction& function) {
  const std::optional<c10::OperatorName> full = function.operator_name();
  if (!full) return {};  // not an operator
  const auto handle = c10::Dispatcher::singleton().findOp(*full);
  if (!handle || handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return {};
  const std::vector<c10::Argument>& returns = handle->schema().returns();
  const c10::AliasInfo* alias = returns.empty() ? nullptr : returns.front().alias_info();
  if (alias != nullptr && !alias->isWrite()) return {Rule::free};  // a view
  return {rule_of(short_name(full->name)), alias != nullptr};
}

/// The rule of the overload that is called. Names of operators are never moved while they are registered.
OperatorRule rule_of(const at::RecordFunction& function) {
  static thread_local std::map<std::pair<const char*, const char*>, OperatorRule> rules;
  const auto [rule, is_new] = rules.try_emplace({function.name(), function.overload_name()});
  if (is_new) rule->second = find_rule(function);
  return rule->second;
}

/// Number of open operators inside of which none counts.
thread_local constinit int num_counting = 0;

/// Whether an operator is about global tensors: what it runs on their pieces counts.
bool has_global(c10::ArrayRef<const c10::IValue> values) {
  const auto is_one = [](const at::Tensor& x) { return x.defined() && is_global_impl(x.unsafeGetTensorImpl()); };
  return std::ranges::any_of(values, [&](const c10::IValue& each) {
    if (each.isTensor()) return is_one(each.toTensor());
    return each.isTensorList() && std::ranges::any_of(each.toTensorVector(), is_one);
  });
}

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function) {
  if (KernelLog::current() == nullptr) return nullptr;
  const OperatorRule rule = rule_of(function);
  if (rule.rule == Rule::composite || has_global(function.inputs())) return nullptr;
  auto call = std::make_unique<Call>();
  if (num_counting++ > 0 || rule.rule == Rule::free) return call;
  call->rule = rule.rule;
  call->is_in_place = rule.is_in_place;
  call->name = short_name(function.name());
  const c10::ArrayRef<const c10::IValue> values = function.inputs();  // gone when the operator ends
  call->inputs = tensors_of(values);
  call->is_causal = std::ranges::any_of(values, [](const c10::IValue& each) { return each.isBool() && each.toBool(); });
  return call;
}

void end_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  auto& call = static_cast<Call&>(*context);
  --num_counting;
  KernelLog* log = KernelLog::current();
  if (call.rule == Rule::free || log == nullptr) return;
  call.outputs = tensors_of(function.outputs());
  if (call.inputs.empty() && call.outputs.empty()) return;
  if (!call.is_in_place && is_input(call)) return;
  if (std::optional<KernelWork> work = work_of(call)) log->add(std::move(*work));
}

}  // namespace

TorchKernelScope::TorchKernelScope()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin_operator, end_operator)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}))) {}

TorchKernelScope::~TorchKernelScope() { at::removeCallback(handle_); }

}  // namespace caravan
