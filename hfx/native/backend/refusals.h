// Why a request is refused, as its caller reads it.
#pragma once
#include "../memory.h"

namespace hfx {

constexpr const char *NO_MEMORY = "there is no memory";

// Fills `refusal` by a format of printf, with words of limited length only; always false. It stays empty without memory.
__attribute__((format(printf, 2, 3))) bool refuse(Text &refusal, const char *format, ...);

// The first characters of a name that a caller has sent: it may be as long as a body.
Span shown(Span name);

}  // namespace hfx
