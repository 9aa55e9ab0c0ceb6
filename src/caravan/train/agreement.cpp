#include "caravan/train/agreement.h"

#include <algorithm>
#include <elf.h>
#include <link.h>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/train/train.h"

namespace caravan {
namespace {

struct BuildId {
  uintptr_t address;  ///< of something in the object that is looked for
  std::string hex;
};

void read_notes(const char* note, size_t size, BuildId& id) {
  const char* end = note + size;
  const auto padded = [](size_t bytes) { return (bytes + 3) / 4 * 4; };
  while (note + sizeof(ElfW(Nhdr)) <= end) {
    const auto* header = reinterpret_cast<const ElfW(Nhdr)*>(note);
    const char* name = note + sizeof *header;
    const char* bytes = name + padded(header->n_namesz);
    if (header->n_type == NT_GNU_BUILD_ID && header->n_namesz == 4 && std::string_view(name, 3) == "GNU") {
      for (size_t i = 0; i < header->n_descsz; ++i) id.hex += fmt::format("{:02x}", static_cast<uint8_t>(bytes[i]));
      return;
    }
    note = bytes + padded(header->n_descsz);
  }
}

int look_at_object(dl_phdr_info* object, size_t, void* data) {
  auto& id = *static_cast<BuildId*>(data);
  const std::span headers(object->dlpi_phdr, object->dlpi_phnum);
  const bool is_it = std::ranges::any_of(headers, [&](const ElfW(Phdr) & header) {
    const uintptr_t begin = object->dlpi_addr + header.p_vaddr;
    return header.p_type == PT_LOAD && id.address >= begin && id.address < begin + header.p_memsz;
  });
  if (!is_it) return 0;
  for (const ElfW(Phdr) & header : headers) {
    if (header.p_type != PT_NOTE || !id.hex.empty()) continue;
    read_notes(reinterpret_cast<const char*>(object->dlpi_addr + header.p_vaddr), header.p_memsz, id);
  }
  return 1;
}

struct StreamedFile {
  SharedFact fact;  ///< by number: paths may differ
  std::filesystem::path path;
};

std::vector<StreamedFile> streamed_files(const Dataset& dataset) {
  std::vector<StreamedFile> files;
  for (size_t i = 0; dataset.streamed && i < dataset.streamed->texts->size(); ++i) {
    int64_t number = 0;
    for (const StreamedText::FileContent& file : dataset.streamed->texts->file_contents(i)) {
      files.push_back({{fmt::format("file {} of training text {}", number++, i),
                        fmt::format("{} of {} bytes", file.ends.hex(), file.bytes)},
                       file.path});
    }
  }
  return files;
}

[[noreturn]] void refuse_data(const Disagreement& found, const std::string& where) {
  throw DataError({"train", found.name, "has another content: its hash " + found.to_string(), where,
                   "give every host the same files"});
}

}  // namespace

std::string program_build() {
  static const std::string build = [] {
    BuildId id{.address = reinterpret_cast<uintptr_t>(&look_at_object), .hex = {}};
    ::dl_iterate_phdr(look_at_object, &id);
    return id.hex.empty() ? std::string("without a build id") : id.hex;
  }();
  return build;
}

std::vector<const RecipeKey*> meaningful_keys(const Recipe& recipe) {
  std::vector<const RecipeKey*> keys;
  for (const RecipeKey& key : recipe_keys()) {
    if (key.idle(recipe).empty()) keys.push_back(&key);
  }
  return keys;
}

std::vector<SharedFact> recipe_facts(const Recipe& recipe) {
  std::vector<SharedFact> facts;
  for (const RecipeKey* key : meaningful_keys(recipe)) {
    if (key->across_ranks == AcrossRanks::equal) facts.push_back({key->name, to_toml(key->get(recipe))});
  }
  return facts;
}

std::vector<SharedFact> start_facts(const Recipe& recipe, const TrainOptions& options) {
  std::vector<SharedFact> facts = recipe_facts(recipe);
  facts.push_back({"--auto", options.plans ? "given" : "not given"});
  facts.push_back({"--resume", options.resume ? "given" : "not given"});
  facts.push_back({"--resume-from", options.resume_from.empty() ? "not given" : options.resume_from});
  facts.push_back({"--stop-after", options.stop_after ? std::to_string(*options.stop_after) : "not given"});
  facts.push_back({"--dump", options.dump_dir.empty() ? "not given" : "given"});
  facts.push_back({"--dump-steps", fmt::format("{}", fmt::join(options.dump_steps, ","))});
  facts.push_back({"--trace", options.trace_file.empty() ? "not given" : "given"});
  const std::optional<StepRange>& traced = options.trace_steps;
  facts.push_back({"--trace-steps", traced ? fmt::format("{}-{}", traced->first, traced->last) : "not given"});
  facts.push_back({"program", program_build()});
  return facts;
}

std::vector<SharedFact> data_facts(const Dataset& dataset) {
  std::vector<SharedFact> facts;
  for (StreamedFile& file : streamed_files(dataset)) facts.push_back(std::move(file.fact));
  facts.push_back({"data.tokenizer", dataset.tokenizer.hash().hex()});
  facts.push_back({"data.text, training part", dataset.train_hash().hex()});
  facts.push_back({"data.text, validation part", dataset.validation.tokens.info().content.hex()});
  return facts;
}

void refuse_different_start(const std::optional<Disagreement>& found) {
  if (!found) return;
  const bool is_program = found->name == "program";
  throw UsageError({"train", found->name, found->to_string(), "",
                    is_program ? "run the same build of this program on every host"
                               : "start every rank with the same recipe and options"});
}

void refuse_different_data(const std::optional<Disagreement>& found) {
  if (found) refuse_data(*found, "");
}

void check_same_data(Communicator& world, const Dataset& dataset) {
  const auto found = find_disagreement(world, data_facts(dataset), "data");
  if (!found) return;
  for (const StreamedFile& file : streamed_files(dataset)) {
    if (file.fact.name == found->name) refuse_data(*found, "here " + file.path.string());
  }
  refuse_data(*found, "");
}

}  // namespace caravan
