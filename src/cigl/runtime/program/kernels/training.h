// Training: batch norm, sums and ReLU, there and back. Values lie as in inference with images side by side in a vector
// (program.h); a block that is not full has zeros in the lanes of its missing images, and every step keeps it so.
#pragma once
#include "conv.h"
#include "plain.h"

// The lanes of vector `x` of a row that hold images. With several vectors of images side by side (`spread`), a row's
// vectors are other images; otherwise they are other pixels of the same ones.
static inline int64_t lanes_used(const Program& p, int64_t block, int64_t x) {
    const int64_t first = (p.spread > 1 ? block * p.spread + x : block) * LANES, left = p.images - first;
    return left < 0 ? 0 : left < LANES ? left : LANES;
}

static inline int64_t blocks_of(const Program& p) { return (p.images + LANES * p.spread - 1) / (LANES * p.spread); }

static inline bool is_full(const Program& p, int64_t block) { return (block + 1) * LANES * p.spread <= p.images; }

static inline float sum_of(Vec v) {
    float s = 0.0f;
    for (int lane = 0; lane < LANES; ++lane) s += v[lane];
    return s;
}

// Rows of a few channels at a time, in the order in which they lie in memory.
static const int64_t CHANNELS = 16;

template <class Row>
static void each_channel_row(int64_t height, int64_t from, int64_t to, Row row) {
    for (int64_t y = 0; y < height; ++y)
        for (int64_t c = from; c < to; ++c) row(c, y);
}

template <class Chunk>
static void each_chunk(Share channels, Chunk chunk) {
    for (int64_t from = channels.begin; from < channels.end; from += CHANNELS)
        chunk(from, from + CHANNELS < channels.end ? from + CHANNELS : channels.end);
}

// Asks for what is read some rows later: values come from main memory.
static const int64_t FAR = 1024;  // floats
static inline void ask_for(const float* p) { __builtin_prefetch(p + FAR); }

// out = scale * in + shift + scale2 * add + shift2 + other, per channel, then ReLU: batch norm with a residual sum on the way
// there, and its gradient on the way back. Missing inputs count as zero, missing scales as one.
template <bool ADD, bool OTHER, bool RELU>
static void affine_of(const Task& task) {
    const Program& p = task.program;
    const Step& step = task.step;
    float* arena = task.arena;
    const int64_t block = task.block;
    const Share channels(step.out.channels, task.worker, task.workers);
    const bool full = is_full(p, block);
    const int64_t width = step.out.width;
    each_chunk(channels, [&](int64_t from, int64_t to) {
        each_channel_row(step.out.height, from, to, [&](int64_t c, int64_t y) {
            const Vec one = splat(step.scale ? step.scale[c] : 1.0f), two = splat(step.scale2 ? step.scale2[c] : 1.0f);
            const Vec shift = splat((step.shift ? step.shift[c] : 0.0f) + (step.shift2 ? step.shift2[c] : 0.0f));
            const float* in = at(arena, step.in, c, y);
            const float* add = ADD ? at(arena, step.add, c, y) : nullptr;
            const float* other = OTHER ? at(arena, step.other, c, y) : nullptr;
            float* out = at(arena, step.out, c, y);
            for (int64_t x = 0; x < width; ++x) {
                ask_for(in + x * LANES);
                if (ADD) ask_for(add + x * LANES);
                if (OTHER) ask_for(other + x * LANES);
                Vec v = one * load(in + x * LANES) + shift;
                if (ADD) v += two * load(add + x * LANES);
                if (OTHER) v += load(other + x * LANES);
                if (RELU) v = relu(v);
                if (!full) v = keep(v, first_lanes(lanes_used(p, block, x)));
                store(out + x * LANES, v);
            }
        });
    });
}

static void affine(const Task& task) {
    static void (*const kernels[2][2][2])(const Task&) = {
        {{affine_of<false, false, false>, affine_of<false, false, true>},
         {affine_of<false, true, false>, affine_of<false, true, true>}},
        {{affine_of<true, false, false>, affine_of<true, false, true>},
         {affine_of<true, true, false>, affine_of<true, true, true>}}};
    const Step& step = task.step;
    kernels[step.add.at >= 0][step.other.at >= 0][step.activation != 0](task);
}

// How many values, their mean, and the sum of their squared deviations from it; joined as by Chan et al. 1979.
struct Moments {
    double count, mean, squares;
    Moments operator+(const Moments& other) const {
        const double total = count + other.count, distance = other.mean - mean;
        if (!total) return *this;
        return {total, mean + distance * other.count / total,
                squares + other.squares + distance * distance * count * other.count / total};
    }
};

