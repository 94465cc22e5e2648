// What Python hands over: a program is a list of steps on an arena of floats. Mirrored in ../interface.py; the two are
// compared when the library is loaded (cigl_interface).
#pragma once
#include <cstddef>
#include <cstdint>

#define CIGL_ABI 2

// A value in the arena: float number `at` is the first pixel of the first channel. at < 0: there is none.
struct View {
    int64_t at, row, channel;  // position and strides, in floats
    int64_t channels, height, width;
};

struct Step {
    int64_t kind, relu;  // kind: which kernel, by its number in the lists at the end of conv.h and plain.h
    View in, add, out, normed;
    int64_t kernel[2], stride[2], padding[2];
    int64_t count_padding;             // AVG_POOL: divide by the whole kernel, not by what lies inside
    int64_t blocks;                    // CONV: blocks of input channels that the weights are sorted by
    const int32_t* rows;               // where each (block, output channel) starts in offsets and values
    const int32_t* offsets;            // of the input float each non-zero multiplies, from the output's first pixel
    const float *values, *bias;        // bias may be null
    const float *scale, *shift;        // numbers of the kernel; `normed` and ELEMENTWISE: per channel; may be null
};

struct Program {
    const Step* steps;
    int64_t count;
    int64_t images;   // of the batch
    int64_t lanes;    // images side by side in one vector, or 1: then neighbouring pixels share it
    int64_t spread;   // vectors of images side by side where pixels would be (networks without pixels), else 1
    int64_t arena;    // floats that one block of lanes * spread images needs
    int64_t threads;
};

// Every field of the above, as cigl_interface describes it.
struct Field {
    const char* name;
    size_t offset, size;
};
#define WHOLE(type) {#type, 0, sizeof(type)}
#define FIELD(type, name) {#type "." #name, offsetof(type, name), sizeof(type::name)}
constexpr Field FIELDS[] = {
    WHOLE(View), FIELD(View, at), FIELD(View, row), FIELD(View, channel), FIELD(View, channels), FIELD(View, height),
    FIELD(View, width),
    WHOLE(Step), FIELD(Step, kind), FIELD(Step, relu), FIELD(Step, in), FIELD(Step, add), FIELD(Step, out),
    FIELD(Step, normed), FIELD(Step, kernel), FIELD(Step, stride), FIELD(Step, padding), FIELD(Step, count_padding),
    FIELD(Step, blocks), FIELD(Step, rows), FIELD(Step, offsets), FIELD(Step, values), FIELD(Step, bias),
    FIELD(Step, scale), FIELD(Step, shift),
    WHOLE(Program), FIELD(Program, steps), FIELD(Program, count), FIELD(Program, images), FIELD(Program, lanes),
    FIELD(Program, spread), FIELD(Program, arena), FIELD(Program, threads),
};
#undef WHOLE
#undef FIELD

// One step for one block of images, as one of several workers that share it: what every kernel is called with.
struct Task {
    const Program& program;
    const Step& step;
    float* arena;
    int64_t block, worker, workers;
    const float* const* inputs;
    float* const* outputs;
};

// One instruction set's kernels.
struct Variant {
    const char* name;
    int64_t lanes;
    const char* kinds;  // the kernels' names in the order of their numbers, a space before each
    void (*run)(const Task&);
    double (*fma)(int64_t rounds);  // keeps the multiply-add units busy; returns the operations done
};
