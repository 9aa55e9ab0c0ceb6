#include "caravan/global/op_info.h"

#include <algorithm>

#include <ATen/core/enum_tag.h>

#include "caravan/global/roots.h"

namespace caravan {
namespace {

using Kind = OpInfo::Kind;

Kind kind_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return Kind::tensor;
    case c10::TypeKind::OptionalType: return kind_of(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType: {
      const Kind element = kind_of(type->castRaw<c10::ListType>()->getElementType());
      return element == Kind::tensor ? Kind::tensors : element;
    }
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::BoolType: return Kind::integers;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType: return Kind::number;
    case c10::TypeKind::StringType: return Kind::text;
    default: return Kind::other;
  }
}

bool same_set(const c10::AliasInfo& a, const c10::AliasInfo& b) {
  return std::ranges::any_of(a.beforeSets(), [&](const auto& set) { return b.beforeSets().count(set) != 0; });
}

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& op) : name(c10::toString(op.operator_name())) {
  const c10::FunctionSchema& schema = op.schema();
  rule = rule_table().find(op);
  changes_sizes = op.hasTag(at::Tag::inplace_view);
  parts = taken_apart(name);
  keeps_roots = may_keep_roots(name);
  for (const c10::Argument& argument : schema.arguments()) {
    arguments.push_back(kind_of(argument.type()));
    const c10::AliasInfo* alias = argument.alias_info();
    is_written.push_back(alias != nullptr && alias->isWrite());
    writes |= is_written.back();
    has_out |= is_written.back() && argument.is_out();
  }
  for (const c10::Argument& result : schema.returns()) {
    Return each;
    each.is_list = kind_of(result.type()) == Kind::tensors;
    const c10::AliasInfo* alias = result.alias_info();
    for (size_t i = 0; alias != nullptr && i < arguments.size(); ++i) {
      const c10::AliasInfo* own = schema.arguments()[i].alias_info();
      if (own == nullptr || !same_set(*own, *alias)) continue;
      each.alias = static_cast<int>(i);
      each.is_written = alias->isWrite();
    }
    returns.push_back(each);
  }
}

}  // namespace caravan
