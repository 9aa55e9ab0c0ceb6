// Modules of torch::nn as a user writes them, spread over ranks by layouts alone, against one process.
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn.h>

#include "tests/global/nets.h"

namespace caravan::testing {
namespace {

namespace F = torch::nn::functional;
namespace nn = torch::nn;
using Layouts = std::vector<NamedLayout>;

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
  EXPECT_EQ(expect_same_training(in_fp32(mlp()), {{{"tp", 2}}, kMlpByTp, {}}, kFp32Tolerance), "");
  EXPECT_EQ(
      expect_same_training(in_fp32(with_sgd), {{{"dp", 2}, {"tp", 2}}, kMlpByTp, {by_row, by_row}}, kFp32Tolerance),
      "");
}

// ---- GPT of torch::nn parts ----

const Layout kByRow{{"dp", Shard{0}}};

TEST(GlobalModules, GptUnderTensorParallelism) {
  for (const int n : {1, 2, 3}) {
    EXPECT_EQ(expect_same_training(gpt<false, true>(), {{{"tp", n}}, megatron("tp"), {}}), "");
    EXPECT_EQ(expect_same_training(gpt<true, true>(), {{{"tp", n}}, megatron_fused("tp"), {}}), "");
    EXPECT_EQ(expect_same_training(gpt<false, false>(), {{{"tp", n}}, megatron("tp"), {}}), "");
    EXPECT_EQ(expect_same_training(gpt<true, false>(), {{{"tp", n}}, megatron_fused("tp"), {}}), "");
  }
  EXPECT_EQ(expect_same_training(in_fp32(gpt<true, true>()), {{{"tp", 2}}, megatron_fused("tp"), {}}, kFp32Tolerance),
            "");
  EXPECT_EQ(expect_same_training(in_fp32(gpt<false, false>()), {{{"tp", 3}}, megatron("tp"), {}}, kFp32Tolerance), "");
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
  EXPECT_EQ(expect_same_training(in_fp32(gpt<false, true>()), {{{"dp", 2}, {"tp", 2}}, both, {kByRow, kByRow}},
                                 kFp32Tolerance),
            "");
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
  EXPECT_EQ(expect_same_training(in_fp32(program), {{{"dp", 2}, {"tp", 2}}, columns, {kByRow, kByRow}}, kFp32Tolerance),
            "");
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
  for (const Program& program : {in_fp32(classifier<nn::GRU>()), in_fp32(classifier<nn::LSTM>())}) {
    EXPECT_EQ(expect_same_training(program, {{{"dp", 2}, {"tp", 2}}, split, {kByRow, kByRow}}, kFp32Tolerance), "");
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
  EXPECT_EQ(
      expect_same_training(in_fp32(program), {{{"dp", 2}, {"tp", 2}}, transformer_layouts(), rows}, kFp32Tolerance),
      "");
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
  EXPECT_EQ(expect_same_training(in_fp32(program), {{{"dp", 2}, {"tp", 2}}, transformer_layouts(), {kByRow, kByRow}},
                                 kFp32Tolerance),
            "");
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
  EXPECT_EQ(
      expect_same_training(in_fp32(program), {{{"dp", 2}}, {{"table*", {{"dp", Shard{0}}}}}, rows}, kFp32Tolerance),
      "");
}

}  // namespace
}  // namespace caravan::testing
