// An ONNX Runtime whose graph adds a row's token ids: what the tests of the backend run in place of a net.
//
// logits [rows, 2] are the sum of a row's ids, and of their squares, times 1e-3; of rows with several sequences [rows,
// sequences, 2], and of the graph one.onnx [rows, 1]. A run fails that has the id FAILING, as does one that begins while
// another runs; a negative id, which ASan's unwritten memory has, ends the process. With STUB_PAIRS, two may run at once,
// and the first that do print a line. A run takes 300 microseconds more, or
// STUB_PAUSE. The graph has the initializers adapter and adapters, as that of a shared net: a model's last two weights are
// added to the logits of its rows. With STUB_MIXES, each row of a run of several gets the answer of the next.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>
#include "ort.h"

namespace ort {
struct Status {
    std::string words;
};
struct Value {
    std::vector<int64_t> shape;
    std::vector<float> made;
    void *data;
};
struct ShapeInfo {
    std::vector<int64_t> shape;
    int type;
};
}  // namespace ort

namespace {

constexpr int32_t FAILING = 7;
const char *const INPUTS[] = {"input_ids", "attention_mask", "item_shape"}, *const INITIALIZERS[] = {"adapter", "adapters"};
std::atomic<int> runs;
int nothing, classes_one;

ort::Status *fail(const char *words) { return new ort::Status{words}; }
ort::Status *pass() { return nullptr; }
template <typename Type> ort::Status *give(Type **out) {
    *out = reinterpret_cast<Type *>(&nothing);
    return nullptr;
}

ort::Status *session(const void *, const char *path, const void *, void **out) {
    const char *one = strstr(path, "one.onnx");
    return access(path, R_OK) ? fail("there is no such graph") : (*out = one ? &classes_one : &nothing, pass());
}
ort::Status *name(const char *text, char **out) {
    *out = strdup(text);
    return nullptr;
}
ort::Status *count(size_t value, size_t *out) {
    *out = value;
    return nullptr;
}
ort::Status *type_info(int type, size_t rank, void **out) {
    *out = new ort::ShapeInfo{std::vector<int64_t>(rank, -1), type};
    return nullptr;
}
void release_info(ort::ShapeInfo *info) { delete info; }

ort::Status *tensor(const void *, void *data, size_t, const int64_t *sizes, size_t rank, int, ort::Value **out) {
    *out = new ort::Value{{sizes, sizes + rank}, {}, data};
    return nullptr;
}

ort::Status *run(void *session, const void *, const char *const *, const ort::Value *const *in, size_t inputs, const char *const *, size_t, ort::Value **out) {
    static const char *const pause = getenv("STUB_PAUSE");
    static const int most = getenv("STUB_PAIRS") ? 2 : 1;
    static std::atomic<bool> said;
    if (++runs > most) return runs--, fail("two runs at once");
    if (runs == 2 && !said.exchange(true)) fputs("two runs at once\n", stderr);
    usleep(useconds_t(pause ? atoi(pause) : 300));
    const int32_t *ids = static_cast<int32_t *>(in[0]->data), *mask = static_cast<int32_t *>(in[1]->data), *shapes = static_cast<int32_t *>(in[2]->data);
    int64_t rows = in[2]->shape[0], rank = in[2]->shape[1], each = rank == 2 ? shapes[0] : 1, classes = session == &classes_one ? 1 : 2, at = 0;
    bool fails = false;
    auto *made = new ort::Value{{rows, classes}, std::vector<float>(size_t(rows * each) * 2), nullptr};
    if (rank == 2) made->shape.insert(made->shape.begin() + 1, each);
    for (int64_t row = 0; row < rows * each; row++) {
        float *logits = &made->made[size_t(row * classes)];
        for (int64_t end = at + shapes[row / each * rank + rank - 1]; at < end; at++) {
            if (ids[at] < 0) abort();
            fails = fails || ids[at] == FAILING;
            float id = 1e-3f * float(ids[at] * mask[at]);
            logits[0] += id;
            if (classes == 2) logits[1] += id * id;
        }
        if (inputs == 3) continue;
        int64_t slot = static_cast<int32_t *>(in[3]->data)[row], stride = in[4]->shape[1];
        const float *end = static_cast<float *>(in[4]->data) + (slot + 1) * stride;
        fails = fails || in[3]->shape[0] != rows * each || slot < 0 || slot >= in[4]->shape[0];
        for (int each = 0; each < classes && !fails; each++) logits[each] += end[each - 2];
    }
    if (getenv("STUB_MIXES")) std::rotate(made->made.begin(), made->made.begin() + 2, made->made.end());
    fails = fails || at != in[0]->shape[0];
    runs--;
    made->data = made->made.data();
    if (!fails) *out = made;
    else delete made;
    return fails ? fail("a token that the net can't take") : nullptr;
}

const ort::Api *api(uint32_t) {
    static ort::Api table;
    auto set = [](int slot, auto function) { table.slots[slot] = reinterpret_cast<void *>(function); };
    for (void *&slot : table.slots) slot = reinterpret_cast<void *>(abort);
    set(2, +[](const ort::Status *status) { return status->words.c_str(); });
    set(3, +[](int, const char *, void **out) { return give(out); });
    for (int slot : {6, 13, 17, 19, 23, 24, 25, 130}) set(slot, pass);
    set(7, session), set(9, run);
    set(10, +[](void **out) { return give(out); });
    set(30, +[](void *, size_t *out) { return count(3, out); });
    set(31, +[](void *, size_t *out) { return count(1, out); });
    set(32, +[](void *, size_t *out) { return count(2, out); });
    set(33, +[](void *, size_t index, void **out) { return type_info(ort::INT32, index == 2 ? 2 : 1, out); });
    set(34, +[](void *, size_t, void **out) { return type_info(ort::FLOAT, 2, out); });
    set(35, +[](void *, size_t index, void **out) { return type_info(index ? ort::FLOAT : ort::INT32, index ? 2 : 1, out); });
    set(36, +[](void *, size_t index, void *, char **out) { return name(INPUTS[index], out); });
    set(37, +[](void *, size_t, void *, char **out) { return name("logits", out); });
    set(38, +[](void *, size_t index, void *, char **out) { return name(INITIALIZERS[index], out); });
    set(49, tensor);
    set(51, +[](ort::Value *value, void **out) { return *out = value->data, pass(); });
    set(55, +[](const void *info, const void **out) { return *out = info, pass(); });
    set(60, +[](const ort::ShapeInfo *info, int *out) { return *out = info->type, pass(); });
    set(61, +[](const ort::ShapeInfo *info, size_t *out) { return count(info->shape.size(), out); });
    set(62, +[](const ort::ShapeInfo *info, int64_t *out, size_t rank) { return memcpy(out, info->shape.data(), rank * sizeof *out), pass(); });
    set(65, +[](const ort::Value *value, ort::ShapeInfo **out) { return *out = new ort::ShapeInfo{value->shape, ort::FLOAT}, pass(); });
    set(69, +[](int, int, void **out) { return give(out); });
    set(76, +[](void *, void *memory) { return free(memory), pass(); });
    set(78, +[](void **out) { return give(out); });
    set(93, +[](ort::Status *status) { delete status; });
    for (int slot : {94, 95, 100}) set(slot, +[](void *) {});
    set(96, +[](ort::Value *value) { delete value; });
    for (int slot : {98, 99}) set(slot, release_info);
    return &table;
}

}  // namespace

extern "C" const ort::ApiBase *OrtGetApiBase() {
    static const ort::ApiBase base = {api, +[]() { return "1.17.0"; }};
    return &base;
}
