// The kernels without weights, and the dot product for single images. Workers share them by (channel, row).
// A new one needs an entry in the list at the end, which numbers it.
#pragma once
#include "activations.h"

#include <cmath>
#include <limits>

static inline float* at(float* arena, const View& v, int64_t c, int64_t y) {
    return arena + v.at + c * v.channel + y * v.row;
}

// `count` elements of up to LANES images, `image` floats apart, side by side in vectors; missing images are zero.
static void interleave(const float* in, int64_t image, int64_t images, int64_t count, float* out, int64_t step,
                       int64_t lanes) {
    if (lanes == 1 && step == 1) {
        std::memcpy(out, in, images * count * sizeof(float));
        return;
    }
    int64_t i = 0;
    for (; images == LANES && i + LANES <= count; i += LANES) {
        Vec square[LANES];
        for (int lane = 0; lane < LANES; ++lane) square[lane] = load(in + lane * image + i);
        transpose(square);
        for (int j = 0; j < LANES; ++j) store(out + (i + j) * step, square[j]);
    }
    for (; i < count; ++i)
        for (int64_t lane = 0; lane < lanes; ++lane) out[i * step + lane] = lane < images ? in[lane * image + i] : 0.0f;
}

static void separate(const float* in, int64_t step, int64_t images, int64_t count, float* out, int64_t image) {
    if (images == 1 && step == 1) {
        std::memcpy(out, in, count * sizeof(float));
        return;
    }
    int64_t i = 0;
    for (; images == LANES && i + LANES <= count; i += LANES) {
        Vec square[LANES];
        for (int j = 0; j < LANES; ++j) square[j] = load(in + (i + j) * step);
        transpose(square);
        for (int lane = 0; lane < LANES; ++lane) store(out + lane * image + i, square[lane]);
    }
    for (; i < count; ++i)
        for (int64_t lane = 0; lane < images; ++lane) out[lane * image + i] = in[i * step + lane];
}

// Between the caller's (image, channel, row, pixel) and the arena. `outside` has the caller's sizes.
template <class Move>
static void each_row(const Task& task, const View& outside, const View& inside, Move move) {
    const Program& p = task.program;
    const int64_t block = task.block, worker = task.worker, workers = task.workers;
    const int64_t plane = outside.height * outside.width, size = outside.channels * plane;
    for (int64_t group = 0; group < p.spread; ++group) {
        const int64_t first = (block * p.spread + group) * p.lanes, left = p.images - first;
        const int64_t images = left < 0 ? 0 : left < p.lanes ? left : p.lanes, from = images ? first * size : 0;
        const int64_t start = inside.at + group * p.lanes;
        if (plane == 1) {
            const Share share(outside.channels, worker, workers);
            move(from + share.begin, size, images, share.end - share.begin, start + share.begin * inside.channel,
                 inside.channel);
            continue;
        }
        const Share share(outside.channels * outside.height, worker, workers);
        for (int64_t i = share.begin; i < share.end; ++i)
            move(from + i * outside.width, size, images, outside.width,
                 start + i / outside.height * inside.channel + i % outside.height * inside.row, p.lanes);
    }
}

// The pictures of a whole vector of images whose rows are shorter than a vector: LANES pixels at a time, as they lie
// behind each other in the caller's memory: square(the first one's place, an image's size, places inside). False if not
// all that is so.
template <class Square>
static bool by_planes(const Task& task, const View& outside, const View& inside, Square square) {
    const Program& p = task.program;
    const int64_t plane = outside.height * outside.width, first = task.block * LANES;
    if (p.lanes != LANES || p.spread > 1 || outside.width >= LANES || plane < LANES || first + LANES > p.images) return false;
    const Share share(outside.channels, task.worker, task.workers);
    for (int64_t c = share.begin; c < share.end; ++c)
        for (int64_t pixel = 0; pixel < plane; pixel += LANES) {
            const int64_t from = pixel + LANES <= plane ? pixel : plane - LANES;  // the last overlap: the same twice
            int64_t places[LANES], y = from / outside.width, x = from % outside.width;
            for (int j = 0; j < LANES; ++j) {
                places[j] = inside.at + c * inside.channel + y * inside.row + x * LANES;
                if (++x == outside.width) x = 0, ++y;
            }
            square((first * outside.channels + c) * plane + from, outside.channels * plane, places);
        }
    return true;
}

