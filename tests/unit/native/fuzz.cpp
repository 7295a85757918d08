// Fuzz targets for the code that reads bytes from outside: LLVMFuzzerTestOneInput runs the target that FUZZ_TARGET names, in a
// folder with the files of test_fuzzers.py. Without libFuzzer (FUZZ_MAIN), the program reads the inputs that its arguments
// name after a number, and runs each of them and so many mutations of it.
#include <unistd.h>
#define _exit(code) abort()  // libFuzzer keeps the input
#define main stub_main
#include "stub_triton.cpp"
#undef main
#undef _exit
#include <fcntl.h>
#include <sys/mman.h>
#include <algorithm>
#include <fstream>
#include <random>
#include "backend/json.h"
#include "backend/pool.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace hfx {  // what operators.cpp has
const ort::Api *api;
ort::MemoryInfo *cpu_memory;
ort::Status *add_adapter_operators(ort::Domain *);
extern const FloatKernels FLOATS_AVX;
extern const Kernels *chosen;
const Kernels floats_alone = {"", nullptr, nullptr, nullptr, nullptr, &FLOATS_AVX}, *chosen = &floats_alone;
}  // namespace hfx

extern "C" int64_t hfx_tokenizer_encode(const void *, const char *, const uint64_t *, size_t, int32_t *, uint32_t *, size_t, uint32_t *);

namespace {

using Bytes = std::vector<char>;
using Ids = std::vector<int32_t>;

// An input, which is read from its front. Behind its end are zeros.
struct Source {
    const uint8_t *at;
    size_t left;