// A block's mean and sum of squared deviations per channel, in two passes over what still is in the cache:
// sums[block][channel] = {mean, squares}. Blocks are joined by NORM.
static void statistics(const Task& task) {
    const Program& p = task.program;
    const Step& step = task.step;
    float* arena = task.arena;
    const int64_t block = task.block;
    const Share channels(step.in.channels, task.worker, task.workers);
    const bool full = is_full(p, block);
    const int64_t width = step.in.width, height = step.in.height;
    float* result = step.sums + block * step.in.channels * 2;
    int64_t used = 0;
    for (int64_t x = 0; x < width; ++x) used += lanes_used(p, block, x);
    const int64_t count = used * height, before = used * step.before;
    each_chunk(channels, [&](int64_t from, int64_t to) {
        Vec sums[CHANNELS] = {}, squares[CHANNELS] = {}, means[CHANNELS];
        each_channel_row(height, from, to, [&](int64_t c, int64_t y) {
            const float* in = at(arena, step.in, c, y);
            Vec s = {}, t = {};
            if (full) {
                int64_t x = 0;
                for (; x + 2 <= width; x += 2) s += load(in + x * LANES), t += load(in + (x + 1) * LANES);
                if (x < width) s += load(in + x * LANES);
            } else {
                for (int64_t x = 0; x < width; ++x)
                    s += keep(load(in + x * LANES), first_lanes(lanes_used(p, block, x)));
            }
            sums[c - from] += s + t;
        });
        for (int64_t c = from; c < to; ++c) means[c - from] = splat(count ? sum_of(sums[c - from]) / float(count) : 0.0f);
        each_channel_row(height, from, to, [&](int64_t c, int64_t y) {
            const float* in = at(arena, step.in, c, y);
            const Vec mean = means[c - from];
            Vec s = {}, t = {};
            if (full) {
                int64_t x = 0;
                for (; x + 2 <= width; x += 2) {
                    const Vec d = load(in + x * LANES) - mean, e = load(in + (x + 1) * LANES) - mean;
                    s += d * d, t += e * e;
                }
                if (x < width) {
                    const Vec d = load(in + x * LANES) - mean;
                    s += d * d;
                }
            } else {
                for (int64_t x = 0; x < width; ++x) {
                    const Vec d = keep(load(in + x * LANES) - mean, first_lanes(lanes_used(p, block, x)));
                    s += d * d;
                }
            }
            squares[c - from] += s + t;
        });
        for (int64_t c = from; c < to; ++c) {
            Moments own = {double(count), means[c - from][0], sum_of(squares[c - from])};
            if (before) own = Moments{double(before), result[2 * c], result[2 * c + 1]} + own;
            result[2 * c] = float(own.mean), result[2 * c + 1] = float(own.squares);
        }
    });
}

// The way back through relu(scale * a + shift + scale2 * b + shift2): out = in where the result was above zero; and per channel
// the sums that batch norm's gradient needs, sums[block][channel] = {g, g (a - mean), g (b - mean2)}.
// `add` is a, `other` is b; without either the gradient passes as it is, and only its sum is of use (a bias).
template <bool A, bool B, bool RELU>
static void mask_of(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const int64_t block = task.block;
    const Share channels(step.in.channels, task.worker, task.workers);
    const int64_t width = step.in.width, height = step.in.height;
    float* result = step.sums ? step.sums + block * step.in.channels * 3 : nullptr;
    each_chunk(channels, [&](int64_t from, int64_t to) {
        Vec plain[CHANNELS] = {}, with_a[CHANNELS] = {}, with_b[CHANNELS] = {};
        each_channel_row(height, from, to, [&](int64_t c, int64_t y) {
            const Vec one = splat(step.scale ? step.scale[c] : 1.0f), two = splat(step.scale2 ? step.scale2[c] : 1.0f);
            const Vec shift = splat((step.shift ? step.shift[c] : 0.0f) + (step.shift2 ? step.shift2[c] : 0.0f));
            const Vec mean = splat(step.mean ? step.mean[c] : 0.0f), mean2 = splat(step.mean2 ? step.mean2[c] : 0.0f);
            const float* in = at(arena, step.in, c, y);
            const float* a = A ? at(arena, step.add, c, y) : nullptr;
            const float* b = B ? at(arena, step.other, c, y) : nullptr;
            float* out = step.out.at >= 0 ? at(arena, step.out, c, y) : nullptr;
            Vec sum = {}, sum_a = {}, sum_b = {};
            for (int64_t x = 0; x < width; ++x) {
                if (A) ask_for(a + x * LANES);
                Vec g = load(in + x * LANES);
                const Vec va = A ? load(a + x * LANES) : Vec{}, vb = B ? load(b + x * LANES) : Vec{};
                if (RELU) {
                    Vec z = one * va + shift;
                    if (B) z += two * vb;
                    g = keep(g, (Mask)(z > Vec{}));
                }
                if (out) store(out + x * LANES, g);
                sum += g;
                if (A) sum_a += g * (va - mean);
                if (B) sum_b += g * (vb - mean2);
            }
            plain[c - from] += sum, with_a[c - from] += sum_a, with_b[c - from] += sum_b;
        });
        if (result)
            for (int64_t c = from; c < to; ++c) {
                const float own[3] = {sum_of(plain[c - from]), sum_of(with_a[c - from]), sum_of(with_b[c - from])};
                for (int i = 0; i < 3; ++i) result[3 * c + i] = own[i] + (step.before ? result[3 * c + i] : 0.0f);
            }
    });
}

