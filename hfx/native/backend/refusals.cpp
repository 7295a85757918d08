#include "refusals.h"
#include <stdarg.h>
#include <stdio.h>

namespace hfx {

Span shown(Span name) {
    size_t end = 0, characters = 0;
    for (; end < name.size; end++)
        if ((name.data[end] & 0xc0) != 0x80 && characters++ == NAME_LENGTH) break;
    return {name.data, end};
}

bool refuse(Text &refusal, const char *format, ...) {
    char words[512];
    va_list values;
    va_start(values, format);
    int size = vsnprintf(words, sizeof words, format, values);
    va_end(values);
    refusal.clear();
    if (size < 0 || !append(refusal, words)) refusal.clear();
    return false;
}

}  // namespace hfx
