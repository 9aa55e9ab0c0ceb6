#include "caravan/global/call_key.h"

#include <functional>
#include <string>

namespace caravan {
namespace {

void add_integers(CallKey& key, const c10::IValue& value) {
  if (value.isInt()) {
    key.push_back(value.toInt());
  } else if (value.isBool()) {
    key.push_back(value.toBool() ? 1 : 0);
  } else if (value.isNone()) {
    key.push_back(INT64_MIN);
  } else if (value.isList()) {
    const auto list = value.toListRef();
    key.push_back(static_cast<int64_t>(list.size()));
    for (const c10::IValue& each : list) add_integers(key, each);
  } else {
    key.push_back(INT64_MIN + 1);  // a SymInt that is none, a double
  }
}

int64_t number_class(const c10::IValue& value) {
  if (!value.isScalar()) return value.isNone() ? 3 : 2;
  const c10::Scalar number = value.toScalar();
  if (number.isBoolean()) return number.toBool() ? 1 : 0;  // which equals no number
  return number.equal(0) ? 0 : number.equal(1) ? 1 : 2;
}

int64_t text_class(const c10::IValue& value) {
  return value.isString() ? static_cast<int64_t>(std::hash<std::string>()(value.toStringRef())) : INT64_MIN;
}

}  // namespace

void add_to_key(CallKey& key, const std::vector<OpInfo::Kind>& kinds, const c10::IValue* arguments, size_t i) {
  const c10::IValue& value = arguments[i];
  if (kinds[i] == OpInfo::Kind::integers) add_integers(key, value);
  if (kinds[i] == OpInfo::Kind::text) key.push_back(text_class(value));
  if (kinds[i] != OpInfo::Kind::number) return;
  const bool is_second =
      i > 0 && kinds[i - 1] == OpInfo::Kind::number && value.isScalar() && arguments[i - 1].isScalar();
  const bool is_same = is_second && value.toScalar().toComplexDouble() == arguments[i - 1].toScalar().toComplexDouble();
  key.push_back(2 * number_class(value) + (is_same ? 1 : 0));
}

void add_to_key(CallKey& key, const at::Tensor& tensor, const PieceMeta* meta, int argument, int element) {
  const auto sizes = tensor.sizes();
  key.push_back((static_cast<int64_t>(argument) << 32) + element);
  key.push_back(meta == nullptr ? 0
                                : reinterpret_cast<int64_t>(meta->placed) + (meta->is_parameter ? 1 : 0) +
                                      (meta->is_aliased ? 2 : 0));
  key.push_back((static_cast<int64_t>(sizes.size()) << 8) + static_cast<int64_t>(tensor.scalar_type()));
  key.append(sizes.begin(), sizes.end());
}

}  // namespace caravan
