#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <torch/library.h>

#include "caravan/base/error.h"
#include "caravan/global/dispatch.h"
#include "caravan/global/global.h"
#include "caravan/global/operation.h"
#include "caravan/global/state.h"
#include "caravan/redistribute/labels.h"

namespace caravan {
namespace {

/// Whether a composite kernel of the op would be taken before a fallback. Other implicit composites are left alone:
/// they are taken apart above autograd, and a kernel here would make them errors for tensors of oneDNN.
bool shadows_fallback(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
          op.hasKernelForDispatchKey(c10::DispatchKey::CPU));
}

/// Registers the kernel of one op, unless a fallback serves it.
void add_kernel(const c10::OperatorHandle& op) {
  // Never destroyed: kernels must not go while another static object still computes.
  static auto& libraries = *new std::unordered_map<std::string, std::unique_ptr<torch::Library>>();
  if (!shadows_fallback(op) || op.hasKernelForDispatchKey(kGlobalKey)) return;
  const c10::OperatorName& name = op.operator_name();
  const std::string library = name.name.substr(0, name.name.find("::"));
  auto& own = libraries[library];
  if (own == nullptr) {
    own = std::make_unique<torch::Library>(torch::Library::IMPL, library, kGlobalKey, __FILE__, __LINE__);
  }
  own->impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_pieces>());
}

[[noreturn]] void refuse_kernel(const std::string& whose) {
  throw UsageError({"global tensors", whose, "there is a kernel on the dispatch key that global tensors use (FPGA)", "",
                    "load no other library that registers kernels for FPGA in this process"});
}

void register_all() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto& fallback = *new torch::Library(torch::Library::IMPL, "_", kGlobalKey, __FILE__, __LINE__);
  std::vector<c10::OperatorHandle> ops;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op) continue;
    if (op->hasKernelForDispatchKey(kGlobalKey)) refuse_kernel(name.name);
    if (op->hasSchema()) ops.push_back(*op);
  }
  for (const c10::OperatorHandle& op : ops) add_kernel(op);
  fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_pieces>());
}

}  // namespace

void register_rule(const std::string& op, const OpType& type) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const size_t dot = op.find('.', op.find("::") == std::string::npos ? 0 : op.find("::"));
  const std::string name = op.substr(0, dot);
  const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  size_t num_operands = 0;
  bool is_known = false;
  for (const c10::OperatorName& each : c10::Dispatcher::singleton().getAllOpNames()) {
    const bool is_meant = each.name == name && (dot == std::string::npos || each.overload_name == overload);
    const auto found = is_meant ? c10::Dispatcher::singleton().findSchema(each) : std::nullopt;
    if (!found) continue;
    is_known = true;
    num_operands = 0;
    for (const c10::Argument& argument : found->schema().arguments()) {
      if (argument.type()->kind() == c10::TypeKind::TensorType) ++num_operands;
    }
    register_dispatch();
    add_kernel(*found);
  }
  if (!is_known) {
    throw UsageError({"register_rule", op, "is no op that is registered with torch", "",
                      "load the library that defines it first, and write \"lib::name\" or \"lib::name.overload\""});
  }
  LabelledOp(type, num_operands);  // throws for labels that cannot be read
  static std::map<std::string, OpType> registered;
  const auto [known, is_new] = registered.emplace(op, type);
  if (!is_new && known->second == type) return;  // by another rank of this process, which may use it already
  known->second = type;
  rule_table().add(op, type);
}

void register_dispatch() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

}  // namespace caravan
