// What Python hands over: a program is a list of operations on an arena of floats. Mirrored in cigl/runtime/program.py.
#pragma once
#include <cstdint>

#define CIGL_ABI 1

enum Kind : int64_t { LOAD, STORE, CONV, DOT, ELEMENTWISE, SPLIT, MAX_POOL, AVG_POOL, MEAN, FLATTEN };

// A value in the arena: float number `at` is the first pixel of the first channel. at < 0: there is none.
struct View {
    int64_t at, row, channel;  // position and strides, in floats
    int64_t channels, height, width;
};

struct Op {
    int64_t kind, relu;
    View in, add, out, normed;
    int64_t kernel[2], stride[2], padding[2];
    int64_t count_padding;             // AVG_POOL: divide by the whole kernel, not by what lies inside
    int64_t blocks;                    // CONV: blocks of input channels that the weights are sorted by
    const int32_t* rows;               // where each (block, output channel) starts in offsets and values
    const int32_t* offsets;            // of the input float each non-zero multiplies, from the output's first pixel
    const float *values, *bias;        // bias may be null
    const float *scale, *shift;        // per channel, for `normed` or ELEMENTWISE; may be null
};

struct Program {
    const Op* ops;
    int64_t count;
    int64_t images;   // of the batch
    int64_t lanes;    // images side by side in one vector, or 1: then neighbouring pixels share it
    int64_t spread;   // vectors of images side by side where pixels would be (networks without pixels), else 1
    int64_t arena;    // floats that one block of lanes * spread images needs
    int64_t threads;
};

// One instruction set's way to run a program for one block of images; `worker` of `workers` share each operation.
struct Variant {
    const char* name;
    int64_t lanes;
    void (*run)(const Program&, const Op&, float* arena, int64_t block, int64_t worker, int64_t workers,
                const float* const* inputs, float* const* outputs);
    double (*fma)(int64_t rounds);  // keeps the multiply-add units busy; returns the operations done
};
