#include "rows.h"

namespace hfx {

bool task_named(Span name, Task &task) {
    static constexpr const char *NAMES[] = {
        "text-classification", "feature-extraction", "text-ranking", "zero-shot-classification"};
    for (uint8_t at = 0; at < 4; at++)
        if (name.equals(NAMES[at])) {
            task = Task(at);
            return true;
        }
    return false;
}

Output *Outputs::add(const char *name, Output::Kind kind, size_t rows, size_t columns) {
    if (count == MOST) return nullptr;
    Output &added = each[count];
    added.name = name, added.kind = kind;
    added.shape.clear(), added.content.clear();
    if (!added.shape.push(int64_t(rows)) || !added.shape.push(int64_t(columns))) return nullptr;
    count++;
    return &added;
}

bool append_string(Text &content, Span string) {
    uint32_t size = uint32_t(string.size);
    return string.size <= UINT32_MAX && content.append(reinterpret_cast<const char *>(&size), 4) && append(content, string);
}

}  // namespace hfx
