/// A training loop made of the library's parts, as in `caravan train`: text, tokens, a model, data parallelism, an
/// optimizer, a step, an evaluation, and generated text at the end. Two ranks, as threads of this process.

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/data/files/corpus.h"
#include "caravan/data/windows/train_windows.h"
#include "caravan/generate/generate.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/train/evaluation/evaluate.h"
#include "caravan/train/folder/run_state.h"

using namespace caravan;

constexpr int kRanks = 2;
constexpr int64_t kSteps = 60, kGlobalBatch = 8, kContext = 64;

int main(int argc, char** argv) {
  const Runtime runtime;
  const std::filesystem::path text = argc > 1 ? argv[1] : "data/moby_dick.txt";
  double first_loss = 0, bits_per_byte = 0;

  run_thread_ranks(kRanks, [&](const std::shared_ptr<Communicator>& world) {
    const Mesh mesh = Mesh::create(world, {{"dp", kRanks}});

    const auto cache = std::filesystem::temp_directory_path() / "caravan-example";
    const Corpus corpus(std::vector{text}, cache);
    const TextSplit split = corpus.split();  // the last tenth is for validation
    const Tokenizer tokenizer = Tokenizer::bytes();
    const TokenFile train = open_or_build(cache, split.train, tokenizer);
    const TokenFile validation = open_or_build(cache, split.validation, tokenizer);
    const TrainWindows train_windows({{&train}}, kContext, /*seed=*/1);

    const auto model =
        make_model({.layers = 2, .width = 64, .heads = 2, .context = kContext, .vocabulary = tokenizer.vocab_size()});
    // How the ranks share the work; the engine makes the weights and carries it out.
    Engine engine(*model, mesh, ddp(*model, mesh), {.seed = 1});
    AdamW optimizer(engine.state());
    const LearningRate rate{.lr = 5e-3, .warmup_steps = 10, .total_steps = kSteps};
    TrainStep train_step(engine, optimizer, {.seed = 1, .num_micro_batches = 2, .clip_norm = 1});
    const std::string schedule = to_string(engine.table(2));
    if (mesh.rank() == 0) fmt::print("one step: {}\n", schedule);

    for (int64_t step = 0; step < kSteps; ++step) {
      const TrainBatch batch = make_rank_batch(engine, train_windows, step, kGlobalBatch);  // this rank's rows
      const StepResult result = train_step.run(batch, step, rate.at(step));
      if (step == 0) first_loss = result.loss;
      if (mesh.rank() == 0 && step % 10 == 0) fmt::print("step {:2}: loss {:.3f}\n", step, result.loss);
    }

    const ValidationWindows windows(validation, kContext);
    const Evaluation evaluation = *evaluate(engine, windows, {.rows = 32});
    if (mesh.rank() != 0) return;
    bits_per_byte = evaluation.bits_per_byte;
    fmt::print("validation: {:.3f} bits per byte\nCall me", bits_per_byte);
    generate(*model, tokenizer, "Call me", 60, {}, [](std::string_view piece) {
      fmt::print("{}", piece);
      return true;
    });
    fmt::print("\n");
  });
  // An untrained model needs 8 bits per byte; letter frequencies alone give 4.4.
  return first_loss > 5 && bits_per_byte < 4.6 ? 0 : 1;
}
