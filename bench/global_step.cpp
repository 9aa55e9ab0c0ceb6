// A training step of GPT-2 made of torch::nn layers under tensor parallelism on all ranks: by global tensors, by
// parallelize() with the same layouts, and with the collectives written by hand as Megatron-LM does. The ways step in
// turns. Prints the median step of each, with the processor time of this rank, which says more where others compute
// too; ratios to the step by hand; bytes sent; and one line of JSON.
//   caravan run build/release/bin/global_step tiny|small|LAYERS,WIDTH,HEADS,CONTEXT,VOCABULARY,ROWS adamw|sgd STEPS
//       [hand,global,parallelize] --ranks 2
// ROWS: sequences of a step for each rank; every rank computes all of them. A step includes reading the loss.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "caravan/caravan.h"

using namespace caravan;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

struct Size {
  int64_t layers, width, heads, context, vocabulary, rows;
};

std::vector<std::string> parts_of_text(const std::string& text) {
  const auto parts = c10::split(text, ',');
  return {parts.begin(), parts.end()};
}

Size size_of(const std::string& name) {
  if (name == "floor") return {4, 128, 4, 8, 512, 1};
  if (name == "tiny") return {4, 128, 4, 128, 512, 16};
  if (name == "small") return {6, 384, 6, 256, 4096, 4};
  std::vector<int64_t> numbers;
  for (const std::string& each : parts_of_text(name)) numbers.push_back(std::stoll(each));
  if (numbers.size() == 6) return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
  throw UsageError({"global_step", name, "is no size", "", "choose floor, tiny, small or six numbers"});
}

// ---- by hand: the f and g of Megatron-LM, and its loss over a split vocabulary ----

at::Tensor summed(const at::Tensor& x, Communicator& ranks, ReduceOp op = ReduceOp::sum) {
  at::Tensor sum = x.contiguous();
  all_reduce_async(ranks, sum, sum, op).wait();
  return sum;
}

struct SumOfGradient : Function<SumOfGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t ranks) {
    context->saved_data["ranks"] = ranks;
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto& ranks = *reinterpret_cast<Communicator*>(context->saved_data["ranks"].toInt());
    return {summed(gradients[0], ranks), {}};
  }
};

struct SumOfValue : Function<SumOfValue> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t ranks) {
    at::Tensor sum = x.is_contiguous() ? x : x.contiguous();
    summed(sum, *reinterpret_cast<Communicator*>(ranks));
    if (sum.is_same(x)) context->mark_dirty({x});
    return sum;
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return {gradients[0], {}}; }
};

/// The mean cross entropy of logits of which each rank has a part of the classes.
struct SplitCrossEntropy : Function<SplitCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                            int64_t handle) {
    auto& ranks = *reinterpret_cast<Communicator*>(handle);
    const at::Tensor largest = summed(std::get<0>(logits.max(1)), ranks, ReduceOp::max);
    at::Tensor softmax = logits - largest.unsqueeze(1);
    const at::Tensor is_other = labels.lt(first).logical_or(labels.ge(first + logits.size(1)));
    const at::Tensor own = (labels - first).masked_fill(is_other, 0).unsqueeze(1);
    const at::Tensor chosen = summed(softmax.gather(1, own).squeeze(1).masked_fill(is_other, 0), ranks);
    softmax.exp_();
    const at::Tensor sums = summed(softmax.sum(1), ranks);
    softmax.div_(sums.unsqueeze(1));
    context->save_for_backward({softmax, own, is_other});
    return (sums.log() - chosen).mean();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor scale = gradients[0] / saved[0].size(0);
    at::Tensor gradient = saved[0].mul(scale);
    gradient.scatter_add_(1, saved[1], saved[2].logical_not().to(gradient.scalar_type()).mul(-scale).unsqueeze(1));
    return {gradient, {}, {}, {}};
  }
};

// ---- the model ----

/// The ranks that split a net by hand; none: a net of whole layers.
using Ranks = Communicator*;
int64_t parts(Ranks ranks) { return ranks == nullptr ? 1 : ranks->size(); }

at::Tensor column(nn::Linear& layer, const at::Tensor& x, Ranks ranks) {
  return layer(ranks == nullptr ? x : SumOfGradient::apply(x, reinterpret_cast<int64_t>(ranks)));
}
at::Tensor row(nn::Linear& layer, const at::Tensor& x, Ranks ranks) {
  if (ranks == nullptr) return layer(x);
  return SumOfValue::apply(at::linear(x, layer->weight), reinterpret_cast<int64_t>(ranks)) + layer->bias;
}

