#include "pre_tokenizer.h"
#include "gpt2_pattern.h"
#include "utf8.h"

namespace hfx {

const char *PreTokenizer::open(const File &file) {
    uint32_t section = file.find(File::PRE_TOKENIZER);
    if (section == File::NONE) return nullptr;
    const char *damaged = "its pre-tokenizer is damaged";
    if (!file.read(section, steps_) || steps_.count > MOST_STEPS) return damaged;
    for (size_t at = 0; at < steps_.count; at++) {
        const Step &step = steps_[at];
        if (step.kind < BY_CLASS || step.kind > METASPACE) return "its pre-tokenizer isn't known";
        bool good = step.kind == METASPACE ? file.read(step.section, texts_[at]) && texts_[at].count
                                           : classes_[at].open(file, step.section);
        if (!good) return damaged;
    }
    return nullptr;
}

bool PreTokenizer::split(Span text, bool first, Text *buffers, Pieces &pieces) const {
    return step(0, text, first, buffers, pieces);
}

bool PreTokenizer::step(size_t at, Span text, bool first, Text *buffers, Pieces &pieces) const {
    if (!text.size) return true;
    if (at == steps_.count) return pieces.use(pieces, text);
    const Step &step = steps_[at];
    if (step.kind == BY_CLASS) return by_class(at, text, buffers, pieces);
    if (step.kind == METASPACE) return metaspace(at, text, first, buffers, pieces);
    Text &buffer = buffers[at];
    if (step.flags & 1 && *text.data != ' ') {
        buffer.clear();
        if (!append(buffer, " ") || !append(buffer, text)) return false;
        text = {buffer.data(), buffer.size()};
    }
    if (!(step.flags & 2)) return this->step(at + 1, text, false, buffers, pieces);
    return by_gpt2(at, text, buffers, pieces);
}

bool PreTokenizer::by_class(size_t step, Span text, Text *buffers, Pieces &pieces) const {
    const ByteTable &classes = classes_[step];
    const char *at = text.data, *end = at + text.size, *from = at;  // where the current piece begins
    uint8_t last = DROPPED;
    while (at < end) {
        uint32_t code;
        size_t bytes = decode(at, end, code);
        uint8_t of = classes[code];
        if (of != last || of == ALONE) {
            if (last != DROPPED && !this->step(step + 1, {from, size_t(at - from)}, false, buffers, pieces)) return false;
            from = at, last = of;
        }
        at += bytes;
    }
    return last == DROPPED || this->step(step + 1, {from, size_t(at - from)}, false, buffers, pieces);
}

bool PreTokenizer::by_gpt2(size_t step, Span text, Text *buffers, Pieces &pieces) const {
    const char *at = text.data, *end = at + text.size;
    while (at < end) {
        const char *behind = end_of_piece(classes_[step], at, end);
        if (!this->step(step + 1, {at, size_t(behind - at)}, false, buffers, pieces)) return false;
        at = behind;
    }
    return true;
}

bool PreTokenizer::metaspace(size_t step, Span text, bool first, Text *buffers, Pieces &pieces) const {
    uint32_t flags = steps_[step].flags;
    Span mark{texts_[step].data, texts_[step].count};
    Text &buffer = buffers[step];
    buffer.clear();
    bool marked = *text.data == ' ' || (text.size >= mark.size && !memcmp(text.data, mark.data, mark.size));
    if (!marked && (flags & 2 || (flags & 1 && first)) && !append(buffer, mark)) return false;
    for (size_t at = 0; at < text.size; at++)
        if (text.data[at] == ' ' ? !append(buffer, mark) : !buffer.push(text.data[at])) return false;
    const char *at = buffer.data(), *end = at + buffer.size();
    while (at < end) {  // a piece ends before the next mark
        const void *next = nullptr;
        if (flags & 4 && end - at > 1) next = memmem(at + 1, size_t(end - at - 1), mark.data, mark.size);
        const char *behind = next ? static_cast<const char *>(next) : end;
        if (!this->step(step + 1, {at, size_t(behind - at)}, false, buffers, pieces)) return false;
        at = behind;
    }
    return true;
}

}  // namespace hfx
