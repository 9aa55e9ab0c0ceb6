// `caravan new`: a project to start from. tests/consumer builds and runs one.
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::new_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class NewTest : public CommandTest {};

TEST_F(NewTest, WritesAProjectAndPrintsTheNextCommands) {
  const Result result = caravan({"new", path("my project/first")});
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string folder = path("my project/first"),
                    build = std::filesystem::path(program()).parent_path().parent_path();
  EXPECT_EQ(result.out, "wrote " + folder + ": FSDP in a loop that stops and resumes, in main.cpp\nnext:\n" +
                            "  cmake --install " + build + " --prefix " + build + "/installed\n" +  //
                            "  cd '" + folder + "'\n" +                                             //
                            "  cmake -S . -B build -DCMAKE_PREFIX_PATH=" + build + "/installed\n" +
                            "  cmake --build build\n" +  //
                            "  " + program() + " run build/first --ranks 2\n");
  EXPECT_THAT(text_of(folder + "/CMakeLists.txt"),
              AllOf(HasSubstr("project(first "), HasSubstr("find_package(Caravan"), Not(HasSubstr("@"))));
  EXPECT_THAT(text_of(folder + "/README.md"), AllOf(HasSubstr("cmake -S . -B build -DCMAKE_PREFIX_PATH=" + build),
                                                    HasSubstr("run build/first --ranks 2"), Not(HasSubstr("@"))));
  EXPECT_THAT(text_of(folder + "/main.cpp"),
              AllOf(HasSubstr("#include <caravan/caravan.h>"), HasSubstr("Session session")));
  EXPECT_EQ(text_of(folder + "/.gitignore"), "/build/\n/runs/\n");
}

TEST_F(NewTest, WritesTheExampleThatIsAskedFor) {
  for (const char* name : {"own_loop", "ddp", "fsdp", "pipeline", "cnn", "muon", "plan"}) {
    EXPECT_EQ(caravan({"new", path(name), "--template", name}).code, 0) << name;
    EXPECT_THAT(text_of(path(name) + "/main.cpp"),
                AllOf(HasSubstr("parallelize("), HasSubstr(std::string("build/") + name)));
  }
  EXPECT_THAT(text_of(path("fsdp/main.cpp")), HasSubstr("fsdp("));
  for (const char* name : {"global_tensors", "named_dims", "global_cnn"}) {
    EXPECT_EQ(caravan({"new", path(name), "--template", name}).code, 0) << name;
    EXPECT_THAT(text_of(path(name) + "/main.cpp"),
                AllOf(HasSubstr("GlobalContext"), HasSubstr(std::string("build/") + name)));
  }
  const Result wrong = caravan({"new", path("wrong"), "--template", "fsd"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("--template"), HasSubstr("fsdp")));
  EXPECT_FALSE(std::filesystem::exists(path("wrong")));
}

TEST_F(NewTest, TheFolderNamesTheProgram) {
  std::filesystem::create_directory(path("a b.c"));
  EXPECT_EQ(run({"env", "-C", path("a b.c"), program(), "new", "."}).code, 0);
  EXPECT_THAT(text_of(path("a b.c/CMakeLists.txt")), HasSubstr("project(a_b_c "));
  EXPECT_EQ(caravan({"new", path("slash") + "/"}).code, 0);
  EXPECT_THAT(text_of(path("slash/CMakeLists.txt")), HasSubstr("project(slash "));
}

TEST_F(NewTest, NothingIsOverwritten) {
  std::filesystem::create_directory(path("full"));
  file("full/main.cpp", "mine");
  const Result full = caravan({"new", path("full")});
  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.err,
              AllOf(HasSubstr("[new] " + path("full") + ": is not empty"), HasSubstr("do: name a new folder")));
  EXPECT_EQ(text_of(path("full/main.cpp")), "mine");
  EXPECT_FALSE(std::filesystem::exists(path("full/README.md")));
  EXPECT_THAT(caravan({"new", file("plain", "x")}).err, HasSubstr("plain: is a file"));
  EXPECT_EQ(caravan({"new"}).code, 2);
  EXPECT_EQ(caravan({"new", ""}).code, 2);
  const Result below = caravan({"new", path("plain/mine")});
  EXPECT_EQ(below.code, 3);
  EXPECT_THAT(below.err, HasSubstr("plain/mine: cannot be made"));
}

}  // namespace
}  // namespace caravan::new_test
