// What is done with a text before it is split: the steps of Hugging Face's normalizers, of tables.
#pragma once
#include "precompiled.h"
#include "tables.h"
#include "unicode.h"

namespace hfx {

class Normalizer {
public:
    enum Kind : uint32_t {
        MAP = 1,      // section: a CharMap; adjacent steps by character are one
        ORDER,        // section: a ByteTable of combining classes; marks in canonical order
        COMPOSE,      // section: the same, and behind it the pairs {first, second, composed} u32, sorted
        REPLACE,      // section: a text, and what is put for it
        REPLACE_RUN,  // section: a ByteTable, and what is put for `value` or more characters of it together
        STRIP,        // section: a ByteTable of white space; flags: 1 from the left, 2 from the right
        PREPEND,      // section: a text, for texts that aren't empty
        PRECOMPILED,  // section: what precompiled.h says
    };
    static constexpr size_t MOST_STEPS = 32;

    const char *open(const File &file);
    ~Normalizer();
    bool empty() const { return !steps_.count; }

    // Normalizes `text` into `to`, by way of `other`. `moved` becomes true where what comes first was not the
    // first character.
    [[nodiscard]] bool normalize(Span text, Text &to, Text &other, bool &moved) const;

private:
    struct Tables {
        CharMap map;
        ByteTable bytes;
        View<Composition> compositions;
        View<char> from, to;
    };
    const char *open_step(const File &file, const Step &step, size_t at);
    [[nodiscard]] bool apply(size_t at, Span text, Text &to, bool &moved) const;

    View<Step> steps_;
    Tables tables_[MOST_STEPS];
    Precompiled *precompiled_ = nullptr;
};

}  // namespace hfx
