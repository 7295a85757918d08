// The functions that Triton calls in the backend, which runs all steps of an encoder in one model. Triton's model holds
// the state, and its instances hold none.
#include "model.h"
#include <stdio.h>
#include "refusals.h"

using namespace hfx;

#define HFX_EXPORTED extern "C" __attribute__((visibility("default")))

// Classes with virtual functions refer to this function of the C++ library, with which this library is not linked.
extern "C" void __cxa_pure_virtual() { __builtin_trap(); }

namespace {

TRITONSERVER_Error *failure(TRITONSERVER_Error_Code code, Text &words) {
    if (words.empty() || !words.push('\0')) return TRITONSERVER_ErrorNew(triton::UNAVAILABLE, NO_MEMORY);
    return TRITONSERVER_ErrorNew(code, words.data());
}

bool version_folder(TRITONBACKEND_Model *handle, Text &folder) {
    TRITONBACKEND_ArtifactType type = 0;
    const char *location = nullptr;
    uint64_t version = 0;
    char digits[32];
    if (!triton::done(TRITONBACKEND_ModelRepository(handle, &type, &location)) || !triton::done(TRITONBACKEND_ModelVersion(handle, &version)))
        return false;
    snprintf(digits, sizeof digits, "/%llu", (unsigned long long)version);
    return append(folder, location) && append(folder, digits) && folder.push('\0');
}

bool open(Model &model, TRITONBACKEND_Model *handle, Text &error) {
    TRITONSERVER_Message *message = nullptr;
    Span config;
    Text folder;
    if (!version_folder(handle, folder)) return refuse(error, "Triton names no folder of the model");
    if (!triton::done(TRITONBACKEND_ModelConfig(handle, 1, &message))) return refuse(error, "Triton has no configuration of the model");
    bool opened = triton::done(TRITONSERVER_MessageSerializeToJson(message, &config.data, &config.size)) && model.open(config, folder.data(), error);
    triton::done(TRITONSERVER_MessageDelete(message));
    return opened;
}

}  // namespace

HFX_EXPORTED TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *) {
    uint32_t major = 0, minor = 0;
    Text words;
    if (triton::done(TRITONBACKEND_ApiVersion(&major, &minor)) && major == triton::API_MAJOR && minor >= triton::API_MINOR) return nullptr;
    refuse(words, "Triton's backend API is %u.%u; hfx needs %u.%u", major, minor, triton::API_MAJOR, triton::API_MINOR);
    return failure(triton::UNSUPPORTED, words);
}

HFX_EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *handle) {
    Text words;
    Model *model = make<Model>();
    if (!model || !open(*model, handle, words)) {
        destroy(model);
        return failure(triton::INVALID_ARGUMENT, words);
    }
    TRITONSERVER_Error *error = TRITONBACKEND_ModelSetState(handle, model);
    if (error) destroy(model);
    return error;
}

HFX_EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *handle) {
    void *state = nullptr;
    if (triton::done(TRITONBACKEND_ModelState(handle, &state))) destroy(static_cast<Model *>(state));
    return nullptr;
}

HFX_EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, uint32_t count) {
    TRITONBACKEND_Model *handle = nullptr;
    void *state = nullptr;
    if (TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceModel(instance, &handle)) return error;
    if (TRITONSERVER_Error *error = TRITONBACKEND_ModelState(handle, &state)) return error;
    static_cast<Model *>(state)->execute(instance, requests, count);
    return nullptr;
}
