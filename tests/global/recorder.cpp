#include "tests/global/recorder.h"

#include "caravan/global/state.h"

namespace caravan::testing {
namespace {

thread_local Recorder* recorder_of_thread = nullptr;

template <typename Each>
void for_each_tensor_in(const c10::IValue& value, const Each& each) {
  if (value.isTensor() && value.toTensor().defined()) each(value.toTensor());
  if (!value.isTensorList()) return;
  for (const at::Tensor& tensor : value.toTensorVector()) {
    if (tensor.defined()) each(tensor);
  }
}

double product(const at::Tensor& a, const at::Tensor& b) {
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

/// Of a product of this size in attention: queries by keys.
double attention_product(const at::Tensor& query, const at::Tensor& key) {
  return 2.0 * static_cast<double>(query.numel()) * static_cast<double>(key.size(-2));
}

double flops_of(const std::string& op, c10::ArrayRef<const c10::IValue> inputs) {
  const auto tensor = [&](size_t i) { return inputs[i].toTensor(); };
  if (op == "aten::mm" || op == "aten::bmm") return product(tensor(0), tensor(1));
  if (op == "aten::addmm" || op == "aten::baddbmm") return product(tensor(1), tensor(2));
  if (op == "aten::_scaled_dot_product_flash_attention_for_cpu") return 2 * attention_product(tensor(0), tensor(1));
  // The scores again, and the gradients of values, of scores, of queries and of keys.
  if (op == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") {
    return 5 * attention_product(tensor(1), tensor(2));
  }
  return 0;
}

bool takes_global(c10::ArrayRef<const c10::IValue> inputs) {
  bool any = false;
  for (const c10::IValue& input : inputs) {
    for_each_tensor_in(input, [&](const at::Tensor& tensor) { any = any || meta_of(tensor) != nullptr; });
  }
  return any;
}

}  // namespace

struct Recorder::Call : at::ObserverContext {
  explicit Call(int64_t number_) : number(number_) {}
  int64_t number;
};

Recorder::Recorder(const std::vector<at::Tensor>& known) {
  recorder_of_thread = this;
  for (const at::Tensor& tensor : known) {
    if (Memory* memory = see(tensor)) memory->is_known = true;
  }
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Recorder::begin, &Recorder::end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

Recorder::~Recorder() {
  at::removeCallback(handle_);
  recorder_of_thread = nullptr;
}

Recorder::Memory* Recorder::see(const at::Tensor& tensor) {
  const PieceMeta* meta = meta_of(tensor);
  const at::Tensor& piece = meta == nullptr ? tensor : meta->piece;
  if (!piece.defined() || !piece.has_storage()) return nullptr;
  c10::StorageImpl* storage = piece.storage().unsafeGetStorageImpl();
  auto found = memory_.find(storage);
  if (found == memory_.end()) {
    Memory memory{c10::weak_intrusive_ptr<c10::StorageImpl>(piece.storage().getWeakStorageImpl()), "", num_calls_};
    found = memory_.emplace(storage, std::move(memory)).first;
  }
  Memory& memory = found->second;
  if (meta != nullptr) {
    for (const auto& [axis, placement] : meta->placed->layout.entries()) memory.is_split |= placement.is_shard();
  }
  return &memory;
}

std::unique_ptr<at::ObserverContext> Recorder::begin(const at::RecordFunction& function) {
  Recorder& self = *recorder_of_thread;
  const auto inputs = function.inputs();
  for (const c10::IValue& input : inputs) {
    for_each_tensor_in(input, [&](const at::Tensor& tensor) { self.see(tensor); });
  }
  if (!takes_global(inputs)) self.flops_ += flops_of(function.name(), inputs);
  return std::make_unique<Call>(++self.num_calls_);
}

void Recorder::end(const at::RecordFunction& function, at::ObserverContext* context) {
  Recorder& self = *recorder_of_thread;
  const int64_t number = dynamic_cast<Call&>(*context).number;
  for (const c10::IValue& output : function.outputs()) {
    for_each_tensor_in(output, [&](const at::Tensor& tensor) {
      Memory* memory = self.see(tensor);
      if (memory != nullptr && memory->since >= number) memory->op = function.name();
    });
  }
}

int64_t Recorder::Held::whole_bytes() const {
  int64_t sum = 0;
  for (const auto& [op, bytes] : whole) sum += bytes;
  return sum;
}

Recorder::Held Recorder::held() const {
  Held held;
  for (const auto& [address, memory] : memory_) {
    const auto storage = memory.storage.lock();
    if (!storage || memory.is_known) continue;
    const auto bytes = static_cast<int64_t>(storage->nbytes());
    (memory.is_split ? held.split : held.whole[memory.op]) += bytes;
  }
  return held;
}

}  // namespace caravan::testing
