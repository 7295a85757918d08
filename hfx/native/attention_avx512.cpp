#include "attend.h"
#include "self_attend.h"

void hfx::attend_avx512(const Attention &a) { attend(a); }
void hfx::self_attend_avx512(const SelfAttention &a) { self_attend(a); }
