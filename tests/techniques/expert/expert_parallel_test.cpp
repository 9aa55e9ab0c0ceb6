#include "caravan/techniques/expert/expert_parallel.h"

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/comm/tensor.h"
#include "caravan/nn/experts/experts.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::expert_parallel_test {
namespace {

constexpr int64_t kTokens = 12, kWidth = 8, kHidden = 5, kExperts = 8;

ModelConfig config(int64_t top_k) {
  return {.arch = Architecture::llama(),
          .width = kWidth,
          .heads = 2,
          .vocabulary = 11,
          .hidden = kHidden,
          .moe = {.experts = kExperts, .top_k = top_k}};
}

/// The experts of this rank of the whole tables, of which a rank of `tensor` has a part.
void materialise(Experts& experts, const Mesh& mesh) {
  std::vector<Layout::Entry> cut;
  for (const MeshAxis& axis : mesh.axes()) cut.emplace_back(axis.name(), Shard{0});
  std::map<std::string, Layout> layouts;
  for (const std::string& name : expert_tables(Architecture::llama())) layouts[name] = Layout(cut);
  experts.materialise(mesh, layouts, {.seed = 3});
}

struct Ran {
  at::Tensor y;
  at::Tensor dx;
  at::Tensor dgates;
  std::vector<at::Tensor> tables;  ///< gradients
};

Ran ran(Experts& experts, const at::Tensor& x_in, const at::Tensor& gates_in, const at::Tensor& choice,
        const at::Tensor& dy) {
  const at::Tensor x = x_in.clone().requires_grad_(), gates = gates_in.clone().requires_grad_();
  const at::Tensor y = experts.run({x, gates, choice}, {}).front();
  y.backward(dy);
  Ran result{y.detach(), x.grad(), gates.grad(), {}};
  for (Parameter* parameter : experts.parameters()) result.tables.push_back(parameter->unsharded().grad().clone());
  return result;
}

struct Choice {
  const char* name;
  std::function<int64_t(int64_t copy)> expert;
  int64_t top_k = 2;
};

const std::vector<Choice>& choices() {
  static const std::vector<Choice> all{
      {"spread", [](int64_t copy) { return copy * 5 % kExperts; }},
      {"all to the first", [](int64_t) { return 0; }, 1},
      {"all to the last", [](int64_t) { return kExperts - 1; }, 1},
      {"two of them", [](int64_t copy) { return copy % 2 == 0 ? 6 : 1; }},
      {"some dropped", [](int64_t copy) { return copy % 3 == 0 ? -1 : copy % kExperts; }},
      {"all dropped", [](int64_t) { return -1; }},
  };
  return all;
}

/// For any placement of the experts and any choice of them: the values, and the gradients of tokens, gates and tables.
TEST(ExpertParallel, BringsTokensToTheirExpertsAndBack) {
  for (const std::vector<AxisSize>& axes :
       {Axes{{"ep", 1}}, Axes{{"ep", 2}}, Axes{{"ep", 4}}, Axes{{"ep", 2}, {"tp", 2}}, Axes{{"ep", 2}, {"tp", 4}}}) {
    for (const Choice& what : choices()) {
      SCOPED_TRACE(what.name);
      on_mesh(axes, [&](const Mesh& mesh) {
        const int64_t k = what.top_k;
        const at::Tensor x = random_tensor({2 * kTokens, 1, kWidth}, 1).to(at::kFloat);
        const at::Tensor gates = random_tensor({2 * kTokens, 1, k}, 2).to(at::kFloat);
        const at::Tensor dy = random_tensor({2 * kTokens, 1, kWidth}, 3).to(at::kFloat);
        const at::Tensor choice = at::empty({2 * kTokens, 1, k}, at::kLong);
        for (int64_t i = 0; i < choice.numel(); ++i) choice.mutable_data_ptr<int64_t>()[i] = what.expert(i);

        Experts whole(config(k)), part(config(k));
        std::vector<AxisSize> alone;
        for (const AxisSize& axis : axes) alone.push_back({axis.name, 1});
        materialise(whole, Mesh::create(make_record_world(0, 1), alone));
        const Ran want = ran(whole, x, gates, choice, dy);

        materialise(part, mesh);
        const MeshAxis ep = mesh["ep"];
        const auto undo = part.take_part(ep.coord(), ep.size());
        if (mesh.has("tp")) part.take_part(mesh["tp"].coord(), mesh["tp"].size());
        const Hook hook = part.add_hook(exchange_tokens(ep));
        const int64_t mine = 2 * kTokens / ep.size(), first = ep.coord() * mine;
        const auto cut = [&](const at::Tensor& all) { return all.narrow(0, first, mine).contiguous(); };
        Ran got = ran(part, cut(x), cut(gates), cut(choice), cut(dy));
        for (at::Tensor* sum : {&got.y, &got.dx, &got.dgates}) {  // a tensor rank has a summand
          if (mesh.has("tp")) all_reduce_async(mesh["tp"].comm(), *sum, *sum, ReduceOp::sum, "summands").wait();
        }
        EXPECT_TRUE(is_close(got.y, cut(want.y), 1e-6));
        EXPECT_TRUE(is_close(got.dx, cut(want.dx), 1e-6));
        EXPECT_TRUE(is_close(got.dgates, cut(want.dgates), 1e-6));
        for (size_t i = 0; i < got.tables.size(); ++i) {
          const at::Tensor all = want.tables[i].reshape({kExperts, -1});
          const at::Tensor own = got.tables[i].reshape({part.count(), -1});
          EXPECT_TRUE(is_close(own, all.narrow(0, part.first(), part.count()), 1e-6)) << i;
        }
      });
    }
  }
}

TEST(ExpertParallel, RefusesWhatDoesNotDivide) {
  on_mesh({{"ep", 3}}, [](const Mesh& mesh) {
    const std::string text = message_of<ShapeError>([&] { expert_parallel(config(2), mesh, "ep"); });
    EXPECT_NE(text.find("8 experts"), std::string::npos) << text;
    EXPECT_NE(text.find("2"), std::string::npos) << text;
    ModelConfig dense = config(2);
    dense.moe.experts = 0;
    EXPECT_THROW(expert_parallel(dense, mesh, "ep"), UsageError);
  });
}

}  // namespace
}  // namespace caravan::testing::expert_parallel_test
