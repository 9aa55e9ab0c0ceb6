#include "tests/global/proof.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <mutex>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/global/global.h"
#include "caravan/global/op_info.h"
#include "caravan/global/state.h"

namespace caravan::testing {
namespace {

using Way = ProofRun::Way;

/// One rank's part of a run.
struct RankRun {
  Way way = Way::plain;
  bool moves = false;
  bool is_cut = false;
  std::string refusal;
  std::string failure;
};

/// Whether operands were moved. One without elements stays as it is, wherever it lies.
bool moves(const ProofCase& proof, const Solution& solution) {
  if (solution.is_moved.size() != proof.operands().size()) return solution.any_moved;
  for (size_t i = 0; i < solution.is_moved.size(); ++i) {
    if (solution.is_moved[i] && proof.operands()[i].value.numel() > 0) return true;
  }
  return false;
}

void note(RankRun& run, const ProofCase& proof, const Solution& solution) {
  const bool has_rule = !solution.placing.operands.empty() || solution.why_whole.empty();
  const Way way = !has_rule ? Way::whole : solution.why_whole.empty() ? Way::rule : Way::gathered;
  run.way = run.way == Way::plain ? way : std::max(run.way, way);
  run.moves = run.moves || moves(proof, solution);
  run.is_cut = run.is_cut ||
               std::ranges::any_of(solution.placing.cuts, [](const AxisCut& each) { return !each.cut.is_whole(); });
  // Ops on lists have a placing for each element, which is not kept.
  run.is_cut = run.is_cut || std::ranges::any_of(solution.operands, [](const Placed* each) { return !each->is_whole; });
}

c10::IValue whole(const c10::IValue& value) {
  if (!value.isTensor() || !is_global(value.toTensor())) return value;
  return full(value.toTensor().detach());
}

class Prover {
 public:
  Prover(const ProofCase& proof, const Axes& axes, const GlobalContext& context)
      : proof_(proof), axes_(axes), context_(context), rank_(context.mesh().rank()) {}

  RankRun run(const Assignment& assignment) {
    RankRun run;
    try {
      compare(assignment, run);
    } catch (const ShapeError& error) {
      run.failure = error.what();
    } catch (const LayoutError& error) {
      run.failure = error.what();
    } catch (const UsageError& error) {
      run.refusal = error.what();
    } catch (const c10::Error& error) {
      run.failure = error.what_without_backtrace();
    } catch (const std::exception& error) {
      run.failure = error.what();
    }
    context_.state()->watch(nullptr);
    return run;
  }

 private:
  void compare(const Assignment& assignment, RankRun& run) {
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < assignment.size(); ++i) {
      const at::Tensor piece = piece_of(proof_.operands()[i].value, assignment[i], axes_, rank_, 50 + i);
      tensors.push_back(global(piece, assignment[i], context_));
    }
    context_.state()->watch([&](const OpInfo&, const Solution& solution) { note(run, proof_, solution); });
    ProofCase::Cotangent cotangent;
    if (proof_.has_gradients()) {
      cotangent = [&](size_t i, const at::Tensor& value) {
        context_.state()->watch(nullptr);
        const at::Tensor& whole = proof_.cotangents()[i];
        return is_global(value) ? distribute(whole, layout(value).dual(), context_) : whole;
      };
    }
    // Without the operands' clones, which are no part of the sample.
    const ProofOutcome outcome = proof_.call(tensors, cotangent);
    context_.state()->watch(nullptr);
    const ProofOutcome& expected = proof_.reference();
    for (size_t i = 0; i < outcome.values.size(); ++i) {
      const c10::IValue& want = expected.values.at(i);
      const auto dtype = want.isTensor() && want.toTensor().defined() ? want.toTensor().scalar_type() : at::kDouble;
      const std::string text =
          difference(whole(outcome.values[i]), want, tolerance_of(proof_.name(), dtype), proof_.is_determined());
      if (!text.empty() && run.failure.empty()) run.failure = fmt::format("value {} {}", i, text);
    }
    for (size_t i = 0; i < outcome.gradients.size(); ++i) {
      const at::Tensor& want = expected.gradients.empty() ? at::Tensor() : expected.gradients[i];
      const at::Tensor got = whole(outcome.gradients[i]).toTensor();
      if (!want.defined() && (!got.defined() || !got.ne(0).any().item<bool>())) continue;
      if (!got.defined() && !want.ne(0).any().item<bool>()) continue;
      const std::string text = difference(got, want, tolerance_of(proof_.name(), want.scalar_type()), true);
      if (!text.empty() && run.failure.empty()) run.failure = fmt::format("gradient of operand {} {}", i, text);
    }
  }

