#include "tests/global/proof_layouts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>

#include "caravan/base/text.h"
#include "caravan/global/operation.h"
#include "caravan/global/rules/rules.h"
#include "caravan/mesh/fit.h"

namespace caravan::testing {
namespace {

int size_of(const Axes& axes, const std::string& name) { return std::ranges::find(axes, name, &AxisSize::name)->size; }

/// Factors by which n ranks multiply an element: all sums of some of them are powers of two or 0, and all sum to 1.
using Factors = std::vector<double>;
const std::vector<Factors>& factors_of(int n) {
  static const std::vector<Factors> two{{2, -1}, {-1, 2}, {0.5, 0.5}, {1, 0}};
  static const std::vector<Factors> three{{2, -1, 0}, {-1, 1, 1}, {1, -1, 1}, {0, 2, -1}, {0.5, 0.5, 0}, {0, 0, 1}};
  return n == 2 ? two : three;
}

at::Tensor summand(const at::Tensor& x, int n, int coord, uint64_t seed) {
  const auto& all = factors_of(n);
  at::Tensor factors = at::empty(x.sizes(), at::kDouble);
  at::Tensor zeros = at::empty(x.sizes(), at::kDouble);
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const Factors& chosen = all[random() % all.size()];
    factors.mutable_data_ptr<double>()[i] = chosen[coord];
    // Zeros are x - x + 0.
    zeros.mutable_data_ptr<double>()[i] = coord == 0 ? 1 : coord == 1 ? -1 : 0;
  }
  const auto dtype = x.scalar_type();
  const at::Tensor cut = at::where(x == 0, zeros.to(dtype), x * factors.to(dtype));
  const at::Tensor whole = coord == 0 ? x : at::zeros_like(x);
  // The sum of infinities may be nan, and of large halves an infinity.
  const at::Tensor is_benign = x.abs() < (dtype == at::kHalf ? 1e4 : 1e30);
  return at::where(is_benign, cut, whole);
}

std::vector<int64_t> balanced_rows(int64_t rows, int n) {
  std::vector<int64_t> sizes(n, rows / n);
  for (int i = 0; i < rows % n; ++i) ++sizes[i];
  return sizes;
}

at::Tensor cut_rows(const at::Tensor& x, const Placement& shard, int n, int coord) {
  const int blocks = std::max(1, shard.blocks());
  const int64_t block = x.size(shard.dim()) / blocks;
  const auto rows = shard.sizes().empty() ? balanced_rows(block, n) : shard.sizes();
  const int64_t begin = std::accumulate(rows.begin(), rows.begin() + coord, int64_t{0});
  if (blocks == 1) return x.narrow(shard.dim(), begin, rows[coord]).clone();
  std::vector<at::Tensor> parts;
  for (int i = 0; i < blocks; ++i) parts.push_back(x.narrow(shard.dim(), i * block + begin, rows[coord]));
  return at::cat(parts, shard.dim());
}

/// The labels of the operands, by the op's rule for operands that are whole; empty without a rule.
std::vector<Dims> labels_of(const ProofCase& proof) {
  const auto& op = proof.sample().op();
  const Rule* rule = rule_table().find(op);
  if (rule == nullptr && !is_pointwise(op)) return {};
  const Layout whole;
  std::vector<GlobalOperand> operands;
  for (const ProofOperand& each : proof.operands()) {
    GlobalOperand operand;
    operand.sizes = each.value.sizes().vec();
    operand.layout = &whole;
    operand.argument = each.argument;
    operand.element = each.element;
    operand.is_written = each.is_written;
    operand.dtype = each.value.scalar_type();
    operand.is_floating = each.value.is_floating_point() || each.value.is_complex();
    operands.push_back(operand);
  }
  const auto arguments = proof.sample().arguments();
  try {
    const OpCall call(op, arguments.data(), operands);
    const auto typed = rule == nullptr ? std::optional(pointwise(call)) : (*rule)(call);
    if (!typed) return {};
    // What a rule does not say of operands out= lies as the outputs.
    std::vector<Dims> dims = typed->inputs;
    for (size_t i = 0; dims.size() < operands.size(); ++i) {
      if (i == typed->outputs.size() || typed->outputs[i].size() != operands[dims.size()].sizes.size()) return {};
      dims.push_back(typed->outputs[i]);
    }
    return dims;
  } catch (const std::exception&) {
    return {};
  }
}

/// Placements that cut `label` wherever it stands, in each way in which it can be cut; R where it does not.
void add_along_label(const ProofCase& proof, const std::vector<Dims>& dims, char label, int n,
                     std::vector<std::vector<Placement>>& all) {
  const auto ways = [&](const Placement& shard) {
    std::vector<Placement> placements;
    for (size_t i = 0; i < dims.size(); ++i) {
      const auto at = position_of(dims[i], label);
      placements.push_back(Replicate{});
      if (!at) continue;
      const Placement same = Shard{at->first, shard.sizes(), -1, -1, shard.blocks()};
      const int64_t rows = proof.operands()[i].value.size(at->first);  // of several labels: more than those of this one
      const bool fits = rows % shard.blocks() == 0 && (shard.is_even() || !misfit(same, rows, n, ""));
      if (fits) placements.back() = same;
    }
    all.push_back(std::move(placements));
  };
  for (const Dims& each : dims) {  // a cut of a dim of several labels has other sizes in each operand
    const auto at = position_of(each, label);
    if (at && each[at->first].size() > 1) return;
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto at = position_of(dims[i], label);
    if (!at) continue;
    for (const Placement& placement : placements_on(proof.operands()[i].value, n)) {
      if (placement.is_shard(at->first)) ways(placement);
    }
    return;
  }
}

std::vector<std::vector<Placement>> chosen_placements(const ProofCase& proof, int n, size_t most,
                                                      std::mt19937_64& random) {
  std::vector<std::vector<Placement>> choices;
  double count = 1;
  for (const ProofOperand& operand : proof.operands()) {
    choices.push_back(placements_on(operand.value, n));
    count *= static_cast<double>(choices.back().size());
  }
  std::vector<std::vector<Placement>> all;
  if (count <= static_cast<double>(most)) {
    all.emplace_back();
    for (const auto& choice : choices) {
      std::vector<std::vector<Placement>> longer;
      for (const auto& head : all) {
        for (const Placement& placement : choice) {
          longer.push_back(head);
          longer.back().push_back(placement);
        }
      }
      all = std::move(longer);
    }
    return all;
  }
  const auto dims = labels_of(proof);
  std::set<char> labels;
  for (const Dims& each : dims) {
    for (const std::string& dim : each) labels.insert(dim.begin(), dim.end());
  }
  for (const char label : labels) add_along_label(proof, dims, label, n, all);
  const std::vector<Placement> whole(choices.size(), Replicate{});
  auto partial = whole;
  for (size_t i = 0; i < choices.size(); ++i) {
    for (const Placement& placement : choices[i]) {
      if (placement.is_partial()) partial[i] = placement;
    }
  }
  all.push_back(partial);
  for (size_t i = 0; i < choices.size(); ++i) {
    for (const Placement& placement : choices[i]) {
      all.push_back(whole);
      all.back()[i] = placement;
    }
  }
  // The first half is what is likely to be legal; the rest comes by chance.
  if (all.size() > most / 2) {
    std::shuffle(all.begin() + static_cast<int64_t>(std::min(all.size(), most / 4)), all.end(), random);
    all.resize(std::max(most / 2, size_t{1}));
  }
  while (all.size() < most) {
    std::vector<Placement> placements;
    for (const auto& choice : choices) placements.push_back(choice[random() % choice.size()]);
    all.push_back(std::move(placements));
  }
  return all;
}

/// Not of 8 bits, which have no arithmetic.
bool can_be_summed(const at::Tensor& x) { return x.is_complex() || (x.is_floating_point() && x.element_size() >= 2); }

void add_once(std::vector<Assignment>& all, std::set<std::string>& known, Assignment assignment) {
  if (known.insert(assignment_text(assignment)).second) all.push_back(std::move(assignment));
}

}  // namespace

