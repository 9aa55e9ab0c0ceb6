#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/draws.h"
#include "caravan/global/rules/rules.h"

namespace caravan {
namespace {

/// The value of an op for a standard draw of each element: uniform in [0, 1), or normal.
using Transform = std::function<at::Tensor(LocalCall&, const at::Tensor& draws)>;

at::Device device_of(LocalCall& local) {
  for (const char* name : {"self", "input", "mean", "std"}) {
    if (local.has_argument(name) && local.argument(name).isTensor()) return local.tensor(name).device();
  }
  return at::kCPU;
}

constexpr double kTiny = 1e-300;  // logarithms of draws that are 0

/// Numbers of the sizes of the first output, each a function of the seed, the number of the call and the place of the
/// element in the global tensor. A generator that the caller gives is not asked.
LocalKernel drawing(Draw draw, const std::vector<int64_t>& sizes, bool is_in_place, const Transform& transform) {
  return [=](LocalCall& local) {
    const at::Tensor draws = Draws(local.state(), local.placing().outputs.at(0), sizes).of(draw).to(device_of(local));
    const at::Tensor values = transform(local, draws);
    if (!is_in_place) return local.give({values});
    const at::Tensor self = local.tensor("self");
    self.copy_(values);
    local.give({self});
  };
}

/// Each element on its own; what it is drawn from may be broadcast operands.
TypedResult each_element(const OpCall& call, Draw draw, const Transform& transform) {
  TypedCall operation = pointwise(call);
  operation.terms.clear();
  const bool is_in_place = call.schema().arguments().front().alias_info() != nullptr;
  std::vector<int64_t> sizes(operation.outputs.at(0).size(), 1);
  for (int i = 0; i < call.num_read(); ++i) {
    const GlobalOperand& operand = call.operand(i);
    const size_t skipped = sizes.size() - operand.sizes.size();
    for (size_t dim = 0; dim < operand.sizes.size(); ++dim) {
      if (operand.sizes[dim] != 1) sizes[skipped + dim] = operand.sizes[dim];
    }
  }
  operation.kernel = drawing(draw, sizes, is_in_place, transform);
  return operation;
}

Rule rule_of(Draw draw, const Transform& transform) {
  return [=](const OpCall& call) { return each_element(call, draw, transform); };
}

double number(LocalCall& local, std::string_view argument) { return local.argument(argument).toScalar().toDouble(); }

at::Tensor like_self(LocalCall& local, const at::Tensor& values) {
  return values.to(local.tensor("self").scalar_type());
}

// ---- distributions ----

at::Tensor uniform(LocalCall& local, const at::Tensor& draws) {
  const double from = number(local, "from");
  const double to = number(local, "to");
  const at::Tensor values = like_self(local, draws * (to - from) + from);
  // Rounded to few digits, a draw may be the end of the range, which is not in it.
  return values.masked_fill(values >= to, from);
}

at::Tensor normal(LocalCall& local, const at::Tensor& draws) {
  return like_self(local, draws * number(local, "std") + number(local, "mean"));
}

at::Tensor log_normal(LocalCall& local, const at::Tensor& draws) {
  return like_self(local, (draws * number(local, "std") + number(local, "mean")).exp());
}

at::Tensor exponential(LocalCall& local, const at::Tensor& draws) {
  return like_self(local, (-draws).log1p().clamp_max(-kTiny) / -number(local, "lambd"));
}

at::Tensor cauchy(LocalCall& local, const at::Tensor& draws) {
  const at::Tensor slope = ((draws - 0.5) * std::numbers::pi).tan();
  return like_self(local, slope * number(local, "sigma") + number(local, "median"));
}

at::Tensor geometric(LocalCall& local, const at::Tensor& draws) {
  return like_self(local, ((-draws).log1p() / std::log1p(-number(local, "p"))).ceil().clamp_min(1));
}

at::Tensor bernoulli_number(LocalCall& local, const at::Tensor& draws) {
  return like_self(local, draws < number(local, "p"));
}

at::Tensor bernoulli_tensor(LocalCall& local, const at::Tensor& draws) {
  return like_self(local, draws < local.tensor("p").to(at::kDouble));
}

at::Tensor bernoulli_self(LocalCall& local, const at::Tensor& draws) {
  return like_self(local, draws < local.tensor("self").to(at::kDouble));
}

/// The first of the whole numbers that random_() draws is 0; those of floating-point types are exact.
double most_random(at::ScalarType type) {
  switch (type) {
    case at::kBool: return 2;
    case at::kByte: return 256;
    case at::kChar: return 128;
    case at::kShort: return 32768;
    case at::kInt: return 2147483648.0;
    case at::kHalf: return 2049;
    case at::kBFloat16: return 257;
    case at::kFloat: return 16777217;
    default: return 9007199254740992.0;
  }
}

at::Tensor whole_numbers(const at::Tensor& draws, double from, double to, at::ScalarType type) {
  return (draws * (to - from)).floor().clamp_max(to - from - 1).add(from).to(type);
}

at::Tensor random(LocalCall& local, const at::Tensor& draws) {
  const at::ScalarType type = local.tensor("self").scalar_type();
  const bool has_from = local.has_argument("from");
  const bool has_to = local.has_argument("to") && !local.argument("to").isNone();
  return whole_numbers(draws, has_from ? number(local, "from") : 0, has_to ? number(local, "to") : most_random(type),
                       type);
}

at::Tensor randint_like(LocalCall& local, const at::Tensor& draws) {
  const double low = local.has_argument("low") ? number(local, "low") : 0;
  return whole_numbers(draws, low, number(local, "high"), type_like(local));
}

/// normal(mean, std) of tensors, or of a tensor and a number.
at::Tensor normal_of_tensors(LocalCall& local, const at::Tensor& draws) {
  const auto part = [&](const char* name) {
    const c10::IValue& value = local.argument(name);
    return value.isTensor() ? value.toTensor().to(at::kDouble) : at::full({}, value.toDouble(), at::kDouble);
  };
  const c10::IValue& mean = local.argument("mean");
  const auto type = mean.isTensor() ? mean.toTensor().scalar_type() : local.tensor("std").scalar_type();
  return (draws * part("std") + part("mean")).to(type);
}

// ---- dropout ----

TypedResult native_dropout(const OpCall& call) {
  TypedCall operation = pointwise(call);
  operation.terms.clear();
  operation.kernel = [sizes = call.sizes(0)](LocalCall& local) {
    const at::Tensor input = local.tensor("input");
    const double p = number(local, "p");
    const c10::IValue& train = local.argument("train");
    // Drawn in any case, so that whether it trains does not change the numbers of other calls.
    const at::Tensor draws =
        Draws(local.state(), local.placing().outputs.at(0), sizes).of(Draw::uniform).to(device_of(local));
    if (!train.isNone() && !train.toBool()) return local.give({input.clone(), at::ones_like(input, at::kBool)});
    const at::Tensor mask = draws.ge(p);
    const double scale = p == 1 ? 0 : 1 / (1 - p);
    local.give({input * mask.to(input.scalar_type()) * scale, mask});
  };
  return operation;
}

/// Writes the slopes to `noise`.
TypedResult rrelu_with_noise(const OpCall& call) {
  if (call.index("out") >= 0 || call.schema().returns().size() != 1) return std::nullopt;
  TypedCall operation = pointwise(call);
  operation.terms.clear();
  const bool is_in_place = call.schema().arguments().front().alias_info() != nullptr;
  operation.kernel = [sizes = call.sizes(0), is_in_place](LocalCall& local) {
    const at::Tensor self = local.tensor("self");
    const double lower = number(local, "lower");
    const double upper = number(local, "upper");
    at::Tensor slopes;
    if (local.argument("training").toBool()) {
      const at::Tensor draws =
          Draws(local.state(), local.placing().outputs.at(0), sizes).of(Draw::uniform).to(device_of(local));
      slopes = at::where(self <= 0, (draws * (upper - lower) + lower).to(self.scalar_type()), at::ones_like(self));
      local.tensor("noise").copy_(slopes);
    } else {
      slopes = at::where(self <= 0, at::full_like(self, (lower + upper) / 2), at::ones_like(self));
    }
    const at::Tensor result = self * slopes;
    if (is_in_place) self.copy_(result);
    local.give({is_in_place ? self : result});
  };
  return operation;
}

// ---- counts ----

/// Inversion: the number of terms of a distribution whose sum stays below the draw. `next`: the factor between term k
/// and k + 1.
template <typename Next>
double inverted(double draw, double first, double most, const Next& next) {
  double term = first;
  double sum = term;
  double k = 0;
  while (draw >= sum && k < most && term > 0) {
    term *= next(k);
    sum += term;
    ++k;
  }
  return k;
}

/// Sums of parts of the mean, so that exp(-mean) is never 0.
double poisson(const Draws& draws, int64_t element, double mean) {
  constexpr double kPart = 400;
  double count = 0;
  for (int64_t i = 0; mean > 0; ++i, mean -= kPart) {
    const double part = std::min(mean, kPart);
    const auto next = [&](double k) { return part / (k + 1); };
    count += inverted(draws.number(element, i), std::exp(-part), 1e9, next);
  }
  return count;
}

double binomial(const Draws& draws, int64_t element, double trials, double p) {
  if (p > 0.5) return trials - binomial(draws, element, trials, 1 - p);
  if (!(p > 0)) return 0;
  constexpr double kPart = 512;
  double count = 0;
  for (int64_t i = 0; trials > 0; ++i, trials -= kPart) {
    const double part = std::min(trials, kPart);
    const auto next = [&](double k) { return (part - k) / (k + 1) * p / (1 - p); };
    count += inverted(draws.number(element, i), std::pow(1 - p, part), part, next);
  }
  return count;
}

/// A count for each element of the broadcast operands. `count` gets their values.
TypedResult counted(const OpCall& call, const std::vector<std::string>& names,
                    const std::function<double(const Draws&, int64_t, const std::vector<double>&)>& count) {
  auto operation = each_element(call, Draw::uniform, {});
  if (!operation) return operation;
  std::vector<int64_t> sizes = call.sizes(0);
  if (call.num_read() == 2 && call.sizes(1) != sizes) return std::nullopt;
  operation->kernel = [=](LocalCall& local) {
    const Draws draws(local.state(), local.placing().outputs.at(0), sizes);
    std::vector<at::Tensor> values;
    for (const std::string& name : names) values.push_back(local.tensor(name).to(at::kCPU, at::kDouble).contiguous());
    const at::Tensor result = at::empty(values[0].sizes(), at::kDouble);
    std::vector<double> each(values.size());
    for (int64_t i = 0; i < result.numel(); ++i) {
      for (size_t j = 0; j < values.size(); ++j) each[j] = values[j].const_data_ptr<double>()[i];
      result.mutable_data_ptr<double>()[i] = count(draws, draws.element(i), each);
    }
    const at::Tensor like = local.tensor(names[0]);
    local.give({result.to(like.device(), like.scalar_type())});
  };
  return operation;
}

/// Each row is drawn on its own: with replacement by inversion, else as the first of exponential clocks.
TypedResult multinomial(const OpCall& call) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}};
  operation.whole = operation.inputs[0].back();
  operation.outputs = {operation.inputs[0]};
  operation.outputs[0].back() = "";
  const int64_t num_samples = call.integer("num_samples");
  std::vector<int64_t> sizes = call.sizes(0);
  const bool replaces = call.flag("replacement");
  if (replaces) sizes.back() = num_samples;
  operation.kernel = [=](LocalCall& local) {
    const at::Tensor draws =
        Draws(local.state(), local.placing().outputs.at(0), sizes).of(Draw::uniform).to(device_of(local));
    const at::Tensor weights = local.tensor("self").to(at::kDouble);
    if (!replaces) {
      // A weight of 0 comes last.
      const at::Tensor clocks = weights / -(-draws).log1p().clamp_max(-kTiny);
      return local.give({std::get<1>(clocks.topk(num_samples, -1))});
    }
    const at::Tensor sums = at::cumsum(weights, -1);
    const at::Tensor aims = draws * sums.narrow(-1, sums.size(-1) - 1, 1);
    local.give({at::searchsorted(sums, aims.contiguous(), false, true).clamp_max(sums.size(-1) - 1)});
  };
  return operation;
}

}  // namespace

