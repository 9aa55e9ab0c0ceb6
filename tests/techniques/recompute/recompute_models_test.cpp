#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/record.h"
#include "caravan/engine/engine.h"
#include "caravan/models/model.h"
#include "caravan/prove/trace.h"
#include "caravan/recipe/recipe.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/recompute/recompute.h"
#include "caravan/techniques/technique_body.h"
#include "tests/cost/formulas/memory.h"
#include "tests/data/support.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::recompute_models_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Dtypes of the sharded parameters and of the arithmetic: fp64, fp32, bf16.
constexpr std::pair<at::ScalarType, at::ScalarType> kDtypes[] = {
    {at::kDouble, at::kFloat}, {at::kFloat, at::kFloat}, {at::kFloat, at::kBFloat16}};

ProveCase case_of(Architecture kind, int ranks, const Setting& choice) {
  const bool is_gpt2 = kind == Architecture::gpt2();
  return {.name = "ddp with recompute " + choice.name(),
          .model = shrunken({.arch = kind,
                             .heads = 4,
                             .kv_heads = is_gpt2 ? 0 : 2,
                             .tie_embeddings = is_gpt2,
                             .dropout = is_gpt2 ? 0.1 : 0}),
          .axes = {{"dp", ranks}},
          .arrange = [choice](Model& model, Mesh& mesh) {
            Strategy strategy = ddp(model, mesh, {.bucket_bytes = 2048});
            add_around(choice, strategy, model);
            return strategy;
          }};
}

std::vector<Trace> traces_of(const ProveCase& what) {
  std::vector<Trace> ranks(static_cast<size_t>(what.axes.front().size));
  run_thread_ranks(static_cast<int>(ranks.size()), [&](const std::shared_ptr<Communicator>& world) {
    ranks[static_cast<size_t>(world->rank())] = trace_on_ranks(what, world);
  });
  return ranks;
}

bool have_same_bits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  return std::ranges::equal(got, want, [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); });
}

class RecomputeProof : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, RecomputeProof, ::testing::Values(1, 2, 3));

/// And losses, norms, gradients and parameters are those without recompute bit for bit: the same summands in the same
/// order. Attention weights and the stream are dropped at random.
TEST_P(RecomputeProof, HoldsAndChangesNoBit) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const int num_micro_batches : {1, 3}) {
      for (const auto& [dtype, compute_dtype] : kDtypes) {
        std::vector<Trace> want;
        for (const std::string recomputed : {"none", "selective", "full"}) {
          ProveCase what = case_of(kind, GetParam(), recompute_of(recomputed));
          what.num_micro_batches = num_micro_batches;
          what.dtype = dtype;
          what.compute_dtype = compute_dtype;
          SCOPED_TRACE(what.to_string());
          const Proof proof = prove(what);
          EXPECT_TRUE(proof.holds()) << proof.to_string();
          const std::vector<Trace> got = traces_of(what);
          if (want.empty()) want = got;
          for (size_t rank = 0; rank < got.size(); ++rank) {
            for (size_t step = 0; step < got[rank].steps.size(); ++step) {
              const StepTrace& ours = got[rank].steps[step];
              const StepTrace& theirs = want[rank].steps[step];
              EXPECT_EQ(ours.loss, theirs.loss);
              EXPECT_EQ(ours.grad_norm, theirs.grad_norm);
              EXPECT_TRUE(have_same_bits(ours.gradients, theirs.gradients)) << "step " << step;
              EXPECT_TRUE(have_same_bits(ours.after, theirs.after)) << "step " << step;
            }
          }
        }
      }
    }
  }
}

/// Also the embedding, which has no input with a gradient, and the head, whose forward makes gradients.
TEST(RecomputeModel, AnyModuleCanBeNamed) {
  for (const std::vector<std::string>& patterns : std::vector<std::vector<std::string>>{
           {"embedding", "blocks.1", "head"}, {"*.mlp", "*.attention_norm"}, {"*.attention", "blocks.0.mlp.up"}}) {
    ProveCase what = case_of(Architecture::gpt2(), 2, recompute_of(patterns));
    what.num_micro_batches = 2;
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << what.name << ": " << proof.to_string();
  }
}

TEST(RecomputeModel, RefusesACoreInsideABlock) {
  needs({"modules"});
  const auto prove_with = [](const Setting& choice) { prove(case_of(Architecture::gpt2(), 1, choice)); };
  EXPECT_THAT(message_of<UsageError>([&] {
                prove_with(recompute_of(std::vector<std::string>{"blocks.1", "*.attention.core"}));
              }),
              HasSubstr("blocks.1.attention.core: is inside blocks.1, which is recomputed as a whole"));
}

