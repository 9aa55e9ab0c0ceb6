// version, completion, manual: generated from the parser's own table.
#include <gmock/gmock.h>

#include "tests/command/command.h"
#include "tests/needs.h"

namespace caravan::about_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class AboutTest : public CommandTest {
 protected:
  /// What bash offers behind `line`, whose last word is to be completed.
  std::string offers(const std::string& line) const {
    const std::string script = caravan({"completion", "bash"}).out;
    const Result result = run({"bash", "-c",
                               script + "\nCOMP_WORDS=(" + line + ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n" +
                                   "_caravan\nprintf '%s\\n' \"${COMPREPLY[@]}\""});
    EXPECT_EQ(result.err, "");
    return result.out;
  }
};

TEST_F(AboutTest, BashCompletesCommandsOptionsAndFiles) {
  EXPECT_EQ(offers("caravan tr"), "train\n");
  EXPECT_THAT(offers("caravan ''"), AllOf(HasSubstr("train\n"), HasSubstr("evaluate\n"), HasSubstr("--version\n")));
  EXPECT_EQ(offers("caravan train --ra"), "--ranks\n");
  EXPECT_EQ(offers("caravan bench co"), "comm\n");
  EXPECT_EQ(offers("caravan bench comm --dty"), "--dtype\n");
  EXPECT_EQ(offers("caravan train my.toml --ranks 2 --resume-f"), "--resume-from\n");
  EXPECT_EQ(offers("caravan train --set data_parallel.te"), "data_parallel.technique=\n");
  std::string zeros;
  for (const std::string& name : names_of("data_parallel")) zeros += name.starts_with("zero") ? name + "\n" : "";
  EXPECT_EQ(offers("caravan train --ranks 2 --set data_parallel.technique = zero"), zeros);
  for (const std::string& name : names_of("context_parallel")) {
    EXPECT_THAT(offers("caravan train --set context_parallel.kind ="), HasSubstr(name + "\n"));
  }
  file("recipe_of_mine.toml", "");
  EXPECT_THAT(offers("caravan train " + path("recipe_of")), HasSubstr("recipe_of_mine.toml"));
}

TEST_F(AboutTest, OtherShells) {
  EXPECT_THAT(caravan({"completion", "zsh"}).out, HasSubstr("bashcompinit"));
  EXPECT_THAT(caravan({"completion", "fish"}).out,
              AllOf(HasSubstr("__fish_seen_subcommand_from train' -l ranks -r"), HasSubstr("-a evaluate")));
  const Result refused = caravan({"completion", "fishy"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("use 'fish'"));
}

TEST_F(AboutTest, TheManualHasEveryCommand) {
  testing::needs({"hsdp"});
  const std::string page = caravan({"manual"}).out;
  for (const char* command : {"train", "run", "bench comm", "data inspect", "inspect flight", "completion"}) {
    EXPECT_THAT(page, HasSubstr(std::string(".SS ") + command + "\n"));
  }
  EXPECT_THAT(page,
              AllOf(HasSubstr(".SS data_parallel.technique\n"), HasSubstr("\n.B hsdp\nzero3 inside groups of ranks"),
                    HasSubstr("(Zhao et al., \"PyTorch FSDP\", VLDB 2023)\n.br\n"), HasSubstr(".SS mesh.ep\n")));
  EXPECT_THAT(page, AllOf(HasSubstr("\n.B \\-\\-resume\\-from\n"), Not(HasSubstr("\n.B \n"))));
}

TEST_F(AboutTest, TheVersionNamesItsBuild) {
  const Result version = caravan({"version"});
  EXPECT_THAT(version.out, AllOf(HasSubstr("caravan 0."), HasSubstr("torch        2."), HasSubstr("processor    ")));
  EXPECT_TRUE(version.out.starts_with(caravan({"--version"}).out));
}

}  // namespace
}  // namespace caravan::about_test