std::string assignment_text(const Assignment& assignment) {
  std::vector<std::string> parts;
  for (const Layout& layout : assignment) parts.push_back(layout.to_string());
  return join(parts, ", ");
}

at::Tensor piece_of(const at::Tensor& x, const Layout& layout, const Axes& axes, int rank, uint64_t seed) {
  at::Tensor piece = x;
  for (const auto& [axis, placement] : layout.entries()) {
    const int n = size_of(axes, axis);
    const int coord = coord_of(axes, rank, axis);
    if (placement.is_shard()) piece = cut_rows(piece, placement, n, coord);
    if (placement.is_partial()) piece = summand(piece, n, coord, ++seed * 7919 + axis[0]);
  }
  return piece.is_same(x) ? x.clone() : piece;
}

at::Tensor whole_of(const std::vector<at::Tensor>& pieces, const Placement& placement) {
  at::Tensor whole = pieces[0];
  for (const at::Tensor& piece : pieces) {
    if (!piece.defined()) return {};
    if (!placement.is_shard() && piece.sizes() != whole.sizes()) return {};
  }
  if (placement.is_shard()) {
    const int blocks = std::max(1, placement.blocks());
    std::vector<at::Tensor> parts;
    for (int block = 0; block < blocks; ++block) {
      for (const at::Tensor& piece : pieces) {
        if (piece.dim() <= placement.dim() || piece.size(placement.dim()) % blocks != 0) return {};
        const int64_t rows = piece.size(placement.dim()) / blocks;
        parts.push_back(piece.narrow(placement.dim(), block * rows, rows));
      }
    }
    try {
      return at::cat(parts, placement.dim());
    } catch (const c10::Error&) {
      return {};
    }
  }
  for (size_t i = 1; i < pieces.size(); ++i) {
    if (placement.is_partial()) whole = whole + pieces[i];
    if (!placement.is_partial() && !difference(pieces[i], pieces[0], 1e-12, true).empty()) return {};
  }
  return whole;
}

