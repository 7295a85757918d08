#include "refusals.h"
#include <stdarg.h>
#include <stdio.h>

namespace hfx {

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
