#include "caravan/global/creating.h"

#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/global/state.h"
#include "caravan/mesh/layout.h"

namespace caravan {
namespace {

thread_local std::shared_ptr<GlobalState> creating;
thread_local std::optional<c10::impl::LocalDispatchKeySet> before_creating;

enum class Filled : uint8_t { not_at_all, zeros, ones, value, uniform, normal };

std::optional<Filled> filled_by(const std::string& name) {
  if (name == "aten::empty" || name == "aten::empty_strided") return Filled::not_at_all;
  if (name == "aten::zeros") return Filled::zeros;
  if (name == "aten::ones") return Filled::ones;
  if (name == "aten::full") return Filled::value;
  if (name == "aten::rand") return Filled::uniform;
  if (name == "aten::randn") return Filled::normal;
  return std::nullopt;
}

/// Dim 0 over all axes that have rows for each rank: what a tensor rests as until it gets a layout of its own.
Layout spread(const std::vector<int64_t>& sizes, const GlobalState& state) {
  std::vector<Layout::Entry> entries;
  int64_t rows = sizes.empty() ? 0 : sizes[0];
  for (const std::string& axis : state.axes()) {
    const int n = state.mesh()[axis].size();
    if (rows < n) continue;
    rows /= n;
    entries.emplace_back(axis, Shard{0});
  }
  return Layout(std::move(entries));
}

at::Tensor created(Filled filled, const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  GlobalState& state = *creating;
  const auto argument = [&](std::string_view name) -> c10::IValue {
    const auto i = schema.argumentIndexWithName(name);
    return i ? arguments[*i] : c10::IValue();
  };
  std::vector<int64_t> sizes;
  for (const c10::IValue& size : argument("size").toListRef()) sizes.push_back(size.toInt());
  const c10::IValue dtype = argument("dtype");
  const c10::IValue device = argument("device");
  const c10::IValue value = argument("fill_value");
  const auto absent = [&] {
    if (!value.isScalar() || value.toScalar().isFloatingPoint()) return c10::get_default_dtype_as_scalartype();
    if (value.toScalar().isComplex()) return c10::typeMetaToScalarType(c10::get_default_complex_dtype());
    return value.toScalar().type();
  };
  const auto options = at::TensorOptions()
                           .dtype(dtype.isNone() ? absent() : dtype.toScalarType())
                           .device(device.isNone() ? at::Device(at::kCPU) : device.toDevice());
  const Placed* placed = state.placed(spread(sizes, state), sizes, schema.name());
  const std::vector<int64_t> own = local_box(sizes, placed->layout, state.mesh()).size;
  at::Tensor piece;
  if (filled == Filled::zeros) {
    piece = at::zeros(own, options);
  } else if (filled == Filled::ones) {
    piece = at::ones(own, options);
  } else if (filled == Filled::value) {
    piece = at::full(own, value.toScalar(), options);
  } else {
    piece = at::empty(own, options);
  }
  at::Tensor result = wrap_piece(piece, sizes, placed, creating);
  if (filled == Filled::uniform) result.uniform_();
  if (filled == Filled::normal) result.normal_();
  return result;
}

}  // namespace

CreatesGlobal::CreatesGlobal(const GlobalContext& context)
    : before_(c10::impl::tls_local_dispatch_key_set()),
      to_us_(kGlobalKey),
      not_by_device_(c10::DispatchKey::BackendSelect) {
  if (creating != nullptr) {
    throw UsageError({"CreatesGlobal", "this thread", "creates global tensors already", context.mesh().where(),
                      "end the first before a second begins"});
  }
  creating = context.state();
  before_creating = before_;
}

CreatesGlobal::~CreatesGlobal() { creating = nullptr; }

bool is_creating_global() noexcept { return creating != nullptr; }

NotCreatingGlobal::NotCreatingGlobal() {
  if (is_creating_global()) before_.emplace(*before_creating);
}

void create_or_run(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t num_arguments = schema.arguments().size();
  const auto filled = schema.overload_name().find("names") == std::string::npos &&
                              schema.overload_name().find("out") == std::string::npos
                          ? filled_by(schema.name())
                          : std::nullopt;
  if (filled) {
    at::Tensor result = created(*filled, schema, stack.data() + stack.size() - num_arguments);
    torch::jit::drop(stack, num_arguments);
    stack.emplace_back(std::move(result));
    return;
  }
  op.callBoxed(&stack);
}

}  // namespace caravan
