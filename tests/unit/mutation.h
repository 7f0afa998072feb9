// Damaged copies of a good text, the same ones for the same seed: for tests that a reader refuses or reads, and nothing
// else.
#pragma once

#include <iterator>
#include <random>
#include <string>
#include <string_view>

namespace mp {

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  // One to four of: a byte replaced, bytes removed, bytes repeated elsewhere, a piece of syntax put in, the end cut
  // off.
  std::string Damage(std::string_view good) {
    std::string text(good);
    for (int left = Below(4) + 1; left > 0 && !text.empty(); --left) {
      const size_t at = Index(text);
      switch (Below(5)) {
        case 0:
          text[at] = static_cast<char>(Below(256));
          break;
        case 1:
          text.erase(at, static_cast<size_t>(Below(8) + 1));
          break;
        case 2:
          text.insert(Index(text), text.substr(at, static_cast<size_t>(Below(40) + 1)));
          break;
        case 3: {
          constexpr std::string_view kPieces[] = {
              "{",    "}",  "[",    "]",     ":",   ",",    "\"",   "\\", "\\u", "-",
              "1e99", "-1", "null", "true",  "0x1", ".nan", "\xff", "&a", "*a",  "9999999999999999999",
              "\n",   "- ", "? ",   "!!int "};
          text.insert(at, kPieces[Below(std::size(kPieces))]);
          break;
        }
        default:
          text.resize(at);
      }
    }
    return text;
  }

 private:
  int Below(size_t bound) { return static_cast<int>(random_() % bound); }
  size_t Index(const std::string& text) { return random_() % text.size(); }

  std::mt19937 random_;
};

}  // namespace mp
