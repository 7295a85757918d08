// The part of Triton's backend interface that is used (triton-inference-server/core: tritonbackend.h, tritonserver.h).
//
// All functions are weak, because ONNX Runtime and Python load the library, too, without Triton.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define HFX_TRITON __attribute__((weak, visibility("default")))

extern "C" {

struct TRITONSERVER_Error;
struct TRITONSERVER_Message;
struct TRITONSERVER_Metric;
struct TRITONSERVER_MetricFamily;
struct TRITONSERVER_Parameter;
struct TRITONBACKEND_Backend;
struct TRITONBACKEND_Model;
struct TRITONBACKEND_ModelInstance;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_Output;

typedef int TRITONSERVER_Error_Code, TRITONSERVER_DataType, TRITONSERVER_MemoryType, TRITONSERVER_ParameterType, TRITONSERVER_MetricKind;
typedef int TRITONBACKEND_ArtifactType;

HFX_TRITON TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *message);
HFX_TRITON void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error);
HFX_TRITON TRITONSERVER_Error *TRITONSERVER_LogMessage(int level, const char *file, int line, const char *message);
HFX_TRITON TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *message, const char **text, size_t *bytes);
HFX_TRITON TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message);

HFX_TRITON TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, TRITONSERVER_ParameterType type, const void *value);
HFX_TRITON void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *parameter);
HFX_TRITON TRITONSERVER_Error *TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily **family, TRITONSERVER_MetricKind kind, const char *name, const char *description);
HFX_TRITON TRITONSERVER_Error *TRITONSERVER_MetricNew(TRITONSERVER_Metric **metric, TRITONSERVER_MetricFamily *family, const TRITONSERVER_Parameter **labels, uint64_t count);
HFX_TRITON TRITONSERVER_Error *TRITONSERVER_MetricIncrement(TRITONSERVER_Metric *metric, double value);

HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *model, uint32_t version, TRITONSERVER_Message **config);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *model, TRITONBACKEND_ArtifactType *type, const char **location);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *model, uint64_t *version);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **state);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Model **model);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request, bool success, uint64_t exec_start, uint64_t compute_start, uint64_t compute_end, uint64_t exec_end);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance *instance, uint64_t rows, uint64_t exec_start, uint64_t compute_start, uint64_t compute_end, uint64_t exec_end);

HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request *request, uint32_t *count);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request *request, uint32_t index, TRITONBACKEND_Input **input);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *request, uint32_t *count);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *request, uint32_t index, const char **name);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *request, uint32_t *count);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestParameter(TRITONBACKEND_Request *request, uint32_t index, const char **key, TRITONSERVER_ParameterType *type, const void **value);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request *request, const char **id);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestFlags(TRITONBACKEND_Request *request, uint32_t *flags);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request *request, bool *cancelled);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request *request, uint64_t *timeout);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request, uint32_t flags);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *input, const char **name, TRITONSERVER_DataType *type, const int64_t **shape, uint32_t *rank, uint64_t *bytes, uint32_t *buffers);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *input, uint32_t index, const void **data, uint64_t *bytes, TRITONSERVER_MemoryType *memory, int64_t *memory_id);

HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response, TRITONBACKEND_Request *request);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *response, TRITONBACKEND_Output **output, const char *name, TRITONSERVER_DataType type, const int64_t *shape, uint32_t rank);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *output, void **data, uint64_t bytes, TRITONSERVER_MemoryType *memory, int64_t *memory_id);
HFX_TRITON TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *response, uint32_t flags, TRITONSERVER_Error *error);

}  // extern "C"

namespace hfx::triton {

constexpr uint32_t API_MAJOR = 1, API_MINOR = 15;  // with cancelled requests (23.10)
constexpr TRITONSERVER_Error_Code INTERNAL = 1, INVALID_ARGUMENT = 3, UNAVAILABLE = 4, UNSUPPORTED = 5, CANCELLED = 7;
constexpr TRITONSERVER_DataType BOOL = 1, INT32 = 8, FP32 = 11, BYTES = 13;
constexpr TRITONSERVER_MemoryType CPU = 0, CPU_PINNED = 1;
constexpr TRITONSERVER_ParameterType STRING = 0;
constexpr TRITONSERVER_MetricKind COUNTER = 0;
constexpr int WARNING = 1, ERROR = 2;  // levels of the log
constexpr uint32_t RELEASE_ALL = 1, FINAL_RESPONSE = 1, SEQUENCE_END = 2;

// Whether a call succeeded. Deletes its error, which nothing uses.
inline bool done(TRITONSERVER_Error *error) {
    if (error) TRITONSERVER_ErrorDelete(error);
    return !error;
}
// Writes a line to Triton's log.
inline void log(int level, const char *line) {
    if (TRITONSERVER_LogMessage) done(TRITONSERVER_LogMessage(level, "hfx", 0, line));
}

}  // namespace hfx::triton
