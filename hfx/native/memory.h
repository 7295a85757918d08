// Memory without exceptions: a function that gets no memory returns false, and the caller passes that on.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>

namespace hfx {

// Bytes that another object owns.
struct Span {
    const char *data = nullptr;
    size_t size = 0;

    bool equals(const char *text) const { return size == strlen(text) && !memcmp(data, text, size); }
};
inline bool same(Span one, Span other) {
    return one.size == other.size && (!one.size || !memcmp(one.data, other.data, one.size));
}

// A growing array of trivially copyable values.
template <typename Type> class Array {
public:
    static_assert(std::is_trivially_copyable<Type>::value, "values are moved by memcpy");

    Array() = default;
    Array(Array &&other) : items(other.items), count(other.count), room(other.room) { other.forget(); }
    Array &operator=(Array &&other) {
        if (this == &other) return *this;
        free(items);
        items = other.items, count = other.count, room = other.room;
        other.forget();
        return *this;
    }
    ~Array() { free(items); }

    size_t size() const { return count; }
    bool empty() const { return !count; }
    Type *data() { return items; }
    const Type *data() const { return items; }
    Type &operator[](size_t at) { return items[at]; }
    const Type &operator[](size_t at) const { return items[at]; }
    Type *begin() { return items; }
    Type *end() { return items + count; }
    const Type *begin() const { return items; }
    const Type *end() const { return items + count; }
    void clear() { count = 0; }
    void shorten(size_t to) { count = to < count ? to : count; }

    [[nodiscard]] bool reserve(size_t wanted) {
        if (wanted <= room) return true;
        size_t more = wanted > 2 * room ? wanted : 2 * room;
        if (more > SIZE_MAX / sizeof(Type)) return false;
        void *moved = realloc(static_cast<void *>(items), more * sizeof(Type));
        if (!moved) return false;
        items = static_cast<Type *>(moved), room = more;
        return true;
    }
    [[nodiscard]] bool push(const Type &value) {
        Type kept = value;  // a copy, as `value` may be an item of this array
        if (!reserve(count + 1)) return false;
        items[count++] = kept;
        return true;
    }
    [[nodiscard]] bool append(const Type *values, size_t more) {
        if (more > SIZE_MAX - count || !reserve(count + more)) return false;
        if (more) memcpy(static_cast<void *>(items + count), values, more * sizeof(Type));
        count += more;
        return true;
    }
    // Sets the number of items to `size`; new items are `value`.
    [[nodiscard]] bool resize(size_t size, const Type &value = Type()) {
        if (!reserve(size)) return false;
        for (size_t at = count; at < size; at++) items[at] = value;
        count = size;
        return true;
    }

private:
    void forget() { items = nullptr, count = room = 0; }
    Type *items = nullptr;
    size_t count = 0, room = 0;
};

using Text = Array<char>;

[[nodiscard]] inline bool append(Text &to, Span text) { return to.append(text.data, text.size); }
[[nodiscard]] inline bool append(Text &to, const Text &text) { return to.append(text.data(), text.size()); }
[[nodiscard]] inline bool append(Text &to, const char *text) { return to.append(text, strlen(text)); }

// make() creates an object with malloc, because there is no C++ library; it returns null if there is no memory.
struct Place {
    void *at;
};
}  // namespace hfx
inline void *operator new(size_t, hfx::Place place) noexcept { return place.at; }
namespace hfx {
template <typename Type> Type *make() {
    void *memory = malloc(sizeof(Type));
    return memory ? new (Place{memory}) Type() : nullptr;
}
template <typename Type> void destroy(Type *object) {
    if (!object) return;
    object->~Type();
    free(object);
}

}  // namespace hfx
