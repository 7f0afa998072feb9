// UTF-8, as RFC 3629 defines it: no overlong forms, no surrogates, at most U+10FFFF.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mp::trainer {

// Bytes of the well-formed sequence at the start of `text`, 1 to 4; 0 when it is malformed or `text` is empty.
size_t Utf8SequenceLength(std::string_view text);

void AppendUtf8(uint32_t code_point, std::string* out);

}  // namespace mp::trainer
