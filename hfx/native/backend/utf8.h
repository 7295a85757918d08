// UTF-8 as CPython decodes it.
#pragma once
#include "../tokenizer/utf8.h"

namespace hfx {

// Where a text stops being UTF-8, and why, in CPython's words (UnicodeDecodeError); `reason` is null where it does not.
struct Utf8Error {
    const char *reason = nullptr;
    size_t at = 0;
};
Utf8Error utf8_error(Span text);

}  // namespace hfx