struct BlockImpl : nn::Module {
  BlockImpl(const Size& size, Ranks ranks_)
      : ranks(ranks_),
        head_width(size.width / size.heads),
        norm1(nn::LayerNormOptions({size.width})),
        qkv(size.width, 3 * size.width / parts(ranks)),
        out(size.width / parts(ranks), size.width),
        norm2(nn::LayerNormOptions({size.width})),
        up(size.width, 4 * size.width / parts(ranks)),
        down(4 * size.width / parts(ranks), size.width) {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(at::Tensor x) {
    const int64_t rows = x.size(0), length = x.size(1);
    std::vector<at::Tensor> heads = column(qkv, norm1(x), ranks).chunk(3, -1);
    for (at::Tensor& each : heads) each = each.view({rows, length, -1, head_width}).transpose(1, 2);
    const at::Tensor y = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, true);
    x = x + row(out, y.transpose(1, 2).reshape({rows, length, -1}), ranks);
    return x + row(down, at::gelu(column(up, norm2(x), ranks), "tanh"), ranks);
  }
  Ranks ranks;
  int64_t head_width;
  nn::LayerNorm norm1;
  nn::Linear qkv, out;
  nn::LayerNorm norm2;
  nn::Linear up, down;
};

struct GptImpl : nn::Module {
  GptImpl(const Size& size, Ranks ranks_)
      : ranks(ranks_),
        tokens(size.vocabulary / parts(ranks), size.width),
        places(size.context, size.width),
        norm(nn::LayerNormOptions({size.width})) {
    register_module("tokens", tokens);
    register_module("places", places);
    for (int64_t i = 0; i < size.layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<BlockImpl>(size, ranks)));
    }
    register_module("norm", norm);
  }
  /// The logits; by hand of this rank's part of the vocabulary.
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embedded(ids) + places->weight;
    for (auto& block : blocks) x = block->forward(x);
    x = norm(x);
    if (ranks != nullptr) x = SumOfGradient::apply(x, reinterpret_cast<int64_t>(ranks));
    return at::linear(x, tokens->weight);
  }
  at::Tensor embedded(const at::Tensor& ids) {
    if (ranks == nullptr) return tokens(ids);
    const at::Tensor is_other = ids.lt(first()).logical_or(ids.ge(first() + tokens->weight.size(0)));
    const at::Tensor own = (ids - first()).masked_fill(is_other, 0);
    const at::Tensor x = tokens(own).masked_fill(is_other.unsqueeze(-1), 0);
    return SumOfValue::apply(x, reinterpret_cast<int64_t>(ranks));
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) {
    const at::Tensor logits = forward(ids).flatten(0, 1);
    if (ranks == nullptr) return F::cross_entropy(logits, labels.flatten());
    return SplitCrossEntropy::apply(logits, labels.flatten(), first(), reinterpret_cast<int64_t>(ranks));
  }
  int64_t first() const { return ranks->rank() * tokens->weight.size(0); }

  Ranks ranks;
  nn::Embedding tokens, places;
  std::vector<std::shared_ptr<BlockImpl>> blocks;
  nn::LayerNorm norm;
};
using Gpt = std::shared_ptr<GptImpl>;

Gpt whole_net(const Size& size) {
  at::manual_seed(7);
  auto net = std::make_shared<GptImpl>(size, nullptr);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) {
    if (parameter.dim() > 1) parameter.normal_(0, 0.02);
  }
  return net;
}

std::vector<NamedLayout> megatron() {
  return {{"*.qkv.*", {{"tp", Shard{.dim = 0, .blocks = 3}}}},
          {"*.out.weight", {{"tp", Shard{1}}}},
          {"*.up.*", {{"tp", Shard{0}}}},
          {"*.down.weight", {{"tp", Shard{1}}}},
          {"tokens.weight", {{"tp", Shard{0}}}}};
}

// ---- the ways ----

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::string& name, std::vector<at::Tensor> parameters) {
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(1e-2));
  if (name != "adamw") throw UsageError({"global_step", name, "is no optimizer", "", "choose adamw or sgd"});
  return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                               torch::optim::AdamWOptions(3e-4).betas({0.9, 0.95}).weight_decay(0.1));
}

/// A step on ids and labels that every rank has; returns the loss.
using Step = std::function<double(const at::Tensor& ids, const at::Tensor& labels)>;

Step step_of(const Gpt& net, const std::string& optimizer_name,
             const std::function<at::Tensor(const at::Tensor&)>& place) {
  const std::shared_ptr<torch::optim::Optimizer> optimizer = optimizer_of(optimizer_name, net->parameters());
  return [=](const at::Tensor& ids, const at::Tensor& labels) {
    optimizer->zero_grad();
    const at::Tensor loss = net->loss(place(ids), place(labels));
    loss.backward();
    optimizer->step();
    return loss.item<double>();
  };
}

