// What Python hands over: a program is a list of steps on an arena of floats. Mirrored in ../interface.py; the two are
// compared when the library is loaded (cigl_interface).
#pragma once
#include <cstddef>
#include <cstdint>

#define CIGL_ABI 7

// A value in the arena: float number `at` is the first pixel of the first channel. at < 0: there is none.
struct View {
    int64_t at, row, channel;  // position and strides, in floats
    int64_t channels, height, width;
};

// A batch norm in training: one value per channel behind each pointer; those of the user's module may be null.
struct Norm {
    const float *weight, *bias;
    float *running_mean, *running_var;
    double momentum, eps;
    float *mean, *inverse, *scale, *shift;   // of the batch: its mean, 1 / standard deviation, and how both are applied
    float *by_gradient, *by_value, *by_one;  // how the gradient is applied
    float *weight_gradient, *bias_gradient;
};

// What may be done to each element of a result, while it is in registers (activations.h).
#define ACTIVATIONS(NAME) \
    NAME(NONE) NAME(RELU) NAME(RELU6) NAME(SIGMOID) NAME(SILU) NAME(HARDSIGMOID) NAME(HARDSWISH) NAME(TANH) \
    NAME(MISH) NAME(GELU) NAME(GELU_TANH)
#define NUMBERED(name) name,
enum Activation : int64_t { ACTIVATIONS(NUMBERED) };
#undef NUMBERED

struct Step {
    int64_t kind, activation;  // kind: which kernel, by its number in the lists at the end of conv.h and plain.h
    View in, add, out, normed;
    int64_t kernel[2], stride[2], padding[2];
    int64_t count_padding;             // AVG_POOL: divide by the whole kernel, not by what lies inside
    int64_t groups;                    // CONV: of channels
    int64_t blocks;                    // CONV: blocks of input channels that the weights are sorted by
    int64_t together;                  // CONV: output channels that share the inputs they load, 1 or TOGETHER (conv.h)
    const int32_t* rows;               // where each (block, output channel) starts in offsets and values; where several
                                       // are together: their 2^together - 1 lists of offsets, by who uses the input
    const int32_t* firsts;             // where each (block, channels together) starts in values
    const int32_t* offsets;            // of the input float each non-zero multiplies, from the output's first pixel
    const float *values, *bias;        // bias may be null
    const float *scale, *shift;        // per channel: of `normed`, ELEMENTWISE and AFFINE; may be null
    double eps;                        // LAYER_NORM
    View multiplier;                   // ELEMENTWISE: of `in`
    // Training only:
    View other;                        // AFFINE: a third term; MASK: what went into the ReLU beside `add`
    const float *scale2, *shift2, *mean, *mean2;  // per channel; may be null
    float* sums;                       // what blocks leave for the whole batch
    float* target;                     // SUM_BLOCKS, SCATTER: the gradient to be written
    const int32_t *places, *ranks;     // SCATTER: of the non-zeros, in it and in sums
    const uint8_t* off;                // SCATTER: not 0 at those that a random mask has switched off; may be null
    const Norm* norm;
    int64_t count;                     // non-zeros; NORM_GRADIENT: which of the sums
    int64_t kept;                      // which of in, add, out, other outlive the pass (bits 1, 2, 4, 8)
    int64_t outside;                   // which of them are numbers of the caller's tensors
    int64_t per_batch;                 // run once, after all blocks have run the steps before it
    int64_t banded;                    // so many steps, from this one on, run together, a band of rows after the other
    int64_t band, lead;                // rows in a band, and how many more a step does at first: later steps read them
    int64_t rolling;                   // which of in, add, out, other hold one band at a time
    int64_t before;                    // rows that were done in bands before this one (set while running)
};