static void mask(const Task& task) {
    const bool a = task.step.add.at >= 0, b = task.step.other.at >= 0, r = task.step.activation != 0;
    if (!a) return mask_of<false, false, false>(task);
    if (b) return (r ? mask_of<true, true, true> : mask_of<true, true, false>)(task);
    (r ? mask_of<true, false, true> : mask_of<true, false, false>)(task);
}

// Between passes, by one thread: what whole-batch sums give.

// Batch norm's statistics from those of the blocks, and the scale and shift that apply it.
static void norm(const Task& task) {
    const Program& p = task.program;
    const Step& step = task.step;
    const Norm& n = *step.norm;
    const int64_t blocks = blocks_of(p), channels = step.in.channels;
    for (int64_t c = 0; c < channels; ++c) {
        Moments all = {};
        for (int64_t b = 0; b < blocks; ++b) {
            int64_t used = 0;
            for (int64_t x = 0; x < step.in.width; ++x) used += lanes_used(p, b, x) * step.in.height;
            const float* sums = step.sums + (b * channels + c) * 2;
            all = all + Moments{double(used), sums[0], sums[1]};
        }
        const auto [count, mean, squares] = all;
        const double variance = squares / count, inverse = 1.0 / std::sqrt(variance + n.eps);
        n.mean[c] = float(mean), n.inverse[c] = float(inverse);
        n.scale[c] = float(inverse * (n.weight ? n.weight[c] : 1.0f));
        n.shift[c] = float((n.bias ? n.bias[c] : 0.0f) - mean * inverse * (n.weight ? n.weight[c] : 1.0f));
        if (n.running_mean) {
            const double unbiased = squares / (count - 1.0);
            n.running_mean[c] = float((1.0 - n.momentum) * n.running_mean[c] + n.momentum * mean);
            n.running_var[c] = float((1.0 - n.momentum) * n.running_var[c] + n.momentum * unbiased);
        }
    }
}

// From the sums of g and g (a - mean) to the gradients of weight and bias, and to the coefficients with which
// d a = by_gradient * g + by_value * a + by_one (Ioffe & Szegedy 2015). `which` sum is a's: 1, or 2 for a second input.
static void norm_gradient(const Task& task) {
    const Program& p = task.program;
    const Step& step = task.step;
    const Norm& n = *step.norm;
    const int64_t blocks = blocks_of(p), channels = step.in.channels;
    const double count = double(p.images) * (p.spread > 1 ? 1.0 : double(step.in.width * step.in.height));
    for (int64_t c = 0; c < channels; ++c) {
        double plain = 0.0, with = 0.0;
        for (int64_t b = 0; b < blocks; ++b) {
            plain += step.sums[(b * channels + c) * 3];
            with += step.sums[(b * channels + c) * 3 + step.count];
        }
        const double inverse = n.inverse[c], by = inverse * (n.weight ? n.weight[c] : 1.0f);
        const double by_value = -by * inverse * inverse * with / count;
        n.by_gradient[c] = float(by), n.by_value[c] = float(by_value);
        n.by_one[c] = float(-by * plain / count - by_value * n.mean[c]);
        if (n.weight_gradient) n.weight_gradient[c] = float(with * inverse);
        if (n.bias_gradient) n.bias_gradient[c] = float(plain);
    }
}

// The sums of all blocks (a bias's gradient), into `target`.
static void sum_blocks(const Task& task) {
    const Program& p = task.program;
    const Step& step = task.step;
    const int64_t blocks = blocks_of(p), channels = step.in.channels;
    for (int64_t c = 0; c < channels; ++c) {
        double sum = 0.0;
        for (int64_t b = 0; b < blocks; ++b) sum += step.sums[(b * channels + c) * 3];
        step.target[c] = float(sum);
    }
}

#define TRAINING_KINDS(KIND) \
    KIND(AFFINE, affine) \
    KIND(STATISTICS, statistics) \
    KIND(MASK, mask) \
    KIND(NORM, norm) \
    KIND(NORM_GRADIENT, norm_gradient) \
    KIND(SUM_BLOCKS, sum_blocks)
