// What standard output is.
#pragma once

namespace mp::client {

// A terminal on which cursor movement may be used: not piped, TERM not "dumb", no --no-color, NO_COLOR not set.
bool IsTerminal();
void DisableTerminal();

}  // namespace mp::client
