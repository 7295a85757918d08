#include "normalizer.h"
#include "utf8.h"

namespace hfx {

namespace {

bool apply_map(const CharMap &map, Span text, Text &to, bool &moved) {
    const char *at = text.data, *end = at + text.size, *from = at;  // from here on, the text is not written yet
    while (at < end) {
        uint32_t code;
        size_t bytes = decode(at, end, code);
        if (uint32_t entry = map.entry(code)) {
            Span made = map.text(entry);
            if (!to.append(from, size_t(at - from)) || !append(to, made)) return false;
            moved = moved || (at == text.data && !made.size);
            from = at + bytes;
        }
        at += bytes;
    }
    return to.append(from, size_t(end - from));
}

// The origin of a replacement is the last character that it replaces, so a replacement at the beginning of the text
// sets `moved`.
bool replace(Span text, Span pattern, Span content, Text &to, bool &moved) {
    size_t from = 0;
    while (true) {
        const void *found = memmem(text.data + from, text.size - from, pattern.data, pattern.size);
        size_t at = found ? size_t(static_cast<const char *>(found) - text.data) : text.size;
        if (!to.append(text.data + from, at - from)) return false;
        if (!found) return true;
        if (!append(to, content)) return false;
        moved = moved || !at;
        from = at + pattern.size;
    }
}

bool replace_runs(Span text, const ByteTable &members, uint32_t least, Span content, Text &to, bool &moved) {
    const char *at = text.data, *end = at + text.size;
    while (at < end) {
        const char *from = at;
        uint32_t code, count = 0;
        for (; at < end; count++) {
            size_t bytes = decode(at, end, code);
            if (!members[code]) break;
            at += bytes;
        }
        if (count && count >= least) {
            if (!append(to, content)) return false;
            moved = moved || (from == text.data && (count > 1 || !content.size));
        }
        if (count && count < least && !to.append(from, size_t(at - from))) return false;
        if (!count) {
            at += decode(at, end, code);
            if (!to.append(from, size_t(at - from))) return false;
        }
    }
    return true;
}

Span strip(Span text, const ByteTable &spaces, uint32_t sides) {
    const char *begin = text.data, *end = begin + text.size;
    uint32_t code;
    while (sides & 1 && begin < end) {
        size_t bytes = decode(begin, end, code);
        if (!spaces[code]) break;
        begin += bytes;
    }
    while (sides & 2 && begin < end) {
        size_t bytes = decode_last(begin, end, code);
        if (!spaces[code]) break;
        end -= bytes;
    }
    return {begin, size_t(end - begin)};
}

}  // namespace

const char *Normalizer::open(const File &file) {
    uint32_t section = file.find(File::NORMALIZER);
    if (section == File::NONE) return nullptr;
    if (!file.read(section, steps_) || steps_.count > MOST_STEPS) return "its normalizer is damaged";
    for (size_t at = 0; at < steps_.count; at++)
        if (const char *wrong = open_step(file, steps_[at], at)) return wrong;
    return nullptr;
}

Normalizer::~Normalizer() { destroy(precompiled_); }

const char *Normalizer::open_step(const File &file, const Step &step, size_t at) {
    Tables &tables = tables_[at];
    uint64_t first = step.section;
    bool good = false;
    switch (step.kind) {
    case MAP: good = tables.map.open(file, first); break;
    case ORDER:
    case STRIP: good = tables.bytes.open(file, first); break;
    case COMPOSE: good = tables.bytes.open(file, first) && file.read(first + 2, tables.compositions); break;
    case REPLACE: good = file.read(first, tables.from) && file.read(first + 1, tables.to) && tables.from.count; break;
    case REPLACE_RUN: good = tables.bytes.open(file, first) && file.read(first + 2, tables.to); break;
    case PREPEND: good = file.read(first, tables.to); break;
    case PRECOMPILED:
        if (precompiled_ || !(precompiled_ = make<Precompiled>())) return "its normalizer is damaged, or memory is short";
        return precompiled_->open(file, first);
    default: return "its normalizer isn't known";
    }
    return good ? nullptr : "its normalizer is damaged";
}

bool Normalizer::normalize(Span text, Text &to, Text &other, bool &moved) const {
    Text *target = &to, *spare = &other;
    if (steps_.count % 2 == 0) target = &other, spare = &to;  // so that the last step writes to `to`
    to.clear();
    for (size_t at = 0; at < steps_.count; at++) {
        target->clear();
        if (!apply(at, text, *target, moved)) return false;
        text = {target->data(), target->size()};
        Text *next = spare;
        spare = target, target = next;
    }
    return steps_.count || append(to, text);
}

bool Normalizer::apply(size_t at, Span text, Text &to, bool &moved) const {
    const Step &step = steps_[at];
    const Tables &tables = tables_[at];
    Span content{tables.to.data, tables.to.count};
    switch (step.kind) {
    case MAP: return apply_map(tables.map, text, to, moved);
    case ORDER: return order_marks(tables.bytes, text, to);
    case COMPOSE: return compose(tables.bytes, tables.compositions, text, to);
    case REPLACE: return replace(text, {tables.from.data, tables.from.count}, content, to, moved);
    case REPLACE_RUN: return replace_runs(text, tables.bytes, step.value, content, to, moved);
    case STRIP: {
        Span left = strip(text, tables.bytes, step.flags);
        moved = moved || left.data != text.data;
        return append(to, left);
    }
    case PREPEND: return (!text.size || append(to, content)) && append(to, text);
    default: return precompiled_->normalize(text, to, moved);
    }
}

}  // namespace hfx
