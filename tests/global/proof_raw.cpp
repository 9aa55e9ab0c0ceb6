#include <algorithm>
#include <csignal>
#include <exception>
#include <limits>
#include <optional>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>

#include "caravan/global/rules/rules.h"
#include "tests/global/proof.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {
namespace {

/// One output on each rank.
using OnRanks = std::vector<at::Tensor>;

std::vector<Placement> output_placements(const at::Tensor& value, bool is_continuous) {
  std::vector<Placement> all{Replicate{}};
  if (is_continuous) all.emplace_back(Partial{});
  for (int dim = 0; dim < value.dim(); ++dim) {
    all.emplace_back(Shard{dim});
    all.emplace_back(Shard{dim, {}, -1, -1, 2});
  }
  return all;
}

/// The piece of `x` that has the rows of the pieces that other ranks have on one dim.
at::Tensor piece_like(const at::Tensor& x, const Placement& placement, const OnRanks& values, size_t rank,
                      uint64_t seed) {
  if (!placement.is_shard()) {
    const Axes axes{{"t", static_cast<int>(values.size())}};
    return piece_of(x, {{"t", placement}}, axes, static_cast<int>(rank), seed);
  }
  std::vector<int64_t> rows;
  for (const at::Tensor& value : values) rows.push_back(value.size(placement.dim()) / std::max(1, placement.blocks()));
  const Axes axes{{"t", static_cast<int>(values.size())}};
  const Layout layout{{"t", Shard{placement.dim(), rows, -1, -1, placement.blocks()}}};
  return piece_of(x, layout, axes, static_cast<int>(rank), seed);
}

class Raw {
 public:
  /// `seed`: of the summands of partial sums. `slack`: by which the tolerance of the op is multiplied.
  Raw(const ProofCase& proof, const Axes& axes, const Assignment& assignment, uint64_t seed = 50, double slack = 1)
      : proof_(proof), axes_(axes), assignment_(assignment), num_ranks_(axes[0].size), seed_(seed), slack_(slack) {}

  bool is_right() {
    outcomes_ = run(nullptr);
    for (size_t i = 0; i < proof_.reference().values.size(); ++i) {
      if (!find_placements(i)) return false;
    }
    if (!proof_.has_gradients()) return true;
    tries_ = 0;
    return any_gradients(0);
  }

 private:
  std::vector<at::Tensor> pieces(int rank) const {
    std::vector<at::Tensor> all;
    for (size_t i = 0; i < assignment_.size(); ++i) {
      all.push_back(piece_of(proof_.operands()[i].value, assignment_[i], axes_, rank, seed_ + i));
    }
    return all;
  }

  using CotangentOf = std::function<at::Tensor(size_t output, int rank)>;
  std::vector<ProofOutcome> run(const CotangentOf& cotangent) const {
    std::vector<ProofOutcome> all;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      ProofCase::Cotangent of_rank;
      if (cotangent) of_rank = [&](size_t i, const at::Tensor&) { return cotangent(i, rank); };
      all.push_back(proof_.call(pieces(rank), of_rank));
    }
    return all;
  }