static void load_input(const Task& task) {
    const float* from = task.inputs[task.step.in.at];
    float* arena = task.arena;
    const int64_t lanes = task.program.lanes;
    if (by_planes(task, task.step.in, task.step.out, [=](int64_t in, int64_t image, const int64_t* places) {
            Vec square[LANES];
            for (int i = 0; i < LANES; ++i) square[i] = load(from + in + i * image);
            transpose(square);
            for (int i = 0; i < LANES; ++i) store(arena + places[i], square[i]);
        }))
        return;
    each_row(task, task.step.in, task.step.out,
             [=](int64_t in, int64_t image, int64_t images, int64_t count, int64_t out, int64_t step) {
                 interleave(from + in, image, images, count, arena + out, step, lanes);
             });
}

static void store_output(const Task& task) {
    float* to = task.outputs[task.step.out.at];
    const float* arena = task.arena;
    if (by_planes(task, task.step.out, task.step.in, [=](int64_t out, int64_t image, const int64_t* places) {
            Vec square[LANES];
            for (int i = 0; i < LANES; ++i) square[i] = load(arena + places[i]);
            transpose(square);
            for (int i = 0; i < LANES; ++i) store(to + out + i * image, square[i]);
        }))
        return;
    each_row(task, task.step.out, task.step.in,
             [=](int64_t out, int64_t image, int64_t images, int64_t count, int64_t in, int64_t step) {
                 separate(arena + in, step, images, count, to + out, image);
             });
}

// A single image's features, which lie side by side.
static inline bool is_flat(const Program& p, const View& v) { return p.lanes == 1 && v.channel == 1; }

// A row of a value as vectors. What lies behind a picture's row is the value's own, and stays zero; what lies behind the
// features of a single image, which are one row unless each has a scale of its own, is another's.
struct Rows {
    int64_t channels, height, vectors, inside;  // inside: floats of the last vector
    bool flat;
    Mask edge;
    Rows(const Program& p, const View& v, bool scaled) : channels(v.channels), height(v.height), flat(is_flat(p, v)) {
        const bool joined = flat && !scaled;
        const int64_t floats = joined ? v.channels : v.width * p.lanes;
        if (joined) channels = 1;
        vectors = (floats + LANES - 1) / LANES;
        inside = floats - (vectors - 1) * LANES;
        edge = first_lanes(inside);
    }
    void put(float* row, int64_t x, Vec v) const {
        if (x < vectors - 1)
            store(row + x * LANES, v);
        else if (flat)
            std::memcpy(row + x * LANES, &v, inside * sizeof(float));
        else
            store(row + x * LANES, keep(v, edge));
    }
};

// out = f((scale * in + shift) * multiplier + add), where `multiplier` may be one number per channel.
template <int64_t ACTIVATION>
static void elementwise_of(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const bool gated = step.multiplier.at >= 0, added = step.add.at >= 0;
    const bool broadcast = gated && step.multiplier.width * step.multiplier.height == 1 && step.out.width * step.out.height > 1;
    const Rows rows(task.program, step.out, step.scale);
    const Share share(rows.channels * rows.height, task.worker, task.workers);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t c = i / rows.height, y = i % rows.height;
        const float* in = at(arena, step.in, c, y);
        const float* add = added ? at(arena, step.add, c, y) : nullptr;
        const float* gate = gated ? at(arena, step.multiplier, c, broadcast ? 0 : y) : nullptr;
        float* out = at(arena, step.out, c, y);
        const Vec scale = splat(step.scale ? step.scale[c] : 1.0f), shift = splat(step.shift ? step.shift[c] : 0.0f);
        const Vec by = !broadcast ? Vec{} : task.program.lanes == 1 ? splat(*gate) : load(gate);
        for (int64_t x = 0; x < rows.vectors; ++x) {
            Vec v = load(in + x * LANES);
            if (step.scale) v = v * scale + shift;
            if (gated) v *= broadcast ? by : load(gate + x * LANES);
            if (added) v += load(add + x * LANES);
            rows.put(out, x, activated<ACTIVATION>(v));
        }
    }
}

