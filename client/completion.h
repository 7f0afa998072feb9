// Shell completion, made from the tree of commands itself.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace mp::client {

// A script for "bash", "zsh" or "fish"; empty for another shell.
std::string CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace mp::client
