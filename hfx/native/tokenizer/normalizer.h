// Changes a text before it is split: the steps of Hugging Face's normalizers, implemented by tables.
#pragma once
#include "precompiled.h"
#include "tables.h"
#include "unicode.h"

namespace hfx {

class Normalizer {
public:
    enum Kind : uint32_t {
        MAP = 1,      // section: a CharMap; neighbouring steps that map characters are joined to one
        ORDER,        // section: a ByteTable of combining classes; puts marks into canonical order
        COMPOSE,      // section: the same, and then the pairs {first, second, composed} u32, sorted
        REPLACE,      // section: a text, and then its replacement
        REPLACE_RUN,  // section: a ByteTable, and then the replacement of `value` or more of its characters in a row
        STRIP,        // section: a ByteTable of white space; flags: 1 from the left, 2 from the right
        PREPEND,      // section: a text to put before texts that aren't empty
        PRECOMPILED,  // section: as precompiled.h describes
    };
    static constexpr size_t MOST_STEPS = 32;

    const char *open(const File &file);
    ~Normalizer();

    // Normalizes `text` into `to`; `other` is a buffer for the steps. Sets `moved` if the first character of `text` is
    // not the origin of what comes first in `to`. Returns false if there is no memory.
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
