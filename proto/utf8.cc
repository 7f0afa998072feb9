#include "proto/utf8.h"

#include <nlohmann/json.hpp>

namespace mp {

std::string WhyNotUtf8(std::string_view text) {
  try {
    nlohmann::json(text).dump();
    return "";
  } catch (const nlohmann::json::type_error& error) {
    const std::string_view what = error.what();
    return std::string(what.substr(what.find("] ") + 2));
  }
}

std::string WhyArgumentsAreNotUtf8(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (const std::string why = WhyNotUtf8(argv[i]); !why.empty())
      return "argument " + std::to_string(i) + " is not UTF-8 text: " + why;
  }
  return "";
}

}  // namespace mp
