// Modules of torch::nn as a user writes them, spread over ranks by layouts alone, against one process.
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn.h>

#include "tests/global/training.h"

namespace caravan::testing {
namespace {

namespace F = torch::nn::functional;
namespace nn = torch::nn;
using Layouts = std::vector<NamedLayout>;

template <typename Impl>
Program program_of(std::function<at::Tensor(Impl&, const std::vector<at::Tensor>&)> loss,
                   std::vector<at::Tensor> data) {
  Program program;
  program.make = [] { return std::make_shared<Impl>(); };
  program.loss = [loss = std::move(loss)](nn::Module& net, const std::vector<at::Tensor>& inputs) {
    return loss(dynamic_cast<Impl&>(net), inputs);
  };
  program.data = std::move(data);
  return program;
}

at::Tensor random_ids(at::IntArrayRef sizes, int64_t count, uint64_t seed) {
  return ((random_tensor(sizes, seed) + 1) * 0.5 * static_cast<double>(count))
      .floor()
      .clamp(0, count - 1)
      .to(at::kLong);
}

// ---- an MLP ----

struct MlpImpl : nn::Module {
  MlpImpl() : up(8, 12), down(12, 8) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
  nn::Linear up, down;
};

Program mlp() {
  return program_of<MlpImpl>(
      [](MlpImpl& net, const auto& data) { return torch::mse_loss(net.forward(data[0]), data[1]); },
      {random_tensor({6, 8}, 1), random_tensor({6, 8}, 2)});
}

const Layouts kMlpByTp{{"up.*", {{"tp", Shard{0}}}}, {"down.weight", {{"tp", Shard{1}}}}};

TEST(GlobalModules, Mlp) {
  for (const int n : {1, 2, 3, 4}) EXPECT_EQ(expect_same_training(mlp(), {{{"tp", n}}, kMlpByTp, {}}), "");
  Program with_sgd = mlp();
  with_sgd.optimizer = Program::Optimizer::sgd;
  EXPECT_EQ(expect_same_training(with_sgd, {{{"tp", 3}}, kMlpByTp, {}}), "");
  const Layout by_row{{"dp", Shard{0}}};
  EXPECT_EQ(expect_same_training(mlp(), {{{"dp", 3}}, {}, {by_row, by_row}}), "");
  EXPECT_EQ(expect_same_training(mlp(), {{{"dp", 4}}, {{"*", by_row}}, {by_row, by_row}}), "");
  EXPECT_EQ(expect_same_training(mlp(), {{{"dp", 2}, {"tp", 2}},
                                         {{"*", by_row},
                                          {"up.*", {{"tp", Shard{0}}, {"dp", Shard{0}}}},
                                          {"down.weight", {{"tp", Shard{1}}, {"dp", Shard{0}}}}},
                                         {by_row, by_row}}),
            "");
}

// ---- GPT of torch::nn parts ----

template <bool is_fused, bool has_sdpa>
struct AttentionImpl : nn::Module {
  static constexpr int64_t kWidth = 12;
  static constexpr int64_t kHeads = 6;
  AttentionImpl() {
    if (is_fused) {
      qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
    } else {
      q = register_module("q", nn::Linear(kWidth, kWidth));
      k = register_module("k", nn::Linear(kWidth, kWidth));
      v = register_module("v", nn::Linear(kWidth, kWidth));
    }
    out = register_module("out", nn::Linear(kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& x) {
    const int64_t rows = x.size(0), length = x.size(1);
    std::vector<at::Tensor> parts;
    if (is_fused) {
      parts = qkv(x).chunk(3, -1);
    } else {
      parts = {q(x), k(x), v(x)};
    }
    for (at::Tensor& part : parts) part = part.view({rows, length, kHeads, kWidth / kHeads}).transpose(1, 2);
    at::Tensor result;
    if (has_sdpa) {
      result = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    } else {
      const at::Tensor scores = parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(double(kWidth / kHeads));
      result = scores.softmax(-1).matmul(parts[2]);
    }
    return out(result.transpose(1, 2).reshape({rows, length, kWidth}));
  }
  nn::Linear qkv{nullptr}, q{nullptr}, k{nullptr}, v{nullptr}, out{nullptr};
};

template <bool is_fused, bool has_sdpa>
struct GptImpl : nn::Module {
  struct BlockImpl : nn::Module {
    BlockImpl() : norm1(nn::LayerNormOptions({12})), norm2(nn::LayerNormOptions({12})), up(12, 24), down(24, 12) {
      register_module("norm1", norm1);
      attention = register_module("attention", std::make_shared<AttentionImpl<is_fused, has_sdpa>>());
      register_module("norm2", norm2);
      register_module("up", up);
      register_module("down", down);
    }
    at::Tensor forward(at::Tensor x) {
      x = x + attention->forward(norm1(x));
      return x + down(torch::gelu(up(norm2(x))));
    }
    nn::LayerNorm norm1, norm2;
    std::shared_ptr<AttentionImpl<is_fused, has_sdpa>> attention;
    nn::Linear up, down;
  };
  GptImpl()
      : token(30, 12), position(5, 12), norm(nn::LayerNormOptions({12})), head(nn::LinearOptions(12, 30).bias(false)) {
    register_module("token", token);
    register_module("position", position);
    for (int i = 0; i < 2; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<BlockImpl>()));
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) {
    at::Tensor x = token(ids) + position->weight;
    for (auto& block : blocks) x = block->forward(x);
    return F::cross_entropy(head(norm(x)).view({-1, 30}), labels.view({-1}));
  }
  nn::Embedding token, position;
  std::vector<std::shared_ptr<BlockImpl>> blocks;
  nn::LayerNorm norm;
  nn::Linear head;
};

template <bool is_fused, bool has_sdpa>
Program gpt() {
  using Net = GptImpl<is_fused, has_sdpa>;
  Program program = program_of<Net>([](Net& net, const auto& data) { return net.loss(data[0], data[1]); },
                                    {random_ids({4, 5}, 30, 1), random_ids({4, 5}, 30, 2)});
  program.clip = 0.5;
  return program;
}

/// Megatron's layouts on `axis`, with the vocabulary split too.
Layouts megatron(const std::string& axis, const std::vector<Layout::Entry>& with = {}) {
  const auto on = [&](Shard shard) {
    std::vector<Layout::Entry> entries{{axis, std::move(shard)}};
    entries.insert(entries.end(), with.begin(), with.end());
    return Layout(std::move(entries));
  };
  return {{"*.attention.q.*", on({0})},        {"*.attention.k.*", on({0})}, {"*.attention.v.*", on({0})},
          {"*.attention.out.weight", on({1})}, {"*.up.*", on({0})},          {"*.down.weight", on({1})},
          {"token.weight", on({0})},           {"head.weight", on({0})}};
}

Layouts megatron_fused(const std::string& axis) {
  Layouts layouts = megatron(axis);
  layouts.erase(layouts.begin(), layouts.begin() + 3);
  layouts.push_back({"*.attention.qkv.*", {{axis, Shard{.dim = 0, .blocks = 3}}}});
  return layouts;
}

const Layout kByRow{{"dp", Shard{0}}};

TEST(GlobalModules, GptUnderTensorParallelism) {
  for (const int n : {2, 3}) {
    EXPECT_EQ(expect_same_training(gpt<false, true>(), {{{"tp", n}}, megatron("tp"), {}}), "");
    EXPECT_EQ(expect_same_training(gpt<true, true>(), {{{"tp", n}}, megatron_fused("tp"), {}}), "");
    EXPECT_EQ(expect_same_training(gpt<false, false>(), {{{"tp", n}}, megatron("tp"), {}}), "");
    EXPECT_EQ(expect_same_training(gpt<true, false>(), {{{"tp", n}}, megatron_fused("tp"), {}}), "");
  }
}

TEST(GlobalModules, GptWithRowsAndParametersOverRanks) {
  const Layouts zero{{"*", {{"dp", Shard{0}}}}};
  EXPECT_EQ(expect_same_training(gpt<false, true>(), {{{"dp", 2}}, {}, {kByRow, kByRow}}), "");
  EXPECT_EQ(expect_same_training(gpt<false, true>(), {{{"dp", 2}}, zero, {kByRow, kByRow}}), "");
  EXPECT_EQ(expect_same_training(gpt<true, false>(), {{{"dp", 2}}, zero, {kByRow, kByRow}}), "");
  EXPECT_EQ(expect_same_training(gpt<false, true>(), {{{"dp", 2}, {"tp", 2}}, megatron("tp"), {kByRow, kByRow}}), "");
  EXPECT_EQ(expect_same_training(gpt<true, false>(), {{{"dp", 2}, {"tp", 2}}, megatron_fused("tp"), {kByRow, kByRow}}),
            "");
  Layouts both = megatron("tp", {{"dp", Shard{0}}});
  both.insert(both.begin(), {"*", {{"dp", Shard{0}}}});
  EXPECT_EQ(expect_same_training(gpt<false, true>(), {{{"dp", 2}, {"tp", 2}}, both, {kByRow, kByRow}}), "");
}

struct StackImpl : nn::Module {
  using Block = GptImpl<false, true>::BlockImpl;
  explicit StackImpl(int num_blocks) {
    for (int i = 0; i < num_blocks; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    }
    to(at::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block->forward(x);
    return x;
  }
  std::vector<std::shared_ptr<Block>> blocks;
};

/// Megatron's four all-reduces a block and nothing else: two of the forward pass, two of the backward pass.
TEST(GlobalModules, ABlockSendsWhatMegatronSends) {
  constexpr int64_t kRows = 4, kLength = 5, kWidth = 12;
  for (const int n : {2, 3}) {
    on_mesh({{"tp", n}}, [&](const Mesh& mesh) {
      const GlobalContext context(mesh, {.is_strict = true});
      std::vector<int64_t> sent;
      for (const int num_blocks : {1, 2, 3}) {
        StackImpl net(num_blocks);
        for (const at::Tensor& parameter : net.parameters()) parameter.detach().fill_(0.1);
        Layouts layouts = megatron("tp");
        layouts.resize(6);  // without the vocabulary
        distribute_module(net, layouts, context);
        const int64_t before = mesh.bytes_sent();
        net.forward(distribute(at::ones({kRows, kLength, kWidth}, at::kDouble), {}, context)).sum().backward();
        sent.push_back(mesh.bytes_sent() - before);
      }
      const int64_t activations = kRows * kLength * kWidth * static_cast<int64_t>(sizeof(double));
      EXPECT_EQ(sent[1] - sent[0], 4 * 2 * (n - 1) * activations / n);
      EXPECT_EQ(sent[2] - sent[1], sent[1] - sent[0]);
    });
  }
}

// ---- what else torch::nn has ----

struct ResNetImpl : nn::Module {
  struct BlockImpl : nn::Module {
    BlockImpl(int64_t in, int64_t out, int64_t stride)
        : conv1(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
          conv2(nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
          norm1(out),
          norm2(out) {
      register_module("conv1", conv1);
      register_module("norm1", norm1);
      register_module("conv2", conv2);
      register_module("norm2", norm2);
      if (stride == 1 && in == out) return;
      shortcut = register_module("shortcut", nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride)));
    }
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor y = torch::relu(norm1(conv1(x)));
      y = norm2(conv2(y));
      y += shortcut.is_empty() ? x : shortcut(x);
      return y.relu_();
    }
    nn::Conv2d conv1, conv2;
    nn::BatchNorm2d norm1, norm2;
    nn::Conv2d shortcut{nullptr};
  };
  ResNetImpl() : stem(nn::Conv2dOptions(3, 6, 3).padding(1)), pool(nn::MaxPool2dOptions(2)), head(12, 4) {
    register_module("stem", stem);
    block1 = register_module("block1", std::make_shared<BlockImpl>(6, 6, 1));
    block2 = register_module("block2", std::make_shared<BlockImpl>(6, 12, 2));
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = pool(torch::relu(stem(x)));
    y = block2->forward(block1->forward(y));
    return head(at::adaptive_avg_pool2d(y, {1, 1}).flatten(1));
  }
  nn::Conv2d stem;
  nn::MaxPool2d pool;
  std::shared_ptr<BlockImpl> block1, block2;
  nn::Linear head;
};

TEST(GlobalModules, ResNet) {
  const Program program = program_of<ResNetImpl>(
      [](ResNetImpl& net, const auto& data) { return F::cross_entropy(net.forward(data[0]), data[1]); },
      {random_tensor({6, 3, 8, 8}, 1), random_ids({6}, 4, 2)});
  const Layouts columns{{"*.conv1.weight", {{"tp", Shard{0}}}},
                        {"*.norm1.*", {{"tp", Shard{0}}}},
                        {"*.norm1.num_batches_tracked", {}},
                        {"*.conv2.weight", {{"tp", Shard{1}}}}};
  const double tolerance = 1e-11;  // batch norm of few rows amplifies the rounding of its statistics
  EXPECT_EQ(expect_same_training(program, {{{"dp", 2}}, {}, {kByRow, kByRow}}, tolerance), "");
  EXPECT_EQ(expect_same_training(
                program, {{{"dp", 3}}, {{"*", {{"dp", Shard{0}}}}, {"*.num_batches_tracked", {}}}, {kByRow, kByRow}},
                tolerance),
            "");
  EXPECT_EQ(expect_same_training(program, {{{"tp", 2}}, columns, {}}, tolerance), "");
  EXPECT_EQ(expect_same_training(program, {{{"dp", 2}, {"tp", 2}}, columns, {kByRow, kByRow}}, tolerance), "");
}

template <typename Cells>
struct RecurrentImpl : nn::Module {
  RecurrentImpl() : embedding(20, 8), cells(8, 6), head(6, 3) {
    register_module("embedding", embedding);
    register_module("cells", cells);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor out = std::get<0>(cells(embedding(ids).transpose(0, 1)));
    return head(out[-1]);
  }
  nn::Embedding embedding;
  Cells cells;
  nn::Linear head;
};

template <typename Cells>
Program classifier() {
  using Net = RecurrentImpl<Cells>;
  return program_of<Net>([](Net& net, const auto& data) { return F::cross_entropy(net.forward(data[0]), data[1]); },
                         {random_ids({6, 5}, 20, 1), random_ids({6}, 3, 2)});
}

TEST(GlobalModules, RecurrentClassifiers) {
  const Layouts zero{{"*", {{"dp", Shard{0}}}}};
  const Layouts split{{"embedding.weight", {{"tp", Shard{0}}}}, {"head.weight", {{"tp", Shard{0}}}}};
  for (const Program& program : {classifier<nn::GRU>(), classifier<nn::LSTM>()}) {
    EXPECT_EQ(expect_same_training(program, {{{"dp", 2}}, {}, {kByRow, kByRow}}), "");
    EXPECT_EQ(expect_same_training(program, {{{"dp", 3}}, zero, {kByRow, kByRow}}), "");
    EXPECT_EQ(expect_same_training(program, {{{"dp", 2}, {"tp", 2}}, split, {kByRow, kByRow}}), "");
  }
}

struct TranslatorImpl : nn::Module {
  TranslatorImpl() : transformer(nn::TransformerOptions(12, 6, 1, 1).dim_feedforward(24).dropout(0)) {
    register_module("transformer", transformer);
  }
  nn::Transformer transformer;
};

Layouts transformer_layouts() {
  return {{"*.in_proj_weight", {{"tp", Shard{.dim = 0, .blocks = 3}}}},
          {"*.in_proj_bias", {{"tp", Shard{.dim = 0, .blocks = 3}}}},
          {"*.out_proj.weight", {{"tp", Shard{1}}}},
          {"*.linear1.*", {{"tp", Shard{0}}}},
          {"*.linear2.weight", {{"tp", Shard{1}}}}};
}

TEST(GlobalModules, Transformer) {
  const Program program = program_of<TranslatorImpl>(
      [](TranslatorImpl& net, const auto& data) {
        return torch::mse_loss(net.transformer(data[0], data[1], at::Tensor(), data[3]), data[2]);
      },
      {random_tensor({5, 4, 12}, 1), random_tensor({6, 4, 12}, 2), random_tensor({6, 4, 12}, 3),
       at::full({6, 6}, -INFINITY, at::kDouble).triu(1)});
  const Layout by_batch{{"dp", Shard{1}}};
  const std::vector<Layout> rows{by_batch, by_batch, by_batch, {}};
  EXPECT_EQ(expect_same_training(program, {{{"tp", 2}}, transformer_layouts(), {}}), "");
  EXPECT_EQ(expect_same_training(program, {{{"tp", 3}}, transformer_layouts(), {}}), "");
  EXPECT_EQ(expect_same_training(program, {{{"dp", 2}, {"tp", 2}}, transformer_layouts(), rows}), "");
  EXPECT_EQ(expect_same_training(program, {{{"dp", 2}}, {{"*", {{"dp", Shard{0}}}}}, rows}), "");
}

struct VisionImpl : nn::Module {
  VisionImpl()
      : patches(nn::Conv2dOptions(3, 12, 4).stride(4)),
        layer(nn::TransformerEncoderLayerOptions(12, 6).dim_feedforward(24).dropout(0)),
        head(12, 4) {
    register_module("patches", patches);
    positions = register_parameter("positions", at::randn({5, 1, 12}));
    token = register_parameter("token", at::randn({1, 1, 12}));
    register_module("layer", layer);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor parts = patches(x).flatten(2).permute({2, 0, 1});
    const at::Tensor all = at::cat({token.expand({1, parts.size(1), 12}), parts}, 0) + positions;
    return head(layer(all)[0]);
  }
  nn::Conv2d patches;
  at::Tensor positions, token;
  nn::TransformerEncoderLayer layer;
  nn::Linear head;
};

TEST(GlobalModules, VisionTransformer) {
  const Program program = program_of<VisionImpl>(
      [](VisionImpl& net, const auto& data) { return F::cross_entropy(net.forward(data[0]), data[1]); },
      {random_tensor({4, 3, 8, 8}, 1), random_ids({4}, 4, 2)});
  EXPECT_EQ(expect_same_training(program, {{{"tp", 2}}, transformer_layouts(), {}}), "");
  EXPECT_EQ(expect_same_training(program, {{{"tp", 3}}, transformer_layouts(), {}}), "");
  EXPECT_EQ(expect_same_training(program, {{{"dp", 2}}, {}, {kByRow, kByRow}}), "");
  EXPECT_EQ(expect_same_training(program, {{{"dp", 2}, {"tp", 2}}, transformer_layouts(), {kByRow, kByRow}}), "");
}

/// Naumov et al., arXiv 1906.00091.
struct DlrmImpl : nn::Module {
  DlrmImpl()
      : bottom(nn::Linear(5, 8), nn::ReLU(), nn::Linear(8, 6)), top(nn::Linear(12, 8), nn::ReLU(), nn::Linear(8, 1)) {
    register_module("bottom", bottom);
    for (int i = 0; i < 3; ++i)
      tables.push_back(register_module("table" + std::to_string(i), nn::Embedding(10 + i, 6)));
    register_module("top", top);
  }
  at::Tensor forward(const at::Tensor& dense, const at::Tensor& sparse) {
    std::vector<at::Tensor> features{bottom->forward(dense)};
    for (size_t i = 0; i < tables.size(); ++i) features.push_back(tables[i](sparse.select(1, static_cast<int64_t>(i))));
    const at::Tensor all = at::stack(features, 1);
    const at::Tensor products = at::bmm(all, all.transpose(1, 2));
    std::vector<at::Tensor> inputs{features[0]};
    for (int i = 1; i < 4; ++i) {
      for (int j = 0; j < i; ++j) inputs.push_back(products.select(1, i).select(1, j).unsqueeze(1));
    }
    return top->forward(at::cat(inputs, 1)).squeeze(1);
  }
  nn::Sequential bottom;
  std::vector<nn::Embedding> tables;
  nn::Sequential top;
};

TEST(GlobalModules, Dlrm) {
  const Program program = program_of<DlrmImpl>(
      [](DlrmImpl& net, const auto& data) {
        return F::binary_cross_entropy_with_logits(net.forward(data[0], data[1]), data[2]);
      },
      {random_tensor({6, 5}, 1), random_ids({6, 3}, 10, 2), (random_tensor({6}, 3) > 0).to(at::kDouble)});
  const std::vector<Layout> rows{kByRow, kByRow, kByRow};
  EXPECT_EQ(expect_same_training(program, {{{"dp", 2}}, {{"table*", {{"dp", Shard{0}}}}}, rows}), "");
  EXPECT_EQ(expect_same_training(program, {{{"dp", 3}}, {{"table*", {{"dp", Shard{1}}}}}, rows}), "");
  EXPECT_EQ(expect_same_training(program, {{{"dp", 2}, {"tp", 2}},
                                           {{"table*", {{"tp", Shard{0}}}},
                                            {"bottom.0.*", {{"tp", Shard{0}}}},
                                            {"bottom.2.weight", {{"tp", Shard{1}}}}},
                                           rows}),
            "");
}

}  // namespace
}  // namespace caravan::testing
