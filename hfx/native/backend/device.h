// A GPU: memory, copies and one stream of NVIDIA's driver, whose library is opened by its name.
#pragma once
#include "../memory.h"

namespace hfx {

class Device {
public:
    static constexpr size_t EVENTS = 2;

    // Frees the memory. The sessions that use the stream must be closed.
    ~Device();

    // Opens the GPU of a number, as CUDA counts the process's GPUs, for the calling thread. Returns false with the reason
    // in `error`, as all other functions do.
    [[nodiscard]] bool open(int number, Text &error);
    // Allocates memory of the GPU, or of the machine for copies that don't keep the caller waiting.
    [[nodiscard]] bool allocate(size_t bytes, void *&memory, Text &error);
    [[nodiscard]] bool allocate_host(size_t bytes, void *&memory, Text &error);
    // Each adds its work to the stream: a copy to the GPU, a copy from it, a mark.
    [[nodiscard]] bool upload(void *to, const void *from, size_t bytes, Text &error);
    [[nodiscard]] bool download(void *to, const void *from, size_t bytes, Text &error);
    [[nodiscard]] bool record(size_t event, Text &error);
    // Waits until the stream has come to the mark `event`.
    [[nodiscard]] bool wait(size_t event, Text &error);
    // Waits for all work of the stream.
    [[nodiscard]] bool finish(Text &error);

    void *stream() const { return stream_; }
    // Whether the driver has reported another error than missing memory. CUDA can't be used in this process any more.
    bool lost() const { return lost_; }

private:
    struct Driver;
    bool fails(int code, Text &error);

    const Driver *driver_ = nullptr;
    void *context_ = nullptr, *stream_ = nullptr, *events_[EVENTS] = {};
    Array<void *> memory_, host_memory_;
    int number_ = 0;
    bool lost_ = false;
};

}  // namespace hfx
