#pragma once

#include <optional>

#include "caravan/global/operation.h"

namespace caravan {

/// Ops that act on each element alone, with broadcasting: those that ATen tags as pointwise.
bool is_pointwise(const c10::OperatorHandle& op);
TypedCall pointwise(const OpCall& call);
/// Ops on lists of tensors, each element of which is a pointwise op: _foreach_ and _fused_.
bool is_foreach(std::string_view name);

/// Throws UsageError for an op without a rule that draws random numbers.
void refuse_draws(const c10::OperatorHandle& op, const c10::IValue* arguments);

// The rules of each file of this folder.
void add_pointwise_rules(RuleTable& rules);
void add_creation_rules(RuleTable& rules);
void add_view_rules(RuleTable& rules);
void add_part_rules(RuleTable& rules);      // called by add_view_rules
void add_diagonal_rules(RuleTable& rules);  // called by add_view_rules
void add_refusals(RuleTable& rules);        // called by add_view_rules
void add_reduction_rules(RuleTable& rules);
void add_extreme_rules(RuleTable& rules);  // called by add_reduction_rules
void add_product_rules(RuleTable& rules);
void add_attention_rules(RuleTable& rules);
void add_normalization_rules(RuleTable& rules);
void add_batch_norm_rules(RuleTable& rules);
void add_norm_rules(RuleTable& rules);
void add_softmax_rules(RuleTable& rules);
void add_index_rules(RuleTable& rules);
void add_advanced_index_rules(RuleTable& rules);  // called by add_index_rules
void add_loss_rules(RuleTable& rules);
void add_class_loss_rules(RuleTable& rules);
void add_distance_rules(RuleTable& rules);
void add_convolution_rules(RuleTable& rules);
void add_pooling_rules(RuleTable& rules);
void add_sequence_rules(RuleTable& rules);
void add_recurrent_rules(RuleTable& rules);
void add_random_rules(RuleTable& rules);
void add_linear_algebra_rules(RuleTable& rules);

}  // namespace caravan