  OnRanks values(size_t i) const {
    OnRanks all;
    for (const ProofOutcome& outcome : outcomes_) {
      const c10::IValue& value = outcome.values.at(i);
      all.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
    return all;
  }

  bool find_placements(size_t i) {
    placements_.emplace_back();
    for (const ProofOutcome& outcome : outcomes_) {
      if (outcome.values.size() != proof_.reference().values.size()) return false;
    }
    const c10::IValue& want = proof_.reference().values[i];
    if (!want.isTensor() || !want.toTensor().defined()) {
      placements_.back() = {Replicate{}};
      return std::ranges::all_of(outcomes_, [&](const ProofOutcome& outcome) {
        return difference(outcome.values[i], want, 1e-12, true).empty();
      });
    }
    const at::Tensor& value = want.toTensor();
    const OnRanks on_ranks = values(i);
    auto candidates = output_placements(value, value.is_floating_point() || value.is_complex());
    // What is written keeps its layout.
    if (const int operand = proof_.written_operand(i); operand >= 0) {
      candidates = {assignment_[operand]["t"]};
      for (int rank = 0; rank < num_ranks_; ++rank) {
        if (on_ranks[rank].sizes() != pieces(rank)[operand].sizes()) return false;  // it was resized
      }
    }
    for (const Placement& placement : candidates) {
      const at::Tensor whole = whole_of(on_ranks, placement);
      if (!whole.defined()) continue;
      const double tolerance = slack_ * tolerance_of(proof_.name(), value.scalar_type());
      if (difference(whole, value, tolerance, true).empty()) placements_.back().push_back(placement);
    }
    return !placements_.back().empty();
  }

  bool any_gradients(size_t output) {
    if (output == placements_.size()) return ++tries_ <= 12 && has_right_gradients();
    for (const Placement& placement : placements_[output]) {
      current_.resize(placements_.size(), Replicate{});
      current_[output] = placement;
      if (any_gradients(output + 1)) return true;
      if (!proof_.cotangents()[output].defined()) break;
    }
    return false;
  }

  bool has_right_gradients() const {
    const auto outcomes = run([&](size_t i, int rank) {
      return piece_like(proof_.cotangents()[i], dual(current_[i]), values(i), static_cast<size_t>(rank),
                        seed_ + 20 + i);
    });
    for (size_t i = 0; i < assignment_.size(); ++i) {
      const at::Tensor& want = proof_.reference().gradients[i];
      if (!want.defined()) continue;
      OnRanks on_ranks;
      for (const ProofOutcome& outcome : outcomes) {
        const at::Tensor piece = outcome.gradients[i];
        on_ranks.push_back(piece.defined() ? piece : at::zeros_like(pieces(0)[i]));
      }
      const at::Tensor whole = whole_of(on_ranks, dual(assignment_[i]["t"]));
      if (!whole.defined()) return false;
      const double tolerance = slack_ * tolerance_of(proof_.name(), want.scalar_type());
      if (!difference(whole, want, tolerance, true).empty()) return false;
    }
    return true;
  }

  const ProofCase& proof_;
  const Axes& axes_;
  const Assignment& assignment_;
  int num_ranks_;
  uint64_t seed_;
  double slack_;
  std::vector<ProofOutcome> outcomes_;
  std::vector<std::vector<Placement>> placements_;  // of each output that give the right value
  std::vector<Placement> current_;
  int tries_ = 0;
};

}  // namespace