static void elementwise(const Task& task) {
#define ENTRY(name) elementwise_of<name>,
    static void (*const kernels[])(const Task&) = {ACTIVATIONS(ENTRY)};
#undef ENTRY
    kernels[task.step.activation](task);
}

// Every stride-th pixel into a plane of its own: a strided convolution becomes one of stride 1, for pixels in vectors.
// Output channel (c * phases + phase) holds the pixels (y * stride + phase / kernel[1],
// x * stride + phase % kernel[1]), counted from the padding's corner. What lies beyond the padding is never used, and
// may be anything.
static void split(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const Share share(step.out.channels * step.out.height, task.worker, task.workers);
    const int64_t phases = step.kernel[0] * step.kernel[1], stride = step.stride[1];
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t channel = i / step.out.height, y = i % step.out.height, phase = channel % phases;
        const int64_t from_y = y * step.stride[0] + phase / step.kernel[1] - step.padding[0];
        if (from_y >= step.in.height + step.padding[0]) continue;
        const float* in = at(arena, step.in, channel / phases, from_y) + phase % step.kernel[1] - step.padding[1];
        float* out = at(arena, step.out, channel, y);
        if (stride == 2)
            for (int64_t x = 0; x < step.out.width; x += LANES)
                store(out + x, evens(load(in + 2 * x), load(in + 2 * x + LANES)));
        else
            for (int64_t x = 0; x < step.out.width; ++x) out[x] = in[x * stride];
    }
}

// The positions whose tap falls inside: those with 0 <= position * stride + offset < size.
struct Inside {
    int64_t begin, end;
    Inside(int64_t offset, int64_t stride, int64_t size, int64_t positions)
        : begin(offset < 0 ? (-offset + stride - 1) / stride : 0),
          end(offset < size ? (size - 1 - offset) / stride + 1 : 0) {
        if (end > positions) end = positions;
    }
};

static inline float larger(float a, float b) { return b > a || b != b ? b : a; }  // a NaN stays: nothing is greater

// Pooling, one tap at a time over a whole row of outputs.
template <bool MAX>
static void pool(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const int64_t lanes = task.program.lanes;
    const Share share(step.out.channels * step.out.height, task.worker, task.workers);
    const float start = MAX ? -std::numeric_limits<float>::infinity() : 0.0f;
    auto combine = [](float a, float b) { return MAX ? larger(a, b) : a + b; };
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t c = i / step.out.height, y = i % step.out.height, width = step.out.width;
        float* out = at(arena, step.out, c, y);
        for (int64_t x = 0; x < width * lanes; ++x) out[x] = start;
        int64_t rows = 0;
        for (int64_t v = 0; v < step.kernel[0]; ++v) {
            const int64_t from_y = y * step.stride[0] + v - step.padding[0];
            if (from_y < 0 || from_y >= step.in.height) continue;
            ++rows;
            for (int64_t u = 0; u < step.kernel[1]; ++u) {
                const int64_t offset = u - step.padding[1];
                const Inside inside(offset, step.stride[1], step.in.width, width);
                const float* in = at(arena, step.in, c, from_y) + offset * lanes;
                if (lanes == 1 && step.stride[1] == 2)  // a constant stride, which compilers can do in vectors
                    for (int64_t x = inside.begin; x < inside.end; ++x) out[x] = combine(out[x], in[x * 2]);
                else if (lanes == 1)
                    for (int64_t x = inside.begin; x < inside.end; ++x)
                        out[x] = combine(out[x], in[x * step.stride[1]]);
                else
                    for (int64_t x = inside.begin; x < inside.end; ++x)
                        for (int64_t lane = 0; lane < LANES; ++lane)
                            out[x * LANES + lane] =
                                combine(out[x * LANES + lane], in[x * step.stride[1] * LANES + lane]);
            }
        }
        for (int64_t x = 0; !MAX && x < width; ++x) {
            const int64_t left = x * step.stride[1] - step.padding[1], right = left + step.kernel[1];
            const int64_t columns = (right < step.in.width ? right : step.in.width) - (left > 0 ? left : 0);
            const float by = 1.0f / float(step.count_padding ? step.count_padding : rows * columns);
            for (int64_t lane = 0; lane < lanes; ++lane) out[x * lanes + lane] *= by;
        }
    }
}

