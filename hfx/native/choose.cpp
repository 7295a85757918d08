// Chooses the kernels that run: the first in the order of CHOICES that should run on this processor.
#include "choices.h"
#include <stdlib.h>

namespace hfx {
namespace {

const Kernels *named(const char *wanted) {
    for (const Choice &choice : CHOICES)
        if (!strcmp(wanted, choice.kernels->name) && choice.can_run()) return choice.kernels;
    return nullptr;
}

const Kernels *best_choice() {
    for (const Choice &choice : CHOICES)
        if (choice.should_run()) return choice.kernels;
    return nullptr;
}

}  // namespace

const Kernels *kernels() {
    static const Kernels *found;  // the trials' result; threads that run them side by side may each store theirs
    if (const char *wanted = getenv("HFX_NATIVE_KERNELS")) return named(wanted);
    if (const Kernels *known = __atomic_load_n(&found, __ATOMIC_ACQUIRE)) return known;
    const Kernels *best = best_choice();
    __atomic_store_n(&found, best, __ATOMIC_RELEASE);
    return best;
}

const char *refusal() {
    const char *wanted = getenv("HFX_NATIVE_KERNELS");
    if (!wanted || !strcmp(wanted, "none")) return CHOICES.missing;
    for (const Choice &choice : CHOICES)
        if (!strcmp(wanted, choice.kernels->name)) return CHOICES.missing;
    return CHOICES.unknown;
}

const char *replaced() {
    return !kernels() && refusal() == CHOICES.missing && CHOICES.adds_exactly() ? CHOICES.missing : nullptr;
}

}  // namespace hfx

// The name of the kernels; "" if this processor can run none, "?" if HFX_NATIVE_KERNELS is an unknown name.
extern "C" __attribute__((visibility("default"))) const char *hfx_native_kernels() {
    const hfx::Kernels *found = hfx::kernels();
    return found ? found->name : hfx::refusal() == hfx::CHOICES.unknown ? "?" : "";
}
// Why there are no kernels, as an error of the operators.
extern "C" __attribute__((visibility("default"))) const char *hfx_native_refusal() { return hfx::refusal(); }
