// Strings of messages must be UTF-8: a message with another string can't be sent, or is written and never read again.
#pragma once

#include <string>
#include <string_view>

namespace mp {

// What is wrong with the text and where; empty when it is UTF-8.
std::string WhyNotUtf8(std::string_view text);

// The same for each of a program's arguments: "argument 3 is not UTF-8 text: ...", or empty.
std::string WhyArgumentsAreNotUtf8(int argc, const char* const* argv);

}  // namespace mp
