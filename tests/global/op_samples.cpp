#include "tests/global/op_samples.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/jit/serialization/pickle.h>

namespace caravan::testing {
namespace {

/// Elements from the first to the last one of a strided tensor.
int64_t stretch_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t stretch = 1;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 0) return 0;
    stretch += (sizes[dim] - 1) * strides[dim];
  }
  return stretch;
}

at::Tensor copied(const void* elements, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const int64_t stretch = stretch_of(sizes, strides);
  auto memory = at::empty({stretch}, at::TensorOptions().dtype(dtype));
  if (stretch != 0) std::memcpy(memory.mutable_data_ptr(), elements, memory.nbytes());
  memory.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);  // no view: detach_ refuses those
  return memory;
}

/// The value with tensors of its own.
c10::IValue fresh(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    const auto& tensor = value.toTensor();
    return copied(tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes(), tensor.strides());
  }
  if (!value.isList()) return value;
  const auto list = value.toList();
  auto copies = c10::impl::GenericList(list.elementType());
  for (const c10::IValue& item : list) copies.push_back(fresh(item));
  return copies;
}

class OpSamplesReader {
 public:
  explicit OpSamplesReader(at::Tensor bytes) : bytes_(std::move(bytes)) {}

  OpSample read(const c10::IValue& call) const {
    const auto& parts = call.toTupleRef().elements();
    const auto op = found(parts[0].toStringRef());
    const auto& schema = op.schema();
    const auto stored = parts[1].toList();
    if (stored.size() != schema.arguments().size()) throw refusal(op, "has another number of arguments");
    c10::Stack arguments;
    for (size_t i = 0; i < stored.size(); ++i) arguments.push_back(typed(op, stored[i], *schema.arguments()[i].type()));
    std::vector<c10::IValue> outputs;
    const bool determined = !parts[2].isNone();
    if (determined) {
      for (const c10::IValue& output : parts[2].toList()) outputs.push_back(untyped(output));
    }
    return {op, std::move(arguments), std::move(outputs), determined};
  }

 private:
  static std::runtime_error refusal(const c10::OperatorHandle& op, const std::string& fact) {
    return std::runtime_error("op samples: " + c10::toString(op.operator_name()) + " " + fact);
  }

  static c10::OperatorHandle found(const std::string& name) {
    const auto dot = name.find('.');
    const bool overloaded = dot != std::string::npos;
    const auto op = c10::Dispatcher::singleton().findSchema(
        {name.substr(0, dot), overloaded ? name.substr(dot + 1) : std::string()});
    if (!op) throw std::runtime_error("op samples: this libtorch has no op " + name);
    return *op;
  }

  at::Tensor tensor(const c10::IValue& value) const {
    const auto& parts = value.toTupleRef().elements();
    const auto dtype = static_cast<at::ScalarType>(parts[0].toInt());
    const auto sizes = integers(parts[2]);
    const auto strides = integers(parts[3]);
    const auto* elements = static_cast<const uint8_t*>(bytes_.const_data_ptr()) + parts[1].toInt();
    return copied(elements, dtype, sizes, strides);
  }

  static std::vector<int64_t> integers(const c10::IValue& value) {
    std::vector<int64_t> found;
    for (const c10::IValue& item : value.toList()) found.push_back(item.toInt());
    return found;
  }

  /// The value as a kernel expects an argument of this type.
  c10::IValue typed(const c10::OperatorHandle& op, const c10::IValue& value, const c10::Type& type) const {
    if (type.kind() == c10::TypeKind::OptionalType) {
      return value.isNone() ? value : typed(op, value, *type.castRaw<c10::OptionalType>()->getElementType());
    }
    if (type.kind() == c10::TypeKind::ListType) {
      if (!value.isList()) throw refusal(op, "has a list with the value " + value.tagKind());
      const auto& element = type.castRaw<c10::ListType>()->getElementType();
      auto list = c10::impl::GenericList(element);
      for (const c10::IValue& item : value.toList()) list.push_back(typed(op, item, *element));
      return list;
    }
    if (type.kind() == c10::TypeKind::TensorType) {
      if (!value.isTuple()) throw refusal(op, "has a tensor with the value " + value.tagKind());
      return tensor(value);
    }
    if (type.kind() == c10::TypeKind::FloatType && value.isInt()) return static_cast<double>(value.toInt());
    if (type.kind() == c10::TypeKind::DeviceObjType) return c10::Device(value.toStringRef());
    return value;
  }

  c10::IValue untyped(const c10::IValue& value) const {
    if (value.isTuple()) return tensor(value);
    if (!value.isList()) return value;
    auto list = c10::impl::GenericList(c10::AnyType::get());
    for (const c10::IValue& item : value.toList()) list.push_back(untyped(item));
    return list;
  }

  at::Tensor bytes_;
};

}  // namespace

OpSample::OpSample(c10::OperatorHandle op, c10::Stack arguments, std::vector<c10::IValue> outputs, bool determined)
    : op_(std::move(op)), arguments_(std::move(arguments)), outputs_(std::move(outputs)), determined_(determined) {}

c10::Stack OpSample::arguments() const {
  c10::Stack copies;
  for (const auto& argument : arguments_) copies.push_back(fresh(argument));
  return copies;
}

std::vector<c10::IValue> OpSample::replay() const {
  const auto given = arguments();
  auto stack = given;
  op_.callBoxed(stack);
  for (size_t i = 0; i < given.size(); ++i) {
    const auto* alias = op_.schema().arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) stack.push_back(given[i]);
  }
  return stack;
}

std::vector<OpSample> read_op_samples(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error("op samples: cannot open " + file.string());
  const std::vector<char> data{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const auto content = torch::jit::pickle_load(data).toGenericDict();
  if (content.at("format").toInt() != 1)
    throw std::runtime_error("op samples: " + file.string() + " has another format");
  const OpSamplesReader reader(content.at("bytes").toTensor());
  std::vector<OpSample> samples;
  for (const c10::IValue& call : content.at("calls").toList()) samples.push_back(reader.read(call));
  return samples;
}

}  // namespace caravan::testing
