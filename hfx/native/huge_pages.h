// Copies of weights in huge pages, for the generators' decoders.
//
// A step reads all weights, and with pages of 4 KB the table of pages as well. In huge pages it takes 0.92 to 1.01 of the
// processor time on an idle machine, and 0.85 to 0.96 beside other programs.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hfx {

// Equal bytes that are in huge pages: those of a copy that exists, or of a new one; `values` where there is no memory
// or where the system has no huge pages.
const int8_t *in_huge_pages(const int8_t *values, size_t bytes);

// Ends a use of what in_huge_pages returned; the last one frees it. Nothing for any other address.
void leave_huge_pages(const int8_t *values);

}  // namespace hfx