/// The experts compute with the parameters of their adapters.
TEST(RecomputeModel, RefusesWhatIsNotRunByItself) {
  needs({"modules"});
  ProveCase what =
      case_of(Architecture::gpt2(), 1, recompute_of(std::vector<std::string>{"head", "*.experts.lora.up"}));
  what.model.moe = {.experts = 2};
  what.model.lora = {.rank = 2, .targets = {"experts.*"}};
  EXPECT_THAT(message_of<UsageError>([&] { prove(what); }),
              AllOf(HasSubstr("blocks.0.mlp.experts.lora.up is not run by itself"), HasSubstr("'*.mlp.experts'")));
}

/// A recipe is proved with its own number of layers if it names some of them.
TEST(RecomputeModel, ARecipeIsProvedWithItsRecompute) {
  for (const char* choice : {"\"full\"", "\"selective\"", "[\"blocks.2\", \"blocks.0.mlp\"]"}) {
    const std::string key = std::string("memory.recompute=") + choice;
    needs_chosen({key});
    const ProveCase what = prove_case(parse_recipe("", "test", {key}));
    EXPECT_THAT(what.name, HasSubstr("recompute"));
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << what.name << ": " << proof.to_string();
  }
}

// ---- memory ----

struct Bytes {
  double kept;  ///< from forward to backward, of all layers and the head
  double peak;  ///< of the backward
};

Bytes measured_bytes(const MemoryShape& shape, const Setting& choice) {
  MemoryCounter& counter = MemoryCounter::current();
  Mesh mesh = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  Model model(shape.model);
  Strategy strategy = whole_model(model, mesh);
  strategy.compute_dtype = shape.compute_bytes == 2 ? at::kBFloat16 : at::kFloat;
  add_around(choice, strategy, model);
  Engine engine(model, mesh, strategy);
  const at::Tensor ids = at::randint(shape.model.vocabulary, {shape.sequences, shape.model.context}, at::kLong);
  Bytes bytes{};
  for (int step = 0; step < 2; ++step) {  // the first one allocates buffers
    engine.begin_step();
    const int64_t before = counter.live_bytes();
    const at::Tensor loss = model.run({ids, ids}, {.loss_scale = 1e-3})[0];
    bytes.kept = static_cast<double>(counter.live_bytes() - before);
    counter.reset_peak();
    loss.backward();
    bytes.peak = static_cast<double>(counter.peak_bytes() - before);
    engine.finish_step();
  }
  return bytes;
}

/// Saved bytes decrease by the formula's amount, within 1 %, which covers the graph itself. With whole blocks
/// the peak of backward decreases too.
void keeps_what_the_formula_says(Architecture kind, const MoeConfig& moe) {
  for (const double dropout : {0.0, 0.1}) {
    for (const int64_t compute_bytes : {4, 2}) {
      MemoryShape shape{.model = {.arch = kind,
                                  .layers = 6,
                                  .width = 96,
                                  .heads = 6,
                                  .kv_heads = kind == Architecture::llama() ? 2 : 0,
                                  .context = 128,
                                  .vocabulary = 300,
                                  .dropout = dropout,
                                  .moe = moe},
                        .sequences = 4,
                        .rows = 4,
                        .compute_bytes = compute_bytes};
      const Bytes none = measured_bytes(shape, recompute_of("none"));
      const double kept = kept_activation_bytes(shape);
      for (const std::string recomputed : {"selective", "full"}) {
        const Setting choice = recompute_of(recomputed);
        count_recomputed(shape, recomputed);
        const Bytes some = measured_bytes(shape, choice);
        SCOPED_TRACE(::testing::Message() << kind.name << ", " << choice.name() << ", dropout " << dropout << ", "
                                          << compute_bytes << " bytes: kept " << none.kept << " -> " << some.kept
                                          << ", peak " << none.peak << " -> " << some.peak);
        EXPECT_NEAR((none.kept - some.kept) / kept, 1 - kept_activation_bytes(shape) / kept, 0.01);
        if (recomputed == "full") {
          EXPECT_LT(some.peak, 0.6 * none.peak);
        }
      }
    }
  }
}

TEST(RecomputeModel, KeepsTheBytesOfTheFormula) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    keeps_what_the_formula_says(kind, {});
  }
}

TEST(RecomputeModel, KeepsTheBytesOfTheFormulaForExperts) {
  keeps_what_the_formula_says(Architecture::gpt2(), {.experts = 4, .top_k = 1, .shared_hidden = 64});
  keeps_what_the_formula_says(Architecture::llama(),
                              {.experts = 8, .top_k = 3, .shared_hidden = 32, .shared_gate = true});
}

}  // namespace
}  // namespace caravan::testing::recompute_models_test