namespace {

/// Ways to choose other values: some in (-1, 1), whole ones with ties and zeros, the same in operands of the same
/// sizes, some above 1, and some of which every third is an infinity.
constexpr int kNumVariations = 4;

at::Tensor varied(const at::Tensor& x, int variation, uint64_t seed) {
  at::Tensor values;
  if (x.is_floating_point() || x.is_complex()) {
    values = random_tensor(x.sizes(), seed);
    if (variation == 1) values = (values * 2).round();
    if (variation == 2) values = values.abs() + 1.25;
    if (variation == 3) {
      const at::Tensor is_third = at::arange(x.numel()).remainder(3).eq(0).view(x.sizes());
      values = values.masked_fill(is_third, std::numeric_limits<double>::infinity());
    }
    if (x.is_complex()) values = values * c10::complex<double>(0.6, 0.8);
  } else if (x.scalar_type() == at::kBool) {
    values = random_tensor(x.sizes(), seed) > 0;
  } else {  // of which some are indices: the same in another order
    values = x.flatten().index_select(0, random_tensor({x.numel()}, seed).argsort()).view(x.sizes());
    if (variation == 1) values = std::get<0>(x.flatten().sort()).view(x.sizes());
    const bool is_constant = x.numel() > 1 && values.eq(values.flatten()[0]).all().item<bool>();
    if (is_constant && variation == 2) values = values + at::arange(x.numel()).ge(x.numel() / 2).view(x.sizes());
  }
  return at::empty_like(x).copy_(values.to(x.scalar_type()));
}

bool is_finite(const std::vector<c10::IValue>& values) {
  return std::ranges::all_of(values, [](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return true;
    const at::Tensor& x = value.toTensor();
    return !(x.is_floating_point() || x.is_complex()) || x.isfinite().all().item<bool>();
  });
}

/// The same call on other values. Without those for which the op throws, has no gradients or gives infinities, of which
/// nothing is to be learned.
std::vector<ProofCase> variations_of(const ProofCase& proof) {
  std::vector<ProofCase> all;
  for (int variation = 0; variation < kNumVariations; ++variation) {
    if (variation == 3 && !is_pointwise(proof.sample().op())) continue;  // LAPACK may never return
    try {
      std::vector<at::Tensor> values;
      for (const ProofOperand& operand : proof.operands()) {
        const size_t own = variation == 1 ? 0 : values.size();
        values.push_back(varied(operand.value, variation, 400 + 40 * variation + own));
      }
      ProofCase other = proof.with_values(values);
      const ProofOutcome& reference = other.reference();
      const std::vector<c10::IValue> gradients(reference.gradients.begin(), reference.gradients.end());
      if (other.has_gradients() != proof.has_gradients()) continue;
      if (is_finite(reference.values) && is_finite(gradients)) all.push_back(std::move(other));
    } catch (const std::exception&) {
      continue;
    }
  }
  return all;
}

bool is_right_here(const ProofCase& proof, const Axes& axes, const Assignment& assignment, uint64_t seed,
                   double slack) {
  try {
    return Raw(proof, axes, assignment, seed, slack).is_right();
  } catch (const std::exception&) {  // the pieces do not even fit each other
    return false;
  }
}

/// Random values may be ill-conditioned, and what is right by accident is far off with others.
constexpr double kSlack = 1e4;

/// What a process writes of an assignment: that it is right on the values of the sample, and on others.
enum Answer : char { kWrong, kRightHere, kRight };

/// A process that writes answers for the assignments from `begin` on, as far as it comes: many kernels do not check
/// whether their operands fit each other.
pid_t start_child(const ProofCase& proof, const Axes& axes, const std::vector<Assignment>& assignments, size_t begin,
                  int pipe) {
  const pid_t child = fork();
  if (child != 0) return child;
  for (const int number : {SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL}) std::signal(number, SIG_DFL);
  alarm(20);
  if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);  // what a broken heap has to say
  std::optional<std::vector<ProofCase>> variations;
  for (size_t i = begin; i < assignments.size(); ++i) {
    char answer = is_right_here(proof, axes, assignments[i], 50, 1) ? kRightHere : kWrong;
    if (write(pipe, &answer, 1) != 1) break;
    if (answer == kWrong) continue;
    if (!variations) variations = variations_of(proof);
    bool is_right = true;
    for (size_t k = 0; is_right && k < variations->size(); ++k) {
      is_right = is_right_here((*variations)[k], axes, assignments[i], 100 + 50 * k, kSlack);
    }
    answer = is_right ? kRight : kWrong;
    if (write(pipe, &answer, 1) != 1) break;
  }
  _exit(0);
}

}  // namespace

std::vector<bool> are_right_on_pieces(const ProofCase& proof, const Axes& axes,
                                      const std::vector<Assignment>& assignments) {
  std::vector<bool> right;
  while (right.size() < assignments.size()) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    const pid_t child = start_child(proof, axes, assignments, right.size(), ends[1]);
    close(ends[1]);
    const size_t begin = right.size();
    char answer = 0;
    bool is_pending = false;  // right on the values of the sample, and the others not yet tried
    while (read(ends[0], &answer, 1) == 1) {
      if (is_pending) right.pop_back();
      is_pending = answer == kRightHere;
      right.push_back(answer != kWrong);
    }
    close(ends[0]);
    if (child < 0) throw std::runtime_error("no child");
    waitpid(child, nullptr, 0);
    // It died of this one only if it had tried no other: one before may have written into foreign memory. That one
    // which is right dies with other values says nothing of it.
    if (is_pending && right.size() > begin + 1) right.pop_back();
    if (right.size() == begin) right.push_back(false);
  }
  return right;
}

}  // namespace caravan::testing