  const ProofCase& proof_;
  const Axes& axes_;
  const GlobalContext& context_;
  int rank_;
};

std::string choice() {
  const char* names = std::getenv("CARAVAN_PROOF_OPS");
  return names == nullptr ? "" : names;
}

/// "aten::gather" chooses all its overloads.
bool is_chosen(const std::string& op) {
  const std::string names = choice();
  if (names.empty()) return true;
  size_t begin = 0;
  while (begin <= names.size()) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    if (!name.empty() && (op == name || op.starts_with(name + "."))) return true;
    begin = end + 1;
  }
  return false;
}

bool is_verbose() { return std::getenv("CARAVAN_PROOF_VERBOSE") != nullptr; }

/// Swallows warnings: out= of other sizes is part of many samples.
struct NoWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::string labelled(const ProofCase& proof, const Assignment& assignment) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < assignment.size(); ++i) {
    parts.push_back(tensor_text(proof.operands()[i].value) + " " + assignment[i].to_string());
  }
  return join(parts, ", ");
}

}  // namespace

const std::vector<OpSample>& proof_samples() {
  static const std::vector<OpSample> samples = read_op_samples(CARAVAN_SOURCE_DIR "/tests/global/op_samples.pt");
  return samples;
}

std::vector<ProofRun> prove(const ProofCase& proof, const Axes& axes, const std::vector<Assignment>& assignments) {
  const int num_ranks = caravan::testing::num_ranks(axes);
  std::vector<std::vector<RankRun>> runs(num_ranks, std::vector<RankRun>(assignments.size()));
  size_t begin = 0;
  int breaks = 0;
  while (begin < assignments.size()) {
    std::atomic<size_t> reached = begin;
    CommOptions options;
    options.timeout = std::chrono::seconds(10);
    try {
      run_thread_ranks(
          num_ranks,
          [&](const std::shared_ptr<Communicator>& world) {
            const Mesh mesh = Mesh::create(world, axes);
            const GlobalContext context(mesh);
            NoWarnings silent;
            const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
            Prover prover(proof, axes, context);
            for (size_t i = begin; i < assignments.size(); ++i) {
              RankRun& run = runs[world->rank()][i];
              run = prover.run(assignments[i]);
              // All ranks threw, or none: else one waits for the others, and this barrier ends it.
              if (!run.failure.empty() || !run.refusal.empty()) world->barrier(Call("after an error"));
              world->barrier(Call(i % 2 == 0 ? "even" : "odd"));
              reached = std::max(reached.load(), i + 1);
            }
          },
          options);
    } catch (const std::exception& error) {
      const size_t broken = std::min(reached.load(), assignments.size() - 1);
      for (auto& of_rank : runs) {
        if (of_rank[broken].failure.empty()) of_rank[broken].failure = "the ranks disagree";
      }
      runs[0][broken].failure += std::string(" (") + error.what() + ")";
      reached = broken + 1;
      if (++breaks == 3) reached = assignments.size();  // each may take the time of a time-out
    }
    begin = reached;
  }
  std::vector<ProofRun> all;
  for (size_t i = 0; i < assignments.size(); ++i) {
    const RankRun& first = runs[0][i];
    ProofRun run{assignments[i], first.way, first.moves, first.is_cut, first.refusal, ""};
    bool is_cause = false;  // and not that a rank has waited for one that threw
    for (int rank = 0; rank < num_ranks && !is_cause; ++rank) {
      const std::string& failure = runs[rank][i].failure;
      if (failure.empty()) continue;
      is_cause = failure.find("did not join") == std::string::npos;
      if (is_cause || run.failure.empty()) run.failure = fmt::format("rank {}: {}", rank, failure);
    }
    all.push_back(std::move(run));
  }
  return all;
}

