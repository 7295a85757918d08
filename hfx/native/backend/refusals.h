// The reason why a request is refused, as its caller reads it.
#pragma once
#include "../memory.h"
#include "shared.h"  // made by build.py

namespace hfx {

constexpr const char *NO_MEMORY = "there is no memory";

// Formats `refusal` like printf, and always returns false. The arguments must have a limited length. `refusal` is empty
// if there is no memory.
__attribute__((format(printf, 2, 3))) bool refuse(Text &refusal, const char *format, ...);

// Joins texts of any length to a refusal. Always returns false, as `refuse` does.
template <typename... Parts> bool refuse_with(Text &refusal, const Parts &...parts) {
    Text joined;
    if (!(append(joined, parts) && ...)) joined.clear();
    refusal = static_cast<Text &&>(joined);
    return false;
}

// The first characters of a name that a caller has sent, because the name may be as long as a request.
Span shown(Span name);

}  // namespace hfx