std::vector<Placement> placements_on(const at::Tensor& x, int n) {
  // Blocked shards that redistribute cannot tell from others are none.
  static const bool has_blocks = !(Placement(Shard{0, {}, -1, -1, 2}) == Placement(Shard{0}));
  std::vector<Placement> all{Replicate{}};
  if (can_be_summed(x)) all.emplace_back(Partial{});
  for (int dim = 0; dim < x.dim(); ++dim) {
    const int64_t rows = x.size(dim);
    const bool is_even = rows % n == 0;
    all.emplace_back(is_even ? Shard{dim} : Shard{dim, balanced_rows(rows, n)});
    if (n == 3 && rows >= 2) all.emplace_back(Shard{dim, {1, 0, rows - 1}});  // one rank has nothing
    if (rows <= n) continue;
    std::vector<int64_t> uneven(n, 1);
    uneven.front() = 1;
    uneven.back() += rows - std::accumulate(uneven.begin(), uneven.end(), int64_t{0});
    if (uneven != balanced_rows(rows, n)) all.emplace_back(Shard{dim, uneven});
    if (has_blocks && rows % (2 * n) == 0) all.emplace_back(Shard{dim, {}, -1, -1, 2});
  }
  return all;
}

std::vector<Assignment> assignments_on_two_axes(const ProofCase& proof, size_t most, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Assignment> all;
  std::set<std::string> known;
  const auto placements = chosen_placements(proof, 2, 4 * most, random);
  for (size_t k = 0; k < most; ++k) {
    const auto& first = placements[random() % placements.size()];
    // Every third time both axes do the same.
    const auto& second = k % 3 == 0 ? first : placements[random() % placements.size()];
    Assignment assignment;
    for (size_t i = 0; i < first.size(); ++i) {
      const bool is_twice = first[i].is_shard() && second[i].is_shard(first[i].dim());
      const bool fits =
          !is_twice || (first[i].is_even() && second[i].is_even() && first[i].blocks() == 1 &&
                        second[i].blocks() == 1 && proof.operands()[i].value.size(first[i].dim()) % 4 == 0);
      assignment.push_back({{"a", first[i]}, {"b", fits ? second[i] : Placement(Replicate{})}});
    }
    add_once(all, known, std::move(assignment));
  }
  return all;
}

std::vector<Assignment> assignments_on_one_axis(const ProofCase& proof, int n, size_t most, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Assignment> all;
  std::set<std::string> known;
  for (const auto& placements : chosen_placements(proof, n, most, random)) {
    Assignment assignment;
    for (const Placement& placement : placements) assignment.push_back({{"t", placement}});
    add_once(all, known, std::move(assignment));
  }
  return all;
}

}  // namespace caravan::testing
