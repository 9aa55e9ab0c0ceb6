#include "caravan/session/trials.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/same.h"
#include "caravan/comm/tensor.h"
#include "caravan/mesh/layout.h"
#include "caravan/prove/judge.h"
#include "caravan/redistribute/piece.h"
#include "caravan/session/rank_checks.h"
#include "caravan/session/trainable_parts.h"

namespace caravan {
namespace {

/// Puts the values of a module back as they were, and takes the gradients away.
class KeptValues {
 public:
  explicit KeptValues(torch::nn::Module& net) {
    for (const at::Tensor& parameter : net.parameters()) keep(parameter);
    for (const at::Tensor& buffer : net.buffers()) keep(buffer);
  }
  ~KeptValues() { restore(); }
  KeptValues(const KeptValues&) = delete;
  KeptValues& operator=(const KeptValues&) = delete;

  void restore() const {
    const at::NoGradGuard no_grad;
    for (const auto& [tensor, values] : kept_) {
      const at::Tensor copy = values.clone();
      tensor.unsafeGetTensorImpl()->shallow_copy_from(copy.getIntrusivePtr());
      tensor.mutable_grad() = at::Tensor();
    }
  }

 private:
  void keep(const at::Tensor& tensor) { kept_.emplace_back(tensor, tensor.detach().clone()); }
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

/// By name: gradients of one process.
using Gradients = std::map<std::string, at::Tensor>;

/// The largest root of the mean square of a gradient.
double largest_of(const Gradients& gradients) {
  double largest = 0;
  for (const auto& [name, gradient] : gradients) {
    const double norm = gradient.norm().item<double>();
    largest = std::max(largest, norm / std::sqrt(static_cast<double>(std::max<int64_t>(gradient.numel(), 1))));
  }
  return largest;
}

struct Worst {
  double error = 0;
  double factor = 0;  ///< 0: none
  std::string name{};
};

/// Of the gradients that this rank has.
Worst worst_of(ParallelModel& model, const Gradients& want, int& num_parameters) {
  constexpr double kFloor = 0.01, kMultiple = 1e-3;
  const double largest = largest_of(want);
  Worst worst;
  num_parameters = 0;
  for (const Parameter* parameter : model.module().parameters()) {
    const auto found = want.find(parameter->name());
    if (found == want.end()) continue;
    ++num_parameters;
    const std::vector<PieceBox> boxes =
        local_boxes(parameter->global_shape(), parameter->sharded_layout(), model.mesh(), parameter->name());
    const at::Tensor b = piece_of(found->second, boxes).to(at::kDouble);
    if (b.numel() == 0) continue;
    const FlatState& flat = model.engine().state();
    const at::Tensor a = flat.layout.read(flat.gradients, *parameter).to(at::kDouble).view(b.sizes());
    const double floor = kFloor * largest * std::sqrt(static_cast<double>(b.numel()));
    const Verdict verdict = judge(a, b, floor, kMultiple);
    if (!(verdict.error <= worst.error)) {  // also if it is not a number
      const bool is_multiple = verdict.factor && std::abs(*verdict.factor - 1) > kMultiple;
      worst = {std::isnan(verdict.error) ? INFINITY : verdict.error, is_multiple ? *verdict.factor : 0,
               parameter->name()};
    }
  }
  return worst;
}

/// Of all ranks, on every rank.
Worst worst_of_all(const Worst& own, const Mesh& mesh) {
  Communicator& world = mesh.world();
  const at::Tensor errors = at::empty({mesh.world().size()}, at::kDouble);
  all_gather_async(world, at::full({1}, own.error, at::kDouble), errors, {}, "error").wait();
  const auto rank = static_cast<int>(errors.argmax().item<int64_t>());
  const at::Tensor number = at::full({1}, own.factor, at::kDouble);
  broadcast_async(world, number, rank, "factor").wait();
  at::Tensor text = at::zeros({512}, at::kByte);
  std::memcpy(text.data_ptr(), own.name.data(), std::min<size_t>(own.name.size(), 511));
  broadcast_async(world, text, rank, "name").wait();
  return {errors.max().item<double>(), number.item<double>(),
          fmt::format("gradient of {} on rank {}", static_cast<const char*>(text.data_ptr()), rank)};
}

void check_same(const StepData& batch, const Mesh& mesh) {
  const auto found = find_disagreement(
      mesh.world(), {{"x", fmt::format("{}", checksum(batch.x))}, {"y", fmt::format("{}", checksum(batch.y))}});
  if (!found) return;
  throw UsageError({"prove", found->name, "is not the same on every rank", mesh.where(),
                    "give every rank the whole batch; prove() cuts it"});
}

double tolerance_of(const std::vector<Technique>& techniques, at::ScalarType type) {
  for (const Technique& technique : techniques) {
    const auto* precision = std::get_if<PrecisionChoice>(&technique);
    if (precision != nullptr && *precision != PrecisionChoice{}) return 5e-2;
  }
  return type == at::kDouble ? 1e-10 : 2e-5;
}

}  // namespace

std::string ModuleProof::to_string() const {
  if (holds()) {
    return fmt::format(
        "holds: loss and gradients of {} parameters on {} ranks are those of one process, largest error "
        "{:.1e} of {:.0e}",
        num_parameters, num_ranks, std::max(largest_error, loss_error), tolerance);
  }
  if (factor) return fmt::format("differs: {} is {:.3f} times that of one process", worst, *factor);
  return loss_error > tolerance && largest_error <= tolerance
             ? fmt::format("differs: the loss, by {:.1e}", loss_error)
             : fmt::format("differs: {} by {:.1e} of its norm", worst, largest_error);
}

ModuleProof prove(const Trainable& net, const Mesh& mesh, const std::vector<Technique>& techniques,
                  const StepData& batch, const ParallelOptions& options, std::optional<double> tolerance) {
  torch::nn::Module& module = TrainableParts::module_of(net, "prove", "use a ProveCase (prove/prove.h)");
  if (!batch.loss) throw UsageError({"prove", "loss", "is no function", mesh.where(), "give StepData a loss"});
  TrainableParts::check_free(net, mesh);
  check_same(batch, mesh);
  const auto take_from_first = [&](const at::Tensor& tensor) {
    const at::NoGradGuard no_grad;
    const at::Tensor values = tensor.detach().clone(at::MemoryFormat::Contiguous);
    if (values.numel() > 0) broadcast_async(mesh.world(), values, 0, "values of the module").wait();
    tensor.detach().copy_(values);
  };
  for (const at::Tensor& parameter : module.parameters()) take_from_first(parameter);
  for (const at::Tensor& buffer : module.buffers()) take_from_first(buffer);
  const KeptValues kept(module);
  for (const at::Tensor& parameter : module.parameters()) parameter.mutable_grad() = at::Tensor();
  const at::Tensor loss = batch.loss(TrainableParts::run(net, batch.x, mesh), batch.y);
  loss.backward();
  Gradients want;
  for (const auto& item : module.named_parameters()) {
    if (item.value().grad().defined()) want[item.key()] = item.value().grad().clone();
  }
  kept.restore();

  ModuleProof proof{
      .num_ranks = mesh.world().size(),
      .tolerance = tolerance ? *tolerance : tolerance_of(techniques, module.parameters().front().scalar_type())};
  {
    ParallelModel model(net, mesh, techniques, options);
    if (options.average && batch.x.size(0) % model.num_parts() != 0) {
      throw UsageError({"prove", "batch",
                        fmt::format("{} rows are not a multiple of {} parts, whose means are averaged", batch.x.size(0),
                                    model.num_parts()),
                        mesh.where(), "give it a multiple"});
    }
    const double got = model.step(rows_of(batch.x, mesh), rows_of(batch.y, mesh), batch.loss);
    const double one = loss.item<double>();
    proof.loss_error = std::abs(got - one) / std::max(std::abs(one), 1e-30);
    const Worst worst = worst_of_all(worst_of(model, want, proof.num_parameters), mesh);
    proof.largest_error = worst.error;
    proof.worst = worst.name;
    if (worst.factor != 0) proof.factor = worst.factor;
  }
  return proof;
}

ModuleProof prove(const Trainable& net, const Session& session, const std::vector<Technique>& techniques,
                  const StepData& batch, ParallelOptions options, std::optional<double> tolerance) {
  if (!options.seed) options.seed = session.seed();
  return prove(net, session.mesh(), techniques, batch, options, tolerance);
}

}  // namespace caravan
