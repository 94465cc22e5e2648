// What needs several channels of a pixel, or all features of a row: layer norm, softmax, pixels made from channels. Vectors hold other pixels or
// images, so that nothing is summed across a vector.
#pragma once
#include "plain.h"

static inline void get(const float* p, float& v) { v = *p; }
static inline void get(const float* p, Vec& v) { v = load(p); }
static inline float exponential(float v) { return std::exp(v); }
static inline float larger_of(float a, float b) { return larger(a, b); }
static inline Vec larger_of(Vec a, Vec b) {
    const Vec most = b > a ? b : a;
    return b != b ? b : most;  // a NaN stays
}
static inline float root(float v) { return std::sqrt(v); }
static inline Vec root(Vec v) {
    for (int lane = 0; lane < LANES; ++lane) v[lane] = std::sqrt(v[lane]);
    return v;
}

// K vectors of pixels (or one number: of a single image's features), channel by channel.
template <class T, int K>
struct Columns {
    const Step& step;
    const float* in;
    float* out;
    Mask edge;
    int64_t whole;  // vectors; of the one behind them `edge` is inside

    template <class Each>
    void read(Each each) const {
        for (int64_t c = 0; c < step.in.channels; ++c)
            for (int k = 0; k < K; ++k) {
                T v;
                get(in + c * step.in.channel + k * LANES, v);
                each(c, k, v);
            }
    }
    void write(int64_t c, int64_t, float v) const { out[c * step.out.channel] = v; }
    void write(int64_t c, int64_t k, Vec v) const {
        store(out + c * step.out.channel + k * LANES, k < whole ? v : keep(v, edge));
    }
};

struct LayerNorm {
    template <class T, int K>
    static void run(const Columns<T, K>& columns) {
        const Step& step = columns.step;
        const float by = 1.0f / float(step.in.channels);
        T mean[K] = {}, squares[K] = {};
        columns.read([&](int64_t, int k, T v) { mean[k] += v; });
        for (int k = 0; k < K; ++k) mean[k] *= by;
        columns.read([&](int64_t, int k, T v) { squares[k] += (v - mean[k]) * (v - mean[k]); });
        for (int k = 0; k < K; ++k) squares[k] = 1.0f / root(squares[k] * by + float(step.eps));
        columns.read([&](int64_t c, int k, T v) {
            v = (v - mean[k]) * squares[k];
            if (step.scale) v *= step.scale[c];
            if (step.shift) v += step.shift[c];
            columns.write(c, k, v);
        });
    }
};

struct Softmax {
    template <class T, int K>
    static void run(const Columns<T, K>& columns) {
        T most[K], sum[K] = {};
        for (int k = 0; k < K; ++k) most[k] = T{} - std::numeric_limits<float>::infinity();
        columns.read([&](int64_t, int k, T v) { most[k] = larger_of(most[k], v); });
        columns.read([&](int64_t, int k, T v) { sum[k] += exponential(v - most[k]); });
        for (int k = 0; k < K; ++k) sum[k] = 1.0f / sum[k];
        columns.read([&](int64_t c, int k, T v) { columns.write(c, k, exponential(v - most[k]) * sum[k]); });
    }
};

template <class Kernel>
static void over_channels(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    if (is_flat(task.program, step.in)) {
        if (!task.worker) Kernel::run(Columns<float, 1>{step, at(arena, step.in, 0, 0), at(arena, step.out, 0, 0), {}, 1});
        return;
    }
    const Rows rows(task.program, step.in, true);
    const int64_t K = 4, tiles = (rows.vectors + K - 1) / K;
    const Share share(rows.height * tiles, task.worker, task.workers);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t y = i / tiles, x = i % tiles * K, whole = rows.vectors - 1 - x;
        const float* in = at(arena, step.in, 0, y) + x * LANES;
        float* out = at(arena, step.out, 0, y) + x * LANES;
        if (x + K <= rows.vectors)
            Kernel::run(Columns<Vec, K>{step, in, out, rows.edge, whole});
        else
            for (int64_t k = 0; k <= whole; ++k)
                Kernel::run(Columns<Vec, 1>{step, in + k * LANES, out + k * LANES, rows.edge, whole - k});
    }
}

// The reverse of SPLIT: channel (c * stride[0] + a) * stride[1] + b holds the pixels (y * stride[0] + a,
// x * stride[1] + b) of channel c, counted from the padding's corner.
static void shuffle(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const int64_t lanes = task.program.lanes, a = step.stride[0], b = step.stride[1];
    const Share share(step.out.channels * step.out.height, task.worker, task.workers);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t c = i / step.out.height, y = i % step.out.height, from_y = y + step.padding[0];
        float* out = at(arena, step.out, c, y);
        for (int64_t phase = 0; phase < b; ++phase) {
            const float* in = at(arena, step.in, (c * a + from_y % a) * b + phase, from_y / a);
            const int64_t first = (phase - step.padding[1] % b + b) % b;  // the first pixel of this phase
            for (int64_t x = first; x < step.out.width; x += b) {
                const float* from = in + (x + step.padding[1]) / b * lanes;
                if (lanes == 1)
                    out[x] = *from;
                else
                    store(out + x * LANES, load(from));
            }
        }
    }
}

#define CHANNEL_KINDS(KIND) \
    KIND(LAYER_NORM, over_channels<LayerNorm>) \
    KIND(SOFTMAX, over_channels<Softmax>) \
    KIND(SHUFFLE, shuffle)
