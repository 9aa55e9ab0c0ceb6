/// Continues a text with a model that all ranks share: each has its part of every layer in memory.
///   caravan run build/release/examples/example_13_generate FOLDER "Call me" --ranks 4
/// FOLDER: a Hugging Face model, a run or a checkpoint. The text does not depend on the number of ranks.

#include <cstdio>

#include "caravan/caravan.h"
#include "caravan/session/load.h"

using namespace caravan;

void continue_text(const char* folder, const char* prompt) {
  Session session;  // the first thing: processes, threads
  LanguageModel model = load(folder, session);
  const std::string text = model.generate(prompt, {.num_tokens = 32, .sampling = {.temperature = 0}});
  if (session.is_main()) std::printf("%s%s\n", prompt, text.c_str());
}

int main(int argc, char** argv) {
  return run_program([&] { continue_text(argc > 1 ? argv[1] : "runs/default-1", argc > 2 ? argv[2] : "Call me"); });
}