Step make_step(const std::string& way, const Size& size, const std::string& optimizer_name, const Session& session,
               const GlobalContext& context) {
  const Gpt net = whole_net(size);
  if (way == "parallelize") {
    const auto model =
        std::make_shared<ParallelModel>(parallelize(net, session, {tensor(megatron())}, {.average = true}));
    const std::shared_ptr<torch::optim::Optimizer> optimizer = optimizer_of(optimizer_name, model->parameters());
    return [=](const at::Tensor& ids, const at::Tensor& labels) {
      const double loss = model->step(ids, labels, [](const at::Tensor& logits, const at::Tensor& target) {
        return F::cross_entropy(logits.flatten(0, 1), target.flatten());
      });
      optimizer->step();
      return loss;
    };
  }
  distribute_module(*net, megatron(), context);
  if (way == "global") {
    return step_of(net, optimizer_name, [context](const at::Tensor& x) { return distribute(x, {}, context); });
  }
  if (way != "hand") throw UsageError({"global_step", way, "is no way", "", "choose hand, global or parallelize"});
  auto split_net = std::make_shared<GptImpl>(size, &session["tp"].comm());
  const at::NoGradGuard no_grad;
  const auto whole = net->named_parameters();
  for (auto& parameter : split_net->named_parameters()) parameter.value().copy_(local(whole[parameter.key()]));
  return step_of(split_net, optimizer_name, [](const at::Tensor& x) { return x; });
}

// ---- measuring ----

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

std::string spread(std::vector<double> values, const char* format) {
  std::ranges::sort(values);
  const auto at = [&](double part) {
    return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
  };
  return fmt::format(fmt::runtime(format), at(0.5), at(0.1), at(0.9));
}

void measure(int argc, char** argv) {
  if (argc < 4)
    throw UsageError({"global_step", "", "needs a size, an optimizer and a number of steps", "", "see its source"});
  const std::string optimizer_name = argv[2];
  const Size size = size_of(argv[1]);
  const int num_steps = std::stoi(argv[3]);
  const std::vector<std::string> ways = parts_of_text(argc > 4 ? argv[4] : "hand,global");
  Session session({.axes = {{"dp", 1}, {"tp", 0}}, .threads = 1});
  const GlobalContext context(session.mesh(), {.is_strict = true});
  std::vector<Step> steps;
  for (const std::string& way : ways) steps.push_back(make_step(way, size, optimizer_name, session, context));

  std::map<std::string, std::vector<double>> ms, cpu, losses;
  std::map<std::string, int64_t> bytes;
  constexpr int kWarmUp = 2;
  for (int i = 0; i < kWarmUp + num_steps; ++i) {
    const at::Tensor text = at::randint(size.vocabulary, {size.rows * session.size(), size.context + 1}, at::kLong);
    const at::Tensor ids = text.slice(1, 0, -1).contiguous(), labels = text.slice(1, 1).contiguous();
    for (size_t turn = 0; turn < ways.size(); ++turn) {
      const size_t way = (turn + static_cast<size_t>(i)) % ways.size();
      session.world().barrier();
      const int64_t sent = session.mesh().bytes_sent();
      const double cpu_before = cpu_ms();
      const auto begin = std::chrono::steady_clock::now();
      losses[ways[way]].push_back(steps[way](ids, labels));
      const at::Tensor slowest = at::tensor(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count(), at::kDouble);
      const double cpu_used = cpu_ms() - cpu_before;
      bytes[ways[way]] = session.mesh().bytes_sent() - sent;
      all_reduce_async(session.world(), slowest, slowest, ReduceOp::max).wait();
      if (i < kWarmUp) continue;
      ms[ways[way]].push_back(slowest.item<double>());
      cpu[ways[way]].push_back(cpu_used);
    }
  }
  if (!session.is_main()) return;
  for (const std::string& way : ways) {
    const auto ratios = [&](std::map<std::string, std::vector<double>>& times) {
      std::vector<double> each;
      for (int i = 0; i < num_steps; ++i) each.push_back(times[way][i] / times[ways[0]][i]);
      return spread(each, "{:.3f} ({:.3f} to {:.3f})");
    };
    std::printf("%-12s %s, to %s %s  cpu %s, to %s %s  %.1f KiB sent  loss %.6f to %.6f\n", way.c_str(),
                spread(ms[way], "{:8.2f} ms ({:.2f} to {:.2f})").c_str(), ways[0].c_str(), ratios(ms).c_str(),
                spread(cpu[way], "{:.2f} ms").c_str(), ways[0].c_str(), ratios(cpu).c_str(),
                static_cast<double>(bytes[way]) / 1024, losses[way].front(), losses[way].back());
  }
  std::printf("%s\n", nlohmann::json{{"ms", ms}, {"cpu_ms", cpu}, {"losses", losses}, {"bytes", bytes}}.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return run_program([&] { measure(argc, argv); });
}
