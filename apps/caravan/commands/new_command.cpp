#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/template_files.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"

namespace caravan::app {
namespace {

namespace fs = std::filesystem;

/// How to find the installed package from here.
struct Package {
  std::string install;    ///< a command that must come first; "": already installed
  std::string configure;  ///< options of cmake
};

std::string replaced(std::string text, std::string_view word, const std::string& by) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size())) {
    text.replace(at, word.size(), by);
  }
  return text;
}

/// Quotes a path for a shell.
std::string quoted(const std::string& path) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+,=@").find(c) != std::string_view::npos;
  };
  return std::ranges::all_of(path, is_plain) ? path : "'" + replaced(path, "'", "'\\''") + "'";
}

/// A name that is valid as a CMake target.
std::string target_name(const fs::path& folder) {
  std::string name = folder.filename().string();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-') c = '_';
  }
  if (name.empty() || name.front() == '-') return "program";
  constexpr std::array<std::string_view, 8> kReserved{"all",     "clean", "help",  "install",
                                                      "package", "test",  "torch", "caravan"};
  return std::ranges::find(kReserved, name) == kReserved.end() ? name : name + "_program";
}

/// This program is in bin/ of the installation, or of a build that can be installed.
Package find_package(const fs::path& program) {
  const fs::path root = program.parent_path().parent_path();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    for (const fs::path& folder : {entry.path() / "cmake", entry.path() / "x86_64-linux-gnu" / "cmake"}) {
      if (fs::exists(folder / "Caravan" / "CaravanConfig.cmake", error)) {
        return {"", "-DCMAKE_PREFIX_PATH=" + quoted(root.string())};
      }
    }
  }
  if (!fs::exists(root / "CMakeCache.txt", error)) return {"", "-DCMAKE_PREFIX_PATH=<where Caravan is installed>"};
  const std::string prefix = (root / "installed").string();
  return {fmt::format("cmake --install {} --prefix {}", quoted(root.string()), quoted(prefix)),
          "-DCMAKE_PREFIX_PATH=" + quoted(prefix)};
}

void check_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  if (!fs::is_directory(folder, error)) {
    throw UsageError({"new", folder.string(), "is a file", "", "name a new folder"});
  }
  if (fs::is_empty(folder, error)) return;
  throw UsageError({"new", folder.string(), "is not empty", "", "name a new folder: nothing is overwritten"});
}

const TemplateProgram& program_of(const std::string& name) {
  std::vector<std::string> names;
  for (const TemplateProgram& program : kTemplatePrograms) {
    if (name.empty() || name == program.name) return program;
    names.emplace_back(program.name);
  }
  throw UsageError({"new", "--template", not_one_of(name, names), "", "use one of these names"});
}

}  // namespace

int new_project(const NewArguments& arguments) {
  const fs::path folder = fs::absolute(fs::path(arguments.folder) / "").lexically_normal().parent_path();
  const TemplateProgram& source = program_of(arguments.template_name);
  check_folder(folder);
  const fs::path program = fs::read_symlink("/proc/self/exe");
  const Package package = find_package(program);
  const std::string name = target_name(folder);
  create_folders("new", folder, "cannot be made");
  const auto write = [&](const char* file, const char* contents) {
    std::string text = replaced(contents, "@NAME@", name);
    text = replaced(text, "@CONFIGURE@", "cmake -S . -B build " + package.configure);
    write_file_durably(folder / file, replaced(text, "@CARAVAN@", quoted(program.string())), "new");
  };
  for (const TemplateFile& file : kTemplateFiles) write(file.name, file.text);
  write("main.cpp", source.text);
  std::printf("%s", fmt::format("wrote {}: {}, in main.cpp\nnext:\n", folder.string(), source.summary).c_str());
  if (!package.install.empty()) std::printf("  %s\n", package.install.c_str());
  std::printf("  cd %s\n  cmake -S . -B build %s\n  cmake --build build\n  %s run build/%s --ranks 2\n",
              quoted(folder.string()).c_str(), package.configure.c_str(), quoted(program.string()).c_str(),
              name.c_str());
  return 0;
}

}  // namespace caravan::app
