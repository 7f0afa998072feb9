#include "client/terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace mp::client {
namespace {

bool disabled = false;  // set while flags are read, before any thread

}  // namespace

bool IsTerminal() {
  const char* term = std::getenv("TERM");          // NOLINT(concurrency-mt-unsafe): nothing writes it
  const char* no_color = std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe)
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return !disabled && !dumb && (no_color == nullptr || *no_color == '\0') && isatty(STDOUT_FILENO) == 1;
}

void DisableTerminal() { disabled = true; }

}  // namespace mp::client
