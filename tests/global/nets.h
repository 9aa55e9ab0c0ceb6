#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn.h>

#include "tests/global/training.h"

namespace caravan::testing {

template <typename Impl>
Program program_of(std::function<at::Tensor(Impl&, const std::vector<at::Tensor>&)> loss,
                   std::vector<at::Tensor> data) {
  Program program;
  program.make = [] { return std::make_shared<Impl>(); };
  program.loss = [loss = std::move(loss)](torch::nn::Module& net, const std::vector<at::Tensor>& inputs) {
    return loss(dynamic_cast<Impl&>(net), inputs);
  };
  program.data = std::move(data);
  return program;
}

inline at::Tensor random_ids(at::IntArrayRef sizes, int64_t count, uint64_t seed) {
  return ((random_tensor(sizes, seed) + 1) * 0.5 * static_cast<double>(count))
      .floor()
      .clamp(0, count - 1)
      .to(at::kLong);
}

// ---- an MLP ----

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t width = 8, int64_t ff = 12) : up(width, ff), down(ff, width) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
  torch::nn::Linear up, down;
};

inline Program mlp(int64_t width = 8, int64_t ff = 12) {
  Program program =
      program_of<MlpImpl>([](MlpImpl& net, const auto& data) { return torch::mse_loss(net.forward(data[0]), data[1]); },
                          {random_tensor({6, width}, 1), random_tensor({6, width}, 2)});
  program.make = [=] { return std::make_shared<MlpImpl>(width, ff); };
  return program;
}

inline const std::vector<NamedLayout> kMlpByTp{{"up.*", {{"tp", Shard{0}}}}, {"down.weight", {{"tp", Shard{1}}}}};

// ---- GPT of torch::nn parts ----

struct GptSize {
  int64_t width = 12, heads = 6, ff = 24, vocabulary = 30, rows = 4, length = 5, blocks = 2;
};

template <bool is_fused, bool has_sdpa>
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const GptSize& size) : width(size.width), heads(size.heads) {
    if (is_fused) {
      qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    } else {
      q = register_module("q", torch::nn::Linear(width, width));
      k = register_module("k", torch::nn::Linear(width, width));
      v = register_module("v", torch::nn::Linear(width, width));
    }
    out = register_module("out", torch::nn::Linear(width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    const int64_t rows = x.size(0), length = x.size(1);
    std::vector<at::Tensor> parts;
    if (is_fused) {
      parts = qkv(x).chunk(3, -1);
    } else {
      parts = {q(x), k(x), v(x)};
    }
    for (at::Tensor& part : parts) part = part.view({rows, length, heads, width / heads}).transpose(1, 2);
    at::Tensor result;
    if (has_sdpa) {
      result = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    } else {
      const at::Tensor scores = parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(double(width / heads));
      result = scores.softmax(-1).matmul(parts[2]);
    }
    return out(result.transpose(1, 2).reshape({rows, length, width}));
  }
  int64_t width, heads;
  torch::nn::Linear qkv{nullptr}, q{nullptr}, k{nullptr}, v{nullptr}, out{nullptr};
};

template <bool is_fused, bool has_sdpa>
struct GptImpl : torch::nn::Module {
  struct BlockImpl : torch::nn::Module {
    explicit BlockImpl(const GptSize& size = {})
        : norm1(torch::nn::LayerNormOptions({size.width})),
          norm2(torch::nn::LayerNormOptions({size.width})),
          up(size.width, size.ff),
          down(size.ff, size.width) {
      register_module("norm1", norm1);
      attention = register_module("attention", std::make_shared<AttentionImpl<is_fused, has_sdpa>>(size));
      register_module("norm2", norm2);
      register_module("up", up);
      register_module("down", down);
    }
    at::Tensor forward(at::Tensor x) {
      x = x + attention->forward(norm1(x));
      return x + down(torch::gelu(up(norm2(x))));
    }
    torch::nn::LayerNorm norm1, norm2;
    std::shared_ptr<AttentionImpl<is_fused, has_sdpa>> attention;
    torch::nn::Linear up, down;
  };
  explicit GptImpl(const GptSize& size)
      : token(size.vocabulary, size.width),
        position(size.length, size.width),
        norm(torch::nn::LayerNormOptions({size.width})),
        head(torch::nn::LinearOptions(size.width, size.vocabulary).bias(false)) {
    register_module("token", token);
    register_module("position", position);
    for (int64_t i = 0; i < size.blocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<BlockImpl>(size)));
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) {
    at::Tensor x = token(ids) + position->weight;
    for (auto& block : blocks) x = block->forward(x);
    return torch::nn::functional::cross_entropy(head(norm(x)).flatten(0, 1), labels.view({-1}));
  }
  torch::nn::Embedding token, position;
  std::vector<std::shared_ptr<BlockImpl>> blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};

template <bool is_fused, bool has_sdpa>
Program gpt(const GptSize& size = {}) {
  using Net = GptImpl<is_fused, has_sdpa>;
  Program program;
  program.make = [size] { return std::make_shared<Net>(size); };
  program.loss = [](torch::nn::Module& net, const std::vector<at::Tensor>& data) {
    return dynamic_cast<Net&>(net).loss(data[0], data[1]);
  };
  program.data = {random_ids({size.rows, size.length}, size.vocabulary, 1),
                  random_ids({size.rows, size.length}, size.vocabulary, 2)};
  program.clip = 0.5;
  return program;
}

/// Megatron's layouts on `axis`, with the vocabulary split too.
inline std::vector<NamedLayout> megatron(const std::string& axis, const std::vector<Layout::Entry>& with = {}) {
  const auto on = [&](Shard shard) {
    std::vector<Layout::Entry> entries{{axis, std::move(shard)}};
    entries.insert(entries.end(), with.begin(), with.end());
    return Layout(std::move(entries));
  };
  return {{"*.attention.q.*", on({0})},        {"*.attention.k.*", on({0})}, {"*.attention.v.*", on({0})},
          {"*.attention.out.weight", on({1})}, {"*.up.*", on({0})},          {"*.down.weight", on({1})},
          {"token.weight", on({0})},           {"head.weight", on({0})}};
}

inline std::vector<NamedLayout> megatron_fused(const std::string& axis) {
  std::vector<NamedLayout> layouts = megatron(axis);
  layouts.erase(layouts.begin(), layouts.begin() + 3);
  layouts.push_back({"*.attention.qkv.*", {{axis, Shard{.dim = 0, .blocks = 3}}}});
  return layouts;
}

}  // namespace caravan::testing
