#pragma once

#include <string>
#include <vector>

namespace caravan::app {

/// An option of a command, or one of its positional words.
struct OptionEntry {
  std::string name;  ///< "--ranks"; of a word without dashes: "recipe"
  std::string help;
  bool takes_value = false;  ///< it is followed by a value
  bool is_word = false;      ///< a word without dashes
};

/// A command with its options; for one with subcommands, such as `bench`, these are entries, too.
struct CommandEntry {
  std::string name;  ///< "train", "bench comm"
  std::string help;
  std::vector<OptionEntry> options;
  std::vector<std::string> commands;  ///< its subcommands, by their last word
};

/// The command line as its parser knows it. The first entry, "", is the program.
std::vector<CommandEntry> option_table();

/// A script that makes bash, zsh or fish complete commands, options and files. Throws UsageError for another shell.
std::string completion_script(const std::string& shell, const std::vector<CommandEntry>& table);

/// The manual page of section 1, for man(1).
std::string man_page(const std::vector<CommandEntry>& table);

}  // namespace caravan::app
