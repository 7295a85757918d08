#include "config.h"
#include <errno.h>
#include "refusals.h"

namespace hfx {
namespace {

constexpr const char *QUEUES[] = {"dynamic_batching", "sequence_batching", "ensemble_scheduling"};
constexpr const char *TENSORS[] = {"batch_input", "batch_output"};

// Reads the device of the instances. Those of a GPU must be one group with one GPU, as there is one net.
bool read_device(const Json &groups, int &gpu, Text &error) {
    int64_t number = 0;
    gpu = -1;
    for (Json each = groups.first(); each; each = each.next()) {
        if (!each["kind"].text().equals("KIND_GPU")) continue;
        if (groups.size() != 1 || each["gpus"].size() != 1 || !each["gpus"].first().integer(number, 0, INT32_MAX))
            return refuse(error, "instance_group must be one group with one number in gpus: serve several GPUs with --steps python");
        gpu = int(number);
    }
    return true;
}

}  // namespace

bool whole_number(const Json &config, const char *name, long least, long &value, Text &error) {
    Span text = parameter(config, name);
    if (!text.data) return true;
    char digits[24] = {}, *end = digits;
    if (text.size && text.size < sizeof digits) memcpy(digits, text.data, text.size);
    errno = 0;
    long found = strtol(digits, &end, 10);
    if (errno || !*digits || *end || found < least)
        return refuse(error, "parameter %s is '%.*s', not a whole number from %ld on", name, int(text.size < 80 ? text.size : 80), text.data, least);
    value = found;
    return true;
}

bool path_in(const char *folder, Span name, Text &path) {
    path.clear();
    bool absolute = name.size && *name.data == '/';
    return (absolute || (append(path, folder) && append(path, "/"))) && append(path, name) && path.push('\0');
}

bool can_be_honoured(const Json &config, int &gpu, Text &error) {
    for (const char *key : QUEUES)
        if (config[key]) return refuse(error, "%s can't be used: the backend has a queue of its own", key);
    for (const char *key : TENSORS)
        if (config[key].size()) return refuse(error, "%s can't be used: the backend makes the net's inputs itself", key);
    if (config["model_transaction_policy"]["decoupled"].is_true()) return refuse(error, "decoupled can't be used: a request has one answer");
    if (!read_device(config["instance_group"], gpu, error)) return false;
    Json accelerators = config["optimization"]["execution_accelerators"];
    bool accelerated = accelerators["cpu_execution_accelerator"].size() || accelerators["gpu_execution_accelerator"].size();
    return !accelerated || refuse(error, "execution_accelerators can't be used: the backend runs ONNX Runtime alone; serve with --steps python");
}

}  // namespace hfx
