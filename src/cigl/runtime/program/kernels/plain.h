// The operations without weights, and the dot product for single images. All are shared out by (channel, row).
#pragma once
#include "program.h"
#include "vector.h"

#include <cmath>
#include <limits>

static inline float* at(float* arena, const View& v, int64_t c, int64_t y) {
    return arena + v.at + c * v.channel + y * v.row;
}

// `count` elements of up to LANES images, `image` floats apart, side by side in vectors; missing images are zero.
static void interleave(const float* in, int64_t image, int64_t images, int64_t count, float* out, int64_t step,
                       int64_t lanes) {
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
static void each_row(const Program& p, const View& outside, const View& inside, int64_t block, int64_t worker,
                     int64_t workers, Move move) {
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

static void elementwise(const Op& op, float* arena, int64_t lanes, Share share) {
    const int64_t count = op.out.width * lanes;
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t c = i / op.out.height, y = i % op.out.height;
        const float *in = at(arena, op.in, c, y), *add = op.add.at < 0 ? nullptr : at(arena, op.add, c, y);
        float* out = at(arena, op.out, c, y);
        const float scale = op.scale ? op.scale[c] : 1.0f, shift = op.shift ? op.shift[c] : 0.0f;
        for (int64_t x = 0; x < count; ++x) {
            float v = op.scale ? in[x] * scale + shift : in[x];
            if (add) v += add[x];
            out[x] = op.relu ? relu(v) : v;
        }
    }
}

// Every stride-th pixel into a plane of its own: a strided convolution becomes one of stride 1, for pixels in vectors.
// Output channel (c * phases + phase) holds the pixels (y * stride + phase / kernel[1], x * stride + phase % kernel[1]),
// counted from the padding's corner. What lies beyond the padding is never used, and may be anything.
static void split(const Op& op, float* arena, Share share) {
    const int64_t phases = op.kernel[0] * op.kernel[1], step = op.stride[1];
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t channel = i / op.out.height, y = i % op.out.height, phase = channel % phases;
        const int64_t from_y = y * op.stride[0] + phase / op.kernel[1] - op.padding[0];
        if (from_y >= op.in.height + op.padding[0]) continue;
        const float* in = at(arena, op.in, channel / phases, from_y) + phase % op.kernel[1] - op.padding[1];
        float* out = at(arena, op.out, channel, y);
        if (step == 2)
            for (int64_t x = 0; x < op.out.width; x += LANES)
                store(out + x, evens(load(in + 2 * x), load(in + 2 * x + LANES)));
        else
            for (int64_t x = 0; x < op.out.width; ++x) out[x] = in[x * step];
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
static void pool(const Op& op, float* arena, int64_t lanes, Share share) {
    const float start = MAX ? -std::numeric_limits<float>::infinity() : 0.0f;
    auto combine = [](float a, float b) { return MAX ? larger(a, b) : a + b; };
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t c = i / op.out.height, y = i % op.out.height, width = op.out.width;
        float* out = at(arena, op.out, c, y);
        for (int64_t x = 0; x < width * lanes; ++x) out[x] = start;
        int64_t rows = 0;
        for (int64_t v = 0; v < op.kernel[0]; ++v) {
            const int64_t from_y = y * op.stride[0] + v - op.padding[0];
            if (from_y < 0 || from_y >= op.in.height) continue;
            ++rows;
            for (int64_t u = 0; u < op.kernel[1]; ++u) {
                const int64_t offset = u - op.padding[1];
                const Inside inside(offset, op.stride[1], op.in.width, width);
                const float* in = at(arena, op.in, c, from_y) + offset * lanes;
                if (lanes == 1 && op.stride[1] == 2)  // a constant stride, which compilers can do in vectors
                    for (int64_t x = inside.begin; x < inside.end; ++x) out[x] = combine(out[x], in[x * 2]);
                else if (lanes == 1)
                    for (int64_t x = inside.begin; x < inside.end; ++x)
                        out[x] = combine(out[x], in[x * op.stride[1]]);
                else
                    for (int64_t x = inside.begin; x < inside.end; ++x)
                        for (int64_t lane = 0; lane < LANES; ++lane)
                            out[x * LANES + lane] = combine(out[x * LANES + lane], in[x * op.stride[1] * LANES + lane]);
            }
        }
        for (int64_t x = 0; !MAX && x < width; ++x) {
            const int64_t left = x * op.stride[1] - op.padding[1], right = left + op.kernel[1];
            const int64_t columns = (right < op.in.width ? right : op.in.width) - (left > 0 ? left : 0);
            const float by = 1.0f / float(op.count_padding ? op.count_padding : rows * columns);
            for (int64_t lane = 0; lane < lanes; ++lane) out[x * lanes + lane] *= by;
        }
    }
}

static void mean(const Op& op, float* arena, int64_t lanes, Share share) {
    const float by = 1.0f / float(op.in.height * op.in.width);
    const int64_t count = op.in.width * lanes;
    for (int64_t c = share.begin; c < share.end; ++c) {
        Vec sums = {};
        float rest = 0.0f;
        for (int64_t y = 0; y < op.in.height; ++y) {
            const float* in = at(arena, op.in, c, y);
            int64_t x = 0;
            for (; x + LANES <= count; x += LANES) sums += load(in + x);
            for (; x < count; ++x) rest += in[x];
        }
        float* out = at(arena, op.out, c, 0);
        if (lanes == 1) {
            for (int lane = 0; lane < LANES; ++lane) rest += sums[lane];
            *out = rest * by;
        } else {
            store(out, sums * splat(by));
        }
    }
}

static void flatten(const Op& op, float* arena, int64_t lanes, Share share) {
    for (int64_t i = share.begin; i < share.end; ++i) {
        const float* in = at(arena, op.in, i / op.in.height, i % op.in.height);
        for (int64_t x = 0; x < op.in.width; ++x)
            std::memcpy(at(arena, op.out, i * op.in.width + x, 0), in + x * lanes, lanes * sizeof(float));
    }
}

// A linear layer for one image: four sums hide the latency of the additions.
static void dot(const Op& op, float* arena, Share share) {
    const float* in = arena + op.in.at;
    for (int64_t o = share.begin; o < share.end; ++o) {
        float s[4] = {op.bias ? op.bias[o] : 0.0f, 0.0f, 0.0f, 0.0f};
        for (int64_t block = 0; block < op.blocks; ++block) {
            const int32_t* row = op.rows + block * op.out.channels + o;
            int64_t j = row[0];
            for (; j + 4 <= row[1]; j += 4)
                for (int i = 0; i < 4; ++i) s[i] += op.values[j + i] * in[op.offsets[j + i]];
            for (; j < row[1]; ++j) s[0] += op.values[j] * in[op.offsets[j]];
        }
        const float sum = (s[0] + s[1]) + (s[2] + s[3]);
        *at(arena, op.out, o, 0) = op.relu ? relu(sum) : sum;
    }
}