static void mean(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const int64_t lanes = task.program.lanes;
    const Share share(step.out.channels, task.worker, task.workers);
    const float by = 1.0f / float(step.in.height * step.in.width);
    const int64_t count = step.in.width * lanes;
    for (int64_t c = share.begin; c < share.end; ++c) {
        Vec sums = {};
        float rest = 0.0f;
        for (int64_t y = 0; y < step.in.height; ++y) {
            const float* in = at(arena, step.in, c, y);
            int64_t x = 0;
            for (; x + LANES <= count; x += LANES) sums += load(in + x);
            for (; x < count; ++x) rest += in[x];
        }
        float* out = at(arena, step.out, c, 0);
        if (lanes == 1) {
            for (int lane = 0; lane < LANES; ++lane) rest += sums[lane];
            *out = rest * by;
        } else {
            store(out, sums * splat(by));
        }
    }
}

static void flatten(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const int64_t lanes = task.program.lanes;
    const Share share(step.in.channels * step.in.height, task.worker, task.workers);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const float* in = at(arena, step.in, i / step.in.height, i % step.in.height);
        for (int64_t x = 0; x < step.in.width; ++x)
            std::memcpy(at(arena, step.out, i * step.in.width + x, 0), in + x * lanes, lanes * sizeof(float));
    }
}

// A linear layer for one image: four sums hide the latency of the additions.
static void dot(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const Share share(step.out.channels, task.worker, task.workers);
    const float* in = arena + step.in.at;
    for (int64_t o = share.begin; o < share.end; ++o) {
        float s[4] = {step.bias ? step.bias[o] : 0.0f, 0.0f, 0.0f, 0.0f};
        for (int64_t block = 0; block < step.blocks; ++block) {
            const int32_t* row = step.rows + block * step.out.channels + o;
            int64_t j = row[0];
            for (; j + 4 <= row[1]; j += 4)
                for (int i = 0; i < 4; ++i) s[i] += step.values[j + i] * in[step.offsets[j + i]];
            for (; j < row[1]; ++j) s[0] += step.values[j] * in[step.offsets[j]];
        }
        const float sum = (s[0] + s[1]) + (s[2] + s[3]);
        const float all = step.add.at < 0 ? sum : sum + *at(arena, step.add, o, 0);
        *at(arena, step.out, o, 0) = step.activation ? activate(step.activation, all) : all;
    }
}

#define PLAIN_KINDS(KIND) \
    KIND(LOAD, load_input) \
    KIND(STORE, store_output) \
    KIND(DOT, dot) \
    KIND(ELEMENTWISE, elementwise) \
    KIND(SPLIT, split) \
    KIND(MAX_POOL, pool<true>) \
    KIND(AVG_POOL, pool<false>) \
    KIND(MEAN, mean) \
    KIND(FLATTEN, flatten)