struct Program {
    const Step* steps;
    int64_t count;
    int64_t images;   // of the batch
    int64_t lanes;    // images side by side in one vector, or 1: then neighbouring pixels share it
    int64_t spread;   // vectors of images side by side where pixels would be (networks without pixels), else 1
    int64_t arena;    // floats that one block of lanes * spread images needs
    int64_t threads;
    int64_t kept;     // training: floats that each block keeps until its gradients are done
    int64_t groups;   // training: of blocks, each summed in order by one thread, whatever the number of threads
};

// A layer of an LSTM or GRU in one direction.
struct Recurrent {
    int64_t gates;  // 4: LSTM, 3: GRU
    int64_t steps, images, hidden;
    int64_t backwards;                // begin with the last step
    const int32_t *rows, *columns;    // of the recurrent weight [gates * hidden][hidden]: compressed rows
    const float *values, *bias;       // bias may be null
    const float* in;                  // what the inputs contribute to the gates
    int64_t in_step, in_image;        // floats from one to the next
    float *state, *cell;              // [images][hidden], before and after; a GRU has no cell
    float* out;                       // the states after each step
    int64_t out_step, out_image;
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
    WHOLE(Norm), FIELD(Norm, weight), FIELD(Norm, bias), FIELD(Norm, running_mean), FIELD(Norm, running_var),
    FIELD(Norm, momentum), FIELD(Norm, eps), FIELD(Norm, mean), FIELD(Norm, inverse), FIELD(Norm, scale),
    FIELD(Norm, shift), FIELD(Norm, by_gradient), FIELD(Norm, by_value), FIELD(Norm, by_one),
    FIELD(Norm, weight_gradient), FIELD(Norm, bias_gradient),
    WHOLE(Step), FIELD(Step, kind), FIELD(Step, activation), FIELD(Step, in), FIELD(Step, add), FIELD(Step, out),
    FIELD(Step, normed), FIELD(Step, kernel), FIELD(Step, stride), FIELD(Step, padding), FIELD(Step, count_padding),
    FIELD(Step, groups),
    FIELD(Step, blocks), FIELD(Step, together), FIELD(Step, rows), FIELD(Step, firsts), FIELD(Step, offsets), FIELD(Step, values), FIELD(Step, bias),
    FIELD(Step, scale), FIELD(Step, shift), FIELD(Step, eps), FIELD(Step, multiplier), FIELD(Step, other),
    FIELD(Step, scale2), FIELD(Step, shift2),
    FIELD(Step, mean), FIELD(Step, mean2), FIELD(Step, sums), FIELD(Step, target), FIELD(Step, places),
    FIELD(Step, ranks), FIELD(Step, off),
    FIELD(Step, norm), FIELD(Step, count), FIELD(Step, kept), FIELD(Step, outside),
    FIELD(Step, per_batch), FIELD(Step, banded), FIELD(Step, band), FIELD(Step, lead), FIELD(Step, rolling),
    FIELD(Step, before),
    WHOLE(Program), FIELD(Program, steps), FIELD(Program, count), FIELD(Program, images), FIELD(Program, lanes),
    FIELD(Program, spread), FIELD(Program, arena), FIELD(Program, threads), FIELD(Program, kept),
    FIELD(Program, groups),
    WHOLE(Recurrent), FIELD(Recurrent, gates), FIELD(Recurrent, steps), FIELD(Recurrent, images),
    FIELD(Recurrent, hidden), FIELD(Recurrent, backwards), FIELD(Recurrent, rows), FIELD(Recurrent, columns),
    FIELD(Recurrent, values), FIELD(Recurrent, bias), FIELD(Recurrent, in), FIELD(Recurrent, in_step),
    FIELD(Recurrent, in_image), FIELD(Recurrent, state), FIELD(Recurrent, cell), FIELD(Recurrent, out),
    FIELD(Recurrent, out_step), FIELD(Recurrent, out_image), FIELD(Recurrent, threads),
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
    void (*recur)(const Recurrent&, int64_t worker, int64_t workers);
    double (*fma)(int64_t rounds);  // keeps the multiply-add units busy; returns the operations done
};
