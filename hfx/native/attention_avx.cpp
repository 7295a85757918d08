#include "attend.h"
#include "self_attend.h"

void hfx::attend_avx(const Attention &a) { attend(a); }
void hfx::to_float16_avx(const float *from, long count, void *to) { to_float16(from, count, to); }
void hfx::self_attend_avx(const SelfAttention &a) { self_attend(a); }
