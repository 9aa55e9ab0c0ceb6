#include "caravan/comm/algorithms/working_buffer.h"

#include <cstring>

#include "caravan/base/numeric/half.h"

namespace caravan::algorithms {
namespace {

template <class To, class From, class Value>
void convert_each(const std::byte* from, std::byte* to, int64_t count, Value value) {
  const From* source = reinterpret_cast<const From*>(from);
  To* target = reinterpret_cast<To*>(to);
  for (int64_t i = 0; i < count; ++i) target[i] = value(source[i]);
}

}  // namespace

std::unique_ptr<std::byte[]> new_elements(int64_t count, Dtype dtype) {
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(count * size_bytes(dtype)));
}

void convert(const std::byte* from, Dtype from_dtype, std::byte* to, Dtype to_dtype, int64_t count) {
  const auto widen = [](auto value) { return to_float(value); };
  if (from_dtype == to_dtype) {
    if (count > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(count * size_bytes(from_dtype)));
  } else if (from_dtype == Dtype::bf16) {
    convert_each<float, Bf16>(from, to, count, widen);
  } else if (from_dtype == Dtype::fp16) {
    convert_each<float, Fp16>(from, to, count, widen);
  } else if (to_dtype == Dtype::bf16) {
    convert_each<Bf16, float>(from, to, count, [](float value) { return to_bf16(value); });
  } else {
    convert_each<Fp16, float>(from, to, count, [](float value) { return to_fp16(value); });
  }
}

WorkingBuffer::WorkingBuffer(Memory memory, ConstBuffer input, int64_t input_begin)
    : memory_(memory), input_(input), input_begin_(input_begin) {
  if (memory_.place != nullptr || !memory_.exists || memory_.hull.count == 0) return;
  own_ = new_elements(memory_.hull.count, memory_.dtype);
  memory_.place = own_.get();
}

std::byte* WorkingBuffer::at(int64_t element) const noexcept {
  if (!memory_.exists) return nullptr;
  return memory_.place + (element - memory_.hull.begin) * size_bytes(memory_.dtype);
}

const std::byte* WorkingBuffer::input_at(int64_t element) const noexcept {
  if (!memory_.exists) return nullptr;
  return static_cast<const std::byte*>(input_.data) + (element - input_begin_) * size_bytes(input_.dtype);
}

void WorkingBuffer::fill(Range gap) {
  written_.add(gap);
  if (!memory_.exists) return;
  const auto copy = [&](Range range, const std::byte* from, Dtype dtype) {
    convert(from, dtype, at(range.begin), memory_.dtype, range.count);
  };
  const WorkingBuffer* below = memory_.below;
  if (below == nullptr) return copy(gap, input_at(gap.begin), input_.dtype);
  for (const Range& range : below->written_.common(gap)) copy(range, below->at(range.begin), below->memory_.dtype);
  for (const Range& range : below->written_.gaps(gap)) copy(range, input_at(range.begin), input_.dtype);
}

ConstBuffer WorkingBuffer::read(Range range) {
  const std::vector<Range> gaps = written_.gaps(range);
  const bool is_untouched = gaps.size() == 1 && gaps[0] == range;
  const bool is_input = memory_.below == nullptr || memory_.below->written_.common(range).empty();
  if (is_untouched && is_input && input_.dtype == memory_.dtype)
    return {input_at(range.begin), range.count, input_.dtype};
  for (const Range& gap : gaps) fill(gap);
  return {at(range.begin), range.count, memory_.dtype};
}

Buffer WorkingBuffer::write(Range range) {
  written_.add(range);
  return {at(range.begin), range.count, memory_.dtype, {}};
}

}  // namespace caravan::algorithms