namespace {

bool has_shard(const Assignment& assignment) {
  return std::ranges::any_of(assignment, [](const Layout& layout) {
    return std::ranges::any_of(layout.entries(), [](const auto& entry) { return entry.second.is_shard(); });
  });
}

bool has_whole_only(const Assignment& assignment) {
  return std::ranges::all_of(assignment, [](const Layout& layout) {
    return std::ranges::all_of(layout.entries(), [](const auto& entry) { return entry.second.is_whole(); });
  });
}

void count_run(ProofCount& count, const ProofRun& run) {
  ++count.runs;
  count.by_rule += run.way == Way::rule;
  count.gathered += run.way == Way::gathered;
  count.whole += run.way == Way::whole;
  if (run.way == Way::rule || run.way == Way::gathered) count.has_rule = true;
  if (!run.refusal.empty()) {
    ++count.refused;
    count.refusals.insert(run.refusal);
  } else if (!run.failure.empty()) {
    ++count.failed;
  } else if (run.way == Way::rule && has_shard(run.assignment) && !run.moves && run.is_cut) {
    count.is_covered = true;
  }
}

/// Without elements, any placement is right.
bool has_elements(const std::vector<c10::IValue>& values) {
  return std::ranges::any_of(values, [](const c10::IValue& value) {
    return !value.isTensor() || !value.toTensor().defined() || value.toTensor().numel() > 0;
  });
}

/// Of the runs that moved an operand: what the pieces would have given as they were.
void count_conservative(ProofCount& count, const ProofCase& proof, const std::vector<ProofRun>& runs,
                        const Axes& axes) {
  std::vector<Assignment> tried;
  for (const ProofRun& run : runs) {
    if (!run.refusal.empty() || !run.failure.empty() || run.way == Way::plain) continue;
    if (has_whole_only(run.assignment)) continue;
    if (run.way != Way::whole && !run.moves) {
      ++count.right_on_pieces;
    } else {
      tried.push_back(run.assignment);
    }
  }
  if (tried.empty()) return;
  const std::vector<bool> right = are_right_on_pieces(proof, axes, tried);
  for (size_t i = 0; i < tried.size(); ++i) {
    if (!right[i]) continue;
    ++count.right_on_pieces;
    ++count.conservative;
    ++count.conservative_layouts[labelled(proof, tried[i])];
  }
}

}  // namespace

std::map<std::string, ProofCount> prove_ops(const Axes& axes, const ProofLimits& limits,
                                            const std::function<bool(const std::string&)>& has) {
  std::map<std::string, ProofCount> counts;
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  const bool traces = std::getenv("CARAVAN_PROOF_TRACE") != nullptr;
  uint64_t seed = 0;
  for (const OpSample& sample : proof_samples()) {
    const auto& op = sample.op().operator_name();
    const std::string name = op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
    ++seed;
    // It needs operands that lie in memory in columns of 16 bytes, as gathered ones do not.
    if (name == "aten::_grouped_mm") continue;
    if (!is_chosen(name) || !has(name)) continue;
    ProofCount& count = counts[name];
    const ProofCase proof(sample);
    if (traces) std::cout << proof.text() << std::endl;
    ++count.samples;
    if (proof.operands().empty()) continue;
    const size_t most = sample.op().hasTag(at::Tag::pointwise) ? limits.most_pointwise : limits.most;
    const auto assignments = axes.size() == 1 ? assignments_on_one_axis(proof, axes[0].size, most, seed)
                                              : assignments_on_two_axes(proof, most, seed);
    int told = 0;
    const std::vector<ProofRun> runs = prove(proof, axes, assignments);
    for (const ProofRun& run : runs) {
      count_run(count, run);
      if (run.failure.empty()) continue;
      if (++told > 1 && !is_verbose()) continue;
      ADD_FAILURE() << proof.text() << " with " << assignment_text(run.assignment) << " on " << num_ranks(axes)
                    << " ranks" << (run.moves ? ", operands moved" : "") << "\n  " << run.failure;
    }
    if (limits.tries_pieces && proof.is_determined() && has_elements(proof.reference().values)) {
      count_conservative(count, proof, runs, axes);
    }
    if (told > 1 && !is_verbose()) std::cout << name << ": " << told << " assignments of this sample failed\n";
  }
  return counts;
}

}  // namespace caravan::testing