void add_random_rules(RuleTable& rules) {
  const auto add = [&](std::initializer_list<std::string_view> names, Draw draw, const Transform& transform) {
    rules.add(names, rule_of(draw, transform));
  };
  add({"aten::uniform_", "aten::uniform"}, Draw::uniform, uniform);
  add({"aten::normal_", "aten::normal_functional"}, Draw::normal, normal);
  add({"aten::log_normal_", "aten::log_normal"}, Draw::normal, log_normal);
  add({"aten::exponential_", "aten::exponential"}, Draw::uniform, exponential);
  add({"aten::cauchy_", "aten::cauchy"}, Draw::uniform, cauchy);
  add({"aten::geometric_", "aten::geometric"}, Draw::uniform, geometric);
  add({"aten::random_", "aten::random"}, Draw::uniform, random);
  add({"aten::bernoulli_.float", "aten::bernoulli.p"}, Draw::uniform, bernoulli_number);
  add({"aten::bernoulli_.Tensor", "aten::bernoulli.Tensor"}, Draw::uniform, bernoulli_tensor);
  add({"aten::bernoulli"}, Draw::uniform, bernoulli_self);
  add({"aten::normal.Tensor_Tensor", "aten::normal.Tensor_float", "aten::normal.float_Tensor"}, Draw::normal,
      normal_of_tensors);
  const Transform as_drawn = [](LocalCall& local, const at::Tensor& draws) { return draws.to(type_like(local)); };
  add({"aten::rand_like"}, Draw::uniform, [](LocalCall& local, const at::Tensor& draws) {
    const at::Tensor values = draws.to(type_like(local));
    return values.masked_fill(values >= 1, 0);
  });
  add({"aten::randn_like"}, Draw::normal, as_drawn);
  add({"aten::randint_like", "aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype"}, Draw::uniform,
      randint_like);
  rules.add({"aten::randint_like.Tensor", "aten::randint_like.Tensor_generator"},
            [](const OpCall&) -> TypedResult { return std::nullopt; });
  rules.add("aten::native_dropout", native_dropout);
  rules.add({"aten::rrelu_with_noise", "aten::rrelu_with_noise_"}, rrelu_with_noise);
  rules.add("aten::poisson", [](const OpCall& call) {
    return counted(call, {"self"}, [](const Draws& draws, int64_t element, const std::vector<double>& each) {
      return poisson(draws, element, each[0]);
    });
  });
  rules.add("aten::binomial", [](const OpCall& call) {
    return counted(call, {"count", "prob"}, [](const Draws& draws, int64_t element, const std::vector<double>& each) {
      return binomial(draws, element, each[0], each[1]);
    });
  });
  rules.add("aten::multinomial", multinomial);
}

}  // namespace caravan
