#include "net.h"
#include "refusals.h"

namespace hfx {
namespace {

constexpr const char *ADAPTER = "adapter", *ADAPTERS = "adapters";

}  // namespace

bool Feed::add_rows(size_t count, size_t sequences, size_t width) {
    rows += count;
    for (size_t row = 0; row < count; row++)
        if ((rank == 2 && !shapes.push(int32_t(sequences))) || !shapes.push(int32_t(width))) return false;
    return true;
}

bool Net::open(const Json &config, const char *folder, const char *output, Text &error) {
    if (!session_.load(config, folder, error) || !session_.open(config, folder, error)) return false;
    constexpr const char *INPUTS[] = {IDS, MASK, SHAPE};
    return append(output_, output) && output_.push('\0') && session_.check(INPUTS, 3, output, types_, error);
}

bool Net::use(const Pool &pool, size_t &stride, Text &error) {
    const ort::Api &api = session_.api();
    size_t count = 0, known = 0;
    Text name;
    int type = 0;
    int64_t width = 0;
    if (session_.fails(api.count(ort::INITIALIZER, session_.handle(), &count), error)) return false;
    for (size_t at = 0; at < count; at++) {
        if (!session_.element(ort::INITIALIZER, at, type, name, width, error)) return false;
        bool is_pool = !strcmp(name.data(), ADAPTERS);
        if (!is_pool && strcmp(name.data(), ADAPTER)) continue;
        if (type != (is_pool ? ort::FLOAT : ort::INT32)) return refuse(error, "the graph takes %.80s with another type", name.data());
        if (is_pool) stride = width > 0 ? size_t(width) : 0;
        known++;
    }
    pool_ = &pool;
    return known == 2 || refuse(error, "the graph of a shared net lacks the initializer %s or %s", ADAPTER, ADAPTERS);
}

bool Net::run(const Feed &feed, Values &made, Text &error) const {
    const ort::Api &api = session_.api();
    const char *names[6] = {IDS, MASK, SHAPE, TYPES}, *wanted[1] = {output_.data()};
    const Array<int32_t> *arrays[4] = {&feed.ids, &feed.mask, &feed.shapes, &feed.types};
    size_t count = types_ ? 4 : 3;
    ort::Value *values[6] = {}, *out[1] = {};
    bool failed = false;
    for (size_t at = 0; at < count && !failed; at++) {
        bool flat = arrays[at] != &feed.shapes;
        int64_t shape[2] = {flat ? int64_t(arrays[at]->size()) : int64_t(feed.rows), int64_t(feed.rank)};
        failed = session_.fails(api.tensor(session_.memory(), const_cast<int32_t *>(arrays[at]->data()), 4 * arrays[at]->size(), shape, flat ? 1 : 2, ort::INT32, &values[at]), error);
    }
    if (pool_ && !failed) {
        int64_t sequences = int64_t(feed.slots.size()), shape[2] = {int64_t(pool_->used()), int64_t(pool_->stride())};
        names[count] = ADAPTER, names[count + 1] = ADAPTERS;
        failed = session_.fails(api.tensor(session_.memory(), const_cast<int32_t *>(feed.slots.data()), 4 * feed.slots.size(), &sequences, 1, ort::INT32, &values[count]), error) ||
                 session_.fails(api.tensor(session_.memory(), pool_->data(), 4 * size_t(shape[0] * shape[1]), shape, 2, ort::FLOAT, &values[count + 1]), error);
        count += 2;
    }
    failed = failed || session_.fails(api.run(session_.handle(), nullptr, names, values, count, wanted, 1, out), error);
    bool taken = !failed && take(out[0], feed.rows, made, error);
    for (ort::Value *each : values)
        if (each) api.release(each);
    if (out[0]) api.release(out[0]);
    return taken;
}

bool Net::take(ort::Value *value, size_t rows, Values &made, Text &error) const {
    int64_t sizes[Session::MOST_RANK];
    size_t rank = 0, count = 1;
    void *data = nullptr;
    error.clear();
    if (!session_.sizes(value, sizes, rank, error)) return false;
    if (!rank || size_t(sizes[0]) != rows) return refuse(error, "the net's output has another number of rows");
    for (size_t at = 0; at < rank; at++) count *= size_t(sizes[at]);
    if (session_.fails(session_.api().data(value, &data), error)) return false;
    made.data.clear(), made.shape.clear();
    return made.shape.append(sizes, rank) && made.data.append(static_cast<const float *>(data), count);
}

}  // namespace hfx
