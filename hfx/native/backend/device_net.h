// The net of an encoder on a GPU: an ONNX file with the inputs [sequences, width], in ONNX Runtime's CUDA provider.
//
// All runs use one stream, and the same memory of the GPU: the stream orders the copies and the runs. There are two
// places in the machine's memory, so that a run is prepared while another one runs. The kernels of small shapes are
// captured as CUDA graphs when the net is opened, so that each run is a single launch. ONNX Runtime keeps these graphs
// for each thread, so one thread must open the net and run it.
#pragma once
#include "device.h"
#include "session.h"

namespace hfx {

// The sizes of a run, padding included.
struct Shape {
    size_t sequences = 0, width = 0;
};

// The shapes that runs on a GPU may have.
class Shapes {
public:
    static constexpr size_t MOST_SEQUENCES = 256;
    // In a run, unless one sequence has more: enough to keep a large GPU busy, and little enough that answers are sent
    // while the next run computes.
    static constexpr size_t MOST_TOKENS = 16384;
    // A run of so few tokens takes as long as a run of one token, so padding costs nothing there (H100).
    static constexpr size_t FEW_TOKENS = 2048;
    // Shapes up to these sizes are captured.
    static constexpr size_t CAPTURED_SEQUENCES = 32, CAPTURED_WIDTH = 128;

    // Sequences are padded to `widths`, ascending.
    [[nodiscard]] bool open(const Array<int32_t> &widths);

    // The most sequences of a width in a run.
    static size_t most(size_t width);
    // The shape of a run of `sequences`, of which the widest has `width` tokens.
    Shape of(size_t sequences, size_t width) const;
    // The number of a captured shape, from 1 on; 0 for other shapes.
    size_t captured(Shape shape) const;
    // The captured shape of a number; empty beyond the last one.
    Shape at(size_t number) const;
    size_t widest() const { return widest_; }
    size_t narrowest() const { return narrowest_; }

private:
    Array<size_t> widths_;  // of captured shapes
    size_t widest_ = 0, narrowest_ = 0;
};

class DeviceNet {
public:
    static constexpr size_t PLACES = Device::EVENTS;

    ~DeviceNet();

    // Opens the net that the parameters of a model's configuration name, on the GPU `number`. `folder` is the version
    // folder. Returns false with the reason in `error`, as all other functions do.
    [[nodiscard]] bool open(const Json &config, const char *folder, const char *output, int number, const Array<int32_t> &widths, Text &error);

    // The inputs of the next run in a place: `which` is 0 for ids, 1 for the mask and 2 for types.
    int32_t *input(size_t place, Shape shape, size_t which) const;
    // Begins a run with these inputs. The place is in use until `wait` returns.
    [[nodiscard]] bool begin(size_t place, Shape shape, Text &error);
    // Waits for the run, and sets `output` to [sequences, classes()], which stays until the next run in the place.
    [[nodiscard]] bool wait(size_t place, const float *&output, Text &error);

    bool has_types() const { return types_; }
    size_t classes() const { return classes_; }
    const Shapes &shapes() const { return shapes_; }
    bool lost() const { return device_.lost(); }

private:
    bool start(const Json &config, const char *folder, int number, Text &error);
    bool provide(const Json &config, int number, Text &error);
    bool probe(Text &error);
    bool allocate(Text &error);
    bool warm_up(Text &error);
    bool try_shape(Shape shape, Text &error);
    bool run(Shape shape, Text &error);
    bool bind(const char *name, void *data, size_t element, Shape shape, int type, Text &error);

    Device device_;
    Session session_;
    Shapes shapes_;
    ort::MemoryInfo *memory_ = nullptr;
    ort::IoBinding *binding_ = nullptr;
    void *in_ = nullptr, *out_ = nullptr, *host_in_[PLACES] = {}, *host_out_[PLACES] = {};
    Text output_;
    size_t classes_ = 0;
    bool types_ = false, captures_ = true;
};

}  // namespace hfx
