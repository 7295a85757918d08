// Preloaded into a process, which then finds a lesser processor: what CPUID says is less, by CPUID faulting (arch_prctl(2)).
//
// HFX_TEST_PROCESSOR is one of avx512 (without VNNI and AMX), avx-vnni and avx2. ONNX Runtime, numpy and the native operators
// choose their kernels by CPUID; instructions themselves stay, so that nothing is emulated.
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

constexpr long SET_CPUID = 0x1012;
constexpr unsigned AVX512_B = 1u << 16 | 1u << 17 | 1u << 21 | 1u << 28 | 1u << 30 | 1u << 31;
constexpr unsigned AVX512_C = 1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14, VNNI_512 = 1u << 11;
constexpr unsigned OF_512_AND_TILES_D = 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25, VNNI_256 = 1u << 4, BF16 = 1u << 5;

bool wide, vnni;  // whether AVX-512 and VNNI are shown

void answer(int signal_number, siginfo_t *, void *data) {
    greg_t *registers = static_cast<ucontext_t *>(data)->uc_mcontext.gregs;
    const unsigned char *at = reinterpret_cast<const unsigned char *>(registers[REG_RIP]);
    if (at[0] != 0x0f || at[1] != 0xa2) {  // another fault, that comes again
        signal(signal_number, SIG_DFL);
        return;
    }
    unsigned leaf = unsigned(registers[REG_RAX]), part = unsigned(registers[REG_RCX]), a, b, c, d;
    syscall(SYS_arch_prctl, SET_CPUID, 1);
    __cpuid_count(leaf, part, a, b, c, d);
    syscall(SYS_arch_prctl, SET_CPUID, 0);
    if (leaf == 7 && part == 0) {
        d &= ~OF_512_AND_TILES_D;
        if (!wide) b &= ~AVX512_B, c &= ~AVX512_C;
        if (!vnni) c &= ~VNNI_512;
    }
    if (leaf == 7 && part == 1) a &= ~(BF16 | (vnni ? 0 : VNNI_256));
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) void begin() {
    const char *name = getenv("HFX_TEST_PROCESSOR");
    if (!name) return;
    wide = !strcmp(name, "avx512"), vnni = !strcmp(name, "avx-vnni");
    struct sigaction action = {};
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    if (!syscall(SYS_arch_prctl, SET_CPUID, 0)) return;
    perror("arch_prctl");
    _exit(1);
}

}  // namespace
