#include "checks.h"
#include "refusals.h"

namespace hfx {
namespace {

constexpr const char *NAME = "hfx_state_checks_total", *RESULTS[] = {"failed", "passed"};
constexpr float ROUNDING = 1e-3f;  // more than kernels differ, and less than the outputs of two texts

TRITONSERVER_Metric *counter(TRITONSERVER_MetricFamily *family, const char *model, const char *result) {
    TRITONSERVER_Parameter *labels[] = {TRITONSERVER_ParameterNew("model", triton::STRING, model), TRITONSERVER_ParameterNew("result", triton::STRING, result)};
    TRITONSERVER_Metric *made = nullptr;
    if (!triton::done(TRITONSERVER_MetricNew(&made, family, const_cast<const TRITONSERVER_Parameter **>(labels), 2))) made = nullptr;
    for (TRITONSERVER_Parameter *label : labels) TRITONSERVER_ParameterDelete(label);
    return made;
}

}  // namespace

// Families and metrics are never deleted: Triton 2.51 shares a family of one name among all models, and deletes it with
// the first of them.
void Checks::open(Span model) {
    TRITONSERVER_MetricFamily *family = nullptr;
    Text name;
    if (!TRITONSERVER_MetricFamilyNew || !append(name, model) || !name.push('\0')) return;
    if (!triton::done(TRITONSERVER_MetricFamilyNew(&family, triton::COUNTER, NAME, STATE_CHECKS))) return;
    for (int passed = 0; passed < 2; passed++) counters_[passed] = counter(family, name.data(), RESULTS[passed]);
}

bool Checks::is_due(size_t count, size_t &job) {
    if (count < 2) return false;
    const uint64_t run = __atomic_add_fetch(&runs_, 1, __ATOMIC_RELAXED);  // of two leaders
    if (run % EVERY) return false;
    job = run / EVERY % count;
    return true;
}

void Checks::count(bool passed) {
    if (!passed) triton::log(triton::ERROR, "a check of the backend's state has failed, which is a fault of hfx: please report it");
    if (counters_[passed]) triton::done(TRITONSERVER_MetricIncrement(counters_[passed], 1));
}

bool agree(const Values &one, const Values &other) {
    if (one.data.size() != other.data.size()) return false;
    for (size_t at = 0; at < one.data.size(); at++) {
        float a = one.data[at], b = other.data[at];
        bool near = __builtin_fabsf(a - b) <= ROUNDING * (1 + __builtin_fabsf(b));
        if (!near && !(a != a && b != b) && a != b) return false;
    }
    return true;
}

}  // namespace hfx