    template <typename Type> Type take() {
        Type value{};
        for (uint8_t *to = reinterpret_cast<uint8_t *>(&value); left && to < reinterpret_cast<uint8_t *>(&value + 1); left--) *to++ = *at++;
        return value;
    }
    size_t below(size_t end) { return take<uint8_t>() % end; }
    // Mostly `likely`, or a number near it, or any number.
    int64_t near(int64_t likely) {
        const size_t kind = below(256);
        return kind < 224 ? likely : kind < 248 ? likely + take<int8_t>() : take<int64_t>();
    }
    // The bytes before the next `end`. In a text, 0xfe and a byte n are 10 n times the text before them.
    std::string until(uint8_t end) {
        std::string text(at, std::find(at, at + left, end));
        const size_t size = text.size() + (text.size() < left);
        return at += size, left -= size, text;
    }
    std::string text() {
        std::string text = until(0xff), all;
        const size_t times = text.find('\xfe');
        if (times == std::string::npos || times + 1 >= text.size()) return text;
        for (int each = 0; each < 10 * uint8_t(text[times + 1]) && all.size() < 100'000; each++) all.append(text, 0, times);
        return all + text.substr(times + 2);
    }
};

// Writes a file in memory, whose descriptor is `number`, and returns its path.
std::string shared(int number, const void *data, size_t size) {
    if (fcntl(number, F_GETFD) < 0) dup2(memfd_create("fuzz", 0), number);
    check(!ftruncate(number, 0) && pwrite(number, data, size, 0) == ssize_t(size), "a file can't be written");
    return "/proc/self/fd/" + std::to_string(number);
}

std::string content(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

Ids encoded(const hfx::Tokenizer &tokenizer, const Strings &texts) {
    Bytes all;
    std::vector<uint64_t> ends;
    for (const std::string &text : texts) all.insert(all.end(), text.begin(), text.end()), ends.push_back(all.size());
    const Bytes exact(all);
    std::vector<uint32_t> words(16 * all.size() + 64), counts(texts.size());
    Ids ids(words.size());
    int64_t count = hfx_tokenizer_encode(&tokenizer, exact.data(), ends.data(), ends.size(), ids.data(), words.data(), ids.size(), counts.data());
    size_t at = 0;
    if (count < 0) return {int32_t(count)};
    for (uint32_t each : counts)
        for (uint32_t token = 0; token < each && at < ids.size(); token++, at++)
            check(tokenizer.token(ids[at]).data && (!token || words[at] >= words[at - 1]), "an id is beyond the vocabulary, or words don't ascend");
    return ids.resize(at), ids;
}

// A compiled tokenizer: the number of a file of the folder, where it is cut if the number is from 128 on, and changes of its
// numbers; or, behind 255, a whole file.
void file_target(Source source) {
    static const std::string files[] = {content("0.hfx"), content("1.hfx"), content("2.hfx"), content("3.hfx"), content("4.hfx")};
    constexpr uint32_t HEADER = 24, SECTION = 24;
    const size_t number = source.below(256), cut = number < 128 ? SIZE_MAX : source.take<uint32_t>();
    std::string bytes = files[number % 5];
    while (number < 255 && source.left) {
        uint32_t sections, value;
        memcpy(&sections, &bytes[12], 4);
        if (sections > 1000) break;
        const uint32_t section = source.take<uint8_t>() % (sections + 2), kind = source.take<uint8_t>(), place = source.take<uint8_t>();
        const uint32_t entry = HEADER + SECTION * section;
        uint32_t begin = section > sections ? 0 : HEADER, size = section > sections ? HEADER : SECTION * sections;
        if (section < sections) memcpy(&begin, &bytes[entry + 8], 4), memcpy(&size, &bytes[entry + 16], 4);
        if (section < sections && kind % 4 == 0) begin = entry, size = SECTION;
        const size_t words = std::max<size_t>(1, size / 4), from_end = kind & 128, word = (kind & 64 ? place * 257 : place) % words;
        const size_t at = begin + 4 * (from_end ? words - 1 - word : word);
        if (at + 4 > bytes.size()) break;
        memcpy(&value, &bytes[at], 4);
        value = kind & 16 ? source.take<uint32_t>() : uint32_t(source.take<int8_t>()) + (kind & 32 ? value : 0);
        memcpy(&bytes[at], &value, 4);
    }
    bytes.resize(std::min(bytes.size(), cut));
    if (number == 255) bytes.assign(source.at, source.at + source.left);
    const std::string path = shared(100, bytes.data(), bytes.size());
    hfx::Tokenizer tokenizer;
    if (tokenizer.open(path.c_str())) return;
    check(tokenizer.has_bytes_of(path.c_str()), "a file differs from itself");
    for (const hfx::Template *each : {&tokenizer.single, &tokenizer.pair})
        for (const auto &part : {each->begin, each->middle, each->end})
            for (size_t at = 0; at < part.count; at++) check(tokenizer.token(part.ids[at]).data, "a special token is beyond the vocabulary");
    encoded(tokenizer, {"", "Anna's weather  markets: The quick brown foxes don't jump. [SEP]", "caf\u00e9 e\u0316\u0301 \u4f60\u597d \uac00\u1100\u1161\u11a8", " <s>new word <mask>12\n\U0001f468\u200d\U0001f469 \U0010ffff"});
}

// The number of a tokenizer, and texts: each has the ids in a batch that it has alone.
void text_target(Source source) {
    static std::deque<hfx::Tokenizer> tokenizers;
    for (bool more = tokenizers.empty(); more;) {
        const std::string path = std::to_string(tokenizers.size()) + ".hfx";
        if ((more = !access(path.c_str(), R_OK))) check(!tokenizers.emplace_back().open(path.c_str()), path);
    }
    const hfx::Tokenizer &tokenizer = tokenizers[source.below(tokenizers.size())];
    Strings texts;
    Ids together;
    bool valid = true;
    while (source.left && texts.size() < 8) {
        texts.push_back(source.text());
        const Ids alone = encoded(tokenizer, {texts.back()});
        valid = valid && !hfx::utf8_error({texts.back().data(), texts.back().size()}).reason;
        together.insert(together.end(), alone.begin(), alone.end());
    }
    if (!texts.empty()) check(encoded(tokenizer, texts) == (valid ? together : Ids{-2}), "a text has other ids in a batch");
}

void walk(const hfx::Json &json) {
    int64_t number = 0, members = 0;
    check(!json.integer(number) || json.kind() == hfx::Json::NUMBER, "a whole number is none");
    for (hfx::Json each = json.first(); each; each = each.next(), members++) {
        check(!hfx::utf8_error(each.key()).reason && !hfx::utf8_error(each.text()).reason, "a text is no UTF-8");
        walk(each);
    }
    check(members == int64_t(json.size()), "a list has another size");
}

void json_target(Source source) {
    Bytes exact(source.at, source.at + source.left);
    hfx::Document document;
    if (!document.parse({exact.data(), exact.size()})) walk(document.root());
    check(document.position() <= exact.size(), "an error is behind the text");
}

// The configuration of a model, its settings and those of its answer, each up to a zero, and its own weights.
void model_target(Source source) {
    const std::string config = source.until(0), settings = source.until(0), answer = source.until(0);
    shared(101, settings.data(), settings.size()), shared(102, answer.data(), answer.size()), shared(103, source.at, source.left);
    TRITONBACKEND_Model model = {"any", config, nullptr};
    TRITONBACKEND_Request request;
    std::string words;
    if (!open(model, words)) return check(!words.empty(), "a refusal has no words");
    KINDS[1].fill(request), request.outputs.push_back("logits");
    send(model, request), wait_for(request), check_done(request), close(model);
}

constexpr struct {
    const char *name;
    int type, parameter;
} TENSORS[] = {{"text_input", BYTES, 0}, {"query", BYTES, 0}, {"candidate_labels", BYTES, 0}, {"top_k", INT32, 1}, {"long", BYTES, 0}, {"stride", INT32, 1},
               {"multi_label", BOOL, 2}, {"raw_scores", BOOL, 2}, {"dimensions", INT32, 1}, {"prompt_name", BYTES, 0}, {"prompt", BYTES, 0}, {"x", BYTES, 0}};

// Returns whether the request's answer depends on nothing but its inputs.
bool fill(TRITONBACKEND_Request &request, Source &source, int64_t rows) {
    for (size_t left = 1 + source.below(6); left; left--) {
        const auto &tensor = TENSORS[source.below(12)];
        const int64_t columns = tensor.name[0] == 'c' ? 2 : 1, type = source.near(tensor.type);
        std::vector<int64_t> shape{source.near(rows), source.near(columns)};
        shape.resize(std::min(size_t(source.near(2)), size_t(9)), 1);
        std::string bytes;
        for (int64_t count = std::min<int64_t>(source.near(rows * columns), 40); count > 0; count--) {
            const int32_t value = tensor.type == BYTES ? 0 : int32_t(source.near(2));
            bytes += tensor.type == BYTES ? packed({source.text()}) : std::string(reinterpret_cast<const char *>(&value), tensor.type == BOOL ? 1 : 4);
        }
        bytes.resize(size_t(std::max<int64_t>(0, std::min(source.near(int64_t(bytes.size())), int64_t(bytes.size()) + 9))));
        const size_t cut = source.below(8) ? 0 : std::min(bytes.size(), source.below(256));
        add_input(request, tensor.name, int(type), shape, cut ? Strings{bytes.substr(0, cut), bytes.substr(cut)} : Strings{bytes}, source.near(0) == 2 ? 2 : 0);
    }
    for (size_t left = source.below(4); left > 1; left--) {
        const auto &tensor = TENSORS[source.below(12)];
        const std::string text = source.text();
        const int64_t type = source.near(tensor.parameter), number = source.near(1);
        request.parameters.push_back({tensor.name[0] == 'x' ? text : tensor.name, int(type), type == 2 ? number & 1 : number, text.c_str()});
    }
    const size_t kind = source.below(64);
    request.outputs.push_back("logits");
    if (kind == 1) request.outputs = {"score", "score", "other"};
    if (kind == 2) request.checks = int(source.below(4));
    if (kind == 3) request.timeout = 1;
    if (kind > 60) request.id = "front-1", request.flags = uint32_t(kind & 2);
    return kind < 2 || (kind > 3 && kind <= 60);
}

// Requests to a model. Each gets the same answer beside the others that it gets alone; and if the n-th call or allocation
// fails, each is still answered once.
void request_target(Source source) {
    static auto &models = *new std::map<std::string, TRITONBACKEND_Model>;  // that live until the process ends
    const std::string name = std::to_string(source.below(5));
    TRITONBACKEND_Model &model = models[name];
    std::string words;
    if (!model.state) model = {name, content(name + ".json"), nullptr}, check(open(model, words), words);
    const size_t failing = source.below(256), count = 1 + source.below(3);
    const int64_t rows = 1 + int64_t(source.below(4));
    const Source begin = source;
    std::deque<TRITONBACKEND_Request> alone(count);
    std::vector<bool> steady;
    for (auto &each : alone) steady.push_back(fill(each, source, rows)), send(model, each), wait_for(each), check_done(each);
    for (bool fails : {false, true}) {
        std::deque<TRITONBACKEND_Request> together(count);
        std::vector<TRITONBACKEND_Request *> all;
        TRITONBACKEND_ModelInstance instance = {&model};
        source = begin;
        for (auto &each : together) fill(each, source, rows), all.push_back(&each);
        (failing & 1 ? calls_left : allocations_left) = fails ? long(failing / 2) : 0;
        check(!TRITONBACKEND_ModelInstanceExecute(&instance, all.data(), uint32_t(count)), "Execute returns an error");
        calls_left = allocations_left = 0;
        for (size_t at = 0; at < count; at++) {
            const auto &one = alone[at], &other = together[at];
            wait_for(other), check_done(other, !fails || !(failing & 1));
            check(fails || !steady[at] || (one.code == other.code && one.answer == other.answer), "a request is answered otherwise in a batch");
        }
    }
    check(!errors && !messages && !responses, "errors, messages or responses are left");
}

// Loads and frees adapters of `stride` numbers; every slot has the numbers of its file, and a free one zeros.
void pool_target(Source source) {
    hfx::Pool pool;
    hfx::Text error;
    const size_t stride = 1 + source.take<uint16_t>() % 3000;
    check(pool.open(stride, error), "a pool can't be opened");
    std::map<int32_t, std::vector<float>> slots;
    for (int steps = 0; source.left && steps < 16; steps++) {
        int32_t slot = -1;
        if (!slots.empty() && source.below(3) == 0) {
            slot = std::next(slots.begin(), long(source.below(slots.size())))->first;
            const float *numbers = pool.data() + size_t(slot) * stride;
            pool.free(slot), slots.erase(slot);
            check(std::all_of(numbers, numbers + stride, [](float number) { return number == 0; }), "a free slot has numbers");
        } else {
            std::vector<float> numbers(stride);
            for (size_t runs = source.below(4); runs; runs--) {
                const size_t from = source.take<uint16_t>() % stride, size = source.take<uint16_t>() % (stride - from + 1);
                std::fill_n(numbers.begin() + long(from), size, source.take<float>());
            }
            const size_t bytes = std::min(size_t(source.near(int64_t(4 * stride))), size_t(1) << 20);
            numbers.resize(std::max(stride, bytes / 4 + 1));
            const bool loaded = pool.load(shared(104, numbers.data(), bytes).c_str(), slot, error);
            numbers.resize(stride);
            check(loaded == (bytes == 4 * stride) && (loaded || slot < 0), "a file of another size is loaded, or one is not");
            if (loaded) check(slots.emplace(slot, numbers).second, "a slot has two models");
        }
        for (const auto &[at, numbers] : slots) check(!memcmp(pool.data() + size_t(at) * stride, numbers.data(), 4 * stride), "a slot has other numbers");
        check(pool.used() == (slots.empty() ? 0 : size_t(slots.rbegin()->first) + 1), "another number of slots is used");
    }
}

// ONNX Runtime, for one node.
struct Given {
    std::vector<int64_t> sizes;
    Bytes bytes;
    void *data() { return bytes.empty() ? reinterpret_cast<void *>(uintptr_t(4096)) : bytes.data(); }  // no memory is there
};
struct Node {
    std::map<std::string, int64_t> attributes;
    std::vector<Given> inputs;
    Given output;
};
std::vector<ort::Operator *> operators;

ort::Api node_api() {
    ort::Api table{};
    auto set = [&](int slot, auto function) { table.slots[slot] = reinterpret_cast<void *>(function); };
    set(0, +[](int, const char *words) { return words; });
    set(27, +[](void *, ort::Operator *op) -> void * { return operators.push_back(op), nullptr; });
    set(51, +[](Given *given, void **out) -> void * { return *out = given->data(), nullptr; });
    set(61, +[](const Given *given, size_t *out) -> void * { return *out = given->sizes.size(), nullptr; });
    set(62, +[](const Given *given, int64_t *out, size_t) -> void * { return std::copy(given->sizes.begin(), given->sizes.end(), out), nullptr; });
    set(65, +[](Given *given, Given **out) -> void * { return *out = given, nullptr; });
    set(86, +[](const Node *node, const char *name, int64_t *out) -> void * { return *out = node->attributes.at(name), nullptr; });
    set(90, +[](Node *node, size_t at, Given **out) -> void * { return *out = at < node->inputs.size() ? &node->inputs[at] : nullptr, nullptr; });
    set(91, +[](Node *node, size_t, const int64_t *sizes, size_t rank, Given **out) -> void * {
        node->output.sizes.assign(sizes, sizes + rank);
        size_t count = 4;
        for (size_t at = 0; at < rank; at++) count *= size_t(sizes[at]);
        return node->output.bytes = Bytes(count), *out = &node->output, nullptr;
    });
    set(99, +[](void *) {});
    set(274, +[](Node *, void (*work)(void *, size_t), size_t count, size_t, void *data) -> void * {
        while (count--) work(data, count);
        return nullptr;
    });
    return table;
}

bool compute(const ort::Operator *op, Node &node) {
    void *kernel = nullptr;
    bool done = !op->create(op, hfx::api, reinterpret_cast<ort::KernelInfo *>(&node), &kernel) && !op->compute(kernel, reinterpret_cast<ort::KernelContext *>(&node));
    op->destroy(kernel);
    return done;
}

// An operator of adapters, its attributes and its inputs. Each text has the bits beside others that it has alone.
void adapters_target(Source source) {
    static const ort::Api table = node_api();
    if (operators.empty()) hfx::api = &table, hfx::add_adapter_operators(nullptr);
    const ort::Operator *op = operators[source.below(operators.size())];
    const bool linear = strstr(op->name(op), "Linear"), residual = strstr(op->name(op), "Add");
    const uint64_t size = strstr(op->name(op), "Int8") ? 1 : 4, scales = size == 1;
    auto numbers = [size](uint64_t weights) { return (weights * size + 3) / 4; };
    const size_t base = linear ? 0 : residual ? 2 : 1, pool = base + 2;  // the inputs that are like x end at `base`
    Node node;
    int64_t in = 1 + int64_t(source.below(48)), out = 0, texts = int64_t(source.below(5)), tokens = int64_t(source.below(8));
    for (const char *each : {"in_features", "offset", "out_features"}) node.attributes[each] = source.near(*each == 'i' ? in : 1 + int64_t(source.below(40)));
    const uint64_t inputs = uint64_t(node.attributes["in_features"]), outputs = uint64_t(node.attributes["out_features"]);
    uint64_t stride = uint64_t(node.attributes["offset"]) + (linear ? outputs * (1 + scales) + numbers(outputs * inputs) : 0);
    for (const char *each : {"0", "1", "2"}) {
        int64_t &columns = node.attributes[std::string("columns") + each], &rank = node.attributes[std::string("rank") + each];
        columns = source.near(int64_t(source.below(24))), rank = source.near(columns ? int64_t(source.below(12)) : 0), out += columns & 0xfff;
        if (!linear && rank) stride += 16 + scales * uint64_t(rank) + numbers(uint64_t(rank) * inputs) + numbers(uint64_t(rank) * uint64_t(columns));
    }
    const size_t step = source.below(64), modulo = 1 + source.below(12), special = source.below(4);
    auto add = [&](std::vector<int64_t> sizes, bool whole, int64_t end) {
        size_t count = 4;
        for (int64_t &each : sizes) each = std::max<int64_t>(0, std::min<int64_t>(source.near(each), 9000)), count *= size_t(each);
        Given given{count > 1 << 18 ? std::vector<int64_t>{0, 0} : sizes, Bytes(count > 1 << 18 ? 0 : count)};
        for (size_t at = 0; at < given.bytes.size() / 4; at++) {
            const float number = end ? float(at * step % modulo) : float(int(at * step % 37) - 18) / 16;
            const int32_t index = whole ? int32_t(source.near(int64_t(source.below(size_t(end))))) : 0;
            memcpy(&given.bytes[4 * at], whole ? static_cast<const void *>(&index) : &number, 4);
            if (!whole && !end && special == 3 && at % 11 == 5) memset(&given.bytes[4 * at], 0xff, 4);  // a NaN
        }
        node.inputs.push_back(std::move(given));
    };
    std::vector<int64_t> x{texts, tokens, in}, y{texts, tokens, out};
    if (special == 2) x.erase(x.begin() + 1), y.erase(y.begin() + 1);
    for (size_t at = 0; at <= base; at++) add(at ? y : x, false, 0);
    const int64_t slots = 1 + int64_t(source.below(4));
    add({source.below(4) ? texts : 1}, true, slots);
    add({slots, int64_t(std::min<uint64_t>(stride, 9000))}, false, 1);
    if (!linear && x.size() == 3 && tokens && source.below(2)) add({texts}, true, tokens);
    if (!compute(op, node) || !node.inputs[0].sizes[0]) return;
    auto part = [](const Given &all, int64_t text) {
        const long each = long(all.bytes.size()) / all.sizes[0];
        Given part{all.sizes, Bytes(all.bytes.begin() + text * each, all.bytes.begin() + (text + 1) * each)};
        return part.sizes[0] = 1, part;
    };
    for (int64_t text = 0; text < node.inputs[0].sizes[0]; text++) {
        Node alone{node.attributes, node.inputs, {}};
        for (Given &each : alone.inputs)
            if (&each != &alone.inputs[pool] && each.sizes[0] > 1) each = part(each, text);
        check(compute(op, alone) && alone.output.bytes == part(node.output, text).bytes, "a text has other bits beside others");
    }
}

const std::map<std::string, void (*)(Source)> TARGETS = {
    {"file", file_target}, {"text", text_target}, {"json", json_target}, {"model", model_target}, {"request", request_target}, {"pool", pool_target}, {"adapters", adapters_target}};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const auto target = TARGETS.at(getenv("FUZZ_TARGET"));
    most_bytes = 16 << 20;
    return target({data, size}), 0;
}

#ifdef FUZZ_MAIN
int main(int count, char **arguments) {
    std::minstd_rand chance(1);
    for (int at = 2; at < count; at++)
        for (int round = 0; round <= atoi(arguments[1]); round++) {
            std::string bytes = content(arguments[at]);
            for (size_t changes = round ? 1 + chance() % 4 : 0; changes && !bytes.empty(); changes--) bytes[chance() % bytes.size()] = char(chance() % 3 ? chance() : 0);
            if (round % 8 == 7) bytes.resize(chance() % (bytes.size() + 1));
            LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size());
        }
}
#endif
