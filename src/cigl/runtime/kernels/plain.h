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
    for (int64_t i = 0; i < count; ++i)
        for (int64_t lane = 0; lane < lanes; ++lane) out[i * step + lane] = lane < images ? in[lane * image + i] : 0.0f;
}

static void separate(const float* in, int64_t step, int64_t images, int64_t count, float* out, int64_t image) {
    for (int64_t lane = 0; lane < images; ++lane)
        for (int64_t i = 0; i < count; ++i) out[lane * image + i] = in[i * step + lane];
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

// Every stride-th pixel into a plane of its own, zeros around: a strided convolution becomes one of stride 1.
// Output channel (c * phases + phase) holds the pixels (y * stride + phase / kernel[1], x * stride + phase % kernel[1]).
static void split(const Op& op, float* arena, Share share) {
    const int64_t phases = op.kernel[0] * op.kernel[1];
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t channel = i / op.out.height, y = i % op.out.height, c = channel / phases, phase = channel % phases;
        const int64_t from_y = y * op.stride[0] + phase / op.kernel[1] - op.padding[0];
        const int64_t shift = phase % op.kernel[1] - op.padding[1];
        float* out = at(arena, op.out, channel, y);
        if (from_y < 0 || from_y >= op.in.height) {
            std::memset(out, 0, op.out.width * sizeof(float));
            continue;
        }
        const float* in = at(arena, op.in, c, from_y) + shift;
        int64_t x = 0, end = (op.in.width - shift + op.stride[1] - 1) / op.stride[1];
        if (end > op.out.width) end = op.out.width;
        for (; x < op.out.width && x * op.stride[1] + shift < 0; ++x) out[x] = 0.0f;
        if (op.stride[1] == 2)
            for (; x < end; ++x) out[x] = in[x * 2];
        else
            for (; x < end; ++x) out[x] = in[x * op.stride[1]];
        for (; x < op.out.width; ++x) out[x] = 0.0f;
    }
}

struct Window {  // the part of a pooling window that lies inside
    int64_t begin, end;
    Window(int64_t at, int64_t size, int64_t kernel, int64_t stride, int64_t padding)
        : begin(at * stride - padding), end(begin + kernel) {
        if (begin < 0) begin = 0;
        if (end > size) end = size;
    }
};

// Up to LANES images at one pixel: max keeps NaN, because nothing is greater than it.
template <bool MAX>
static void pool(const Op& op, float* arena, int64_t lanes, Share share) {
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t c = i / op.out.height, y = i % op.out.height;
        const Window rows(y, op.in.height, op.kernel[0], op.stride[0], op.padding[0]);
        float* out = at(arena, op.out, c, y);
        for (int64_t x = 0; x < op.out.width; ++x, out += lanes) {
            const Window columns(x, op.in.width, op.kernel[1], op.stride[1], op.padding[1]);
            for (int64_t lane = 0; lane < lanes; ++lane) out[lane] = MAX ? -std::numeric_limits<float>::infinity() : 0.0f;
            for (int64_t v = rows.begin; v < rows.end; ++v)
                for (int64_t u = columns.begin; u < columns.end; ++u) {
                    const float* in = at(arena, op.in, c, v) + u * lanes;
                    for (int64_t lane = 0; lane < lanes; ++lane) {
                        const float value = in[lane];
                        if (MAX)
                            out[lane] = value > out[lane] || value != value ? value : out[lane];
                        else
                            out[lane] += value;
                    }
                }
            if (!MAX) {
                const int64_t inside = (rows.end - rows.begin) * (columns.end - columns.begin);
                const float by = 1.0f / float(op.count_padding ? op.count_padding : inside);
                for (int64_t lane = 0; lane < lanes; ++lane) out[lane] *= by;
            }
        }
    }
}

static void mean(const Op& op, float* arena, int64_t lanes, Share share) {
    const double by = 1.0 / double(op.in.height * op.in.width);
    for (int64_t c = share.begin; c < share.end; ++c) {
        double sums[LANES] = {};
        for (int64_t y = 0; y < op.in.height; ++y) {
            const float* in = at(arena, op.in, c, y);
            for (int64_t x = 0; x < op.in.width; ++x)
                for (int64_t lane = 0; lane < lanes; ++lane) sums[lane] += in[x * lanes + lane];
        }
        for (int64_t lane = 0; lane < lanes; ++lane) at(arena, op.out, c, 0)[lane] = float(sums[lane] * by);
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
