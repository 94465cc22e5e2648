// The ways back: gradients of weights, at the non-zeros only, and of the inputs of strided layers and of pooling.
// (That of a convolution's input is a convolution with the transposed pattern: conv.h.)
#pragma once
#include "training.h"

#include <algorithm>

// Eight vectors, each summed over its lanes.
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
static inline Eight sums_of(const Vec* v) {
#if LANES == 8
    Vec pairs[4], fours[2];
    for (int i = 0; i < 4; ++i)
        pairs[i] = SHUFFLE(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
                   SHUFFLE(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    for (int i = 0; i < 2; ++i)
        fours[i] = SHUFFLE(pairs[2 * i], pairs[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                   SHUFFLE(pairs[2 * i], pairs[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return SHUFFLE(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    Vec pairs[4], fours[2];
    for (int i = 0; i < 4; ++i)
        pairs[i] = SHUFFLE(v[2 * i], v[2 * i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                   SHUFFLE(v[2 * i], v[2 * i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    for (int i = 0; i < 2; ++i)
        fours[i] = SHUFFLE(pairs[2 * i], pairs[2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                   SHUFFLE(pairs[2 * i], pairs[2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    const Vec both = SHUFFLE(fours[0], fours[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                     SHUFFLE(fours[0], fours[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    const Vec all = both + SHUFFLE(both, both, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    const Vec sums = SHUFFLE(all, all, 0, 1, 2, 3, 8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11);
    Eight result;
    std::memcpy(&result, &sums, sizeof result);
    return result;
#endif
}

// Vectors of the output's gradient that stay in registers, beside eight sums: half of all registers.
static const int GRADIENT_TILE = LANES;

// The gradient of N non-zeros: products of a tile of the output's gradient with what they have read, summed up, in as
// many sums as hide the latency of the multiply-adds. Where there are fewer non-zeros than N, the last one is computed
// again and left out.
template <int R, int K, int STEP, int N>
static inline void add_products(const float* const* in, const Vec* gradient, const int32_t* offsets, int64_t count,
                                float* sums) {
    int64_t offset[N];
    for (int i = 0; i < N; ++i) offset[i] = offsets[i < count ? i : count - 1];
    Vec s[8] = {};
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k)
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i)
                s[(r * K + k) * N % 8 + i] += gradient[r * K + k] * load(in[r] + offset[i] + k * STEP * LANES);
#pragma GCC unroll 8
    for (int i = 7; i >= N; --i) s[i - N] += s[i];
#pragma GCC unroll 8
    for (int i = N; i < 8; ++i) s[i] = Vec{};
    const Eight sum = sums_of(s);
    if (count >= 8)
        *reinterpret_cast<Eight*>(sums) += sum;
    else
        for (int i = 0; i < count; ++i) sums[i] += sum[i];
}

// The gradient of the weights, at the non-zeros only: a tile of one output channel's gradient is at hand while its
// non-zeros pass by, eight at a time. Tiles overlap where the size is no multiple; there the gradient counts once.
template <int R, int K, int STEP>
static void weight_gradient_of(const Conv& c, float* sums, Share outputs) {
    const Step& step = c.step;
    const View& dy = step.add;
    const int64_t tiles_x = (c.columns + K - 1) / K, tiles_y = (dy.height + R - 1) / R;
    for (int64_t tile = 0; tile < tiles_x * tiles_y; ++tile) {
        int64_t y = tile / tiles_x * R, x = tile % tiles_x * K;
        int64_t done_y = 0, done_x = 0;  // rows and columns that the tile before has counted
        if (y + R > dy.height) done_y = y + R - dy.height, y = dy.height - R;
        if (x + K > c.columns) done_x = x + K - c.columns, x = c.columns - K;
        const float* in[R];
        for (int r = 0; r < R; ++r) in[r] = c.arena + step.in.at + (y + r) * step.stride[0] * step.in.row + x * c.advance;
        for (int64_t block = 0; block < step.blocks; ++block)
            for (int64_t o = outputs.begin; o < outputs.end; ++o) {
                const int32_t* row = step.rows + block * dy.channels + o;
                int64_t j = row[0];
                const int64_t end = row[1];
                if (j == end) continue;
                const float* from = c.arena + dy.at + o * dy.channel + y * dy.row + x * LANES;
                Vec g[R * K];
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                    for (int k = 0; k < K; ++k)
                        g[r * K + k] = r < done_y || k < done_x ? Vec{} : load(from + r * dy.row + k * LANES);
                for (; j + 4 < end; j += 8)
                    add_products<R, K, STEP, 8>(in, g, step.offsets + j, end - j, sums + j);
                if (j + 2 < end)
                    add_products<R, K, STEP, 4>(in, g, step.offsets + j, end - j, sums + j);
                else if (j < end)
                    add_products<R, K, STEP, 2>(in, g, step.offsets + j, end - j, sums + j);
            }
    }
}

typedef void (*WeightGradient)(const Conv&, float*, Share);

template <int K, int STEP>
static WeightGradient gradient_with_rows(int64_t r) {
#define CASE(R) \
    if constexpr (R * K <= GRADIENT_TILE) \
        if (r == R) return weight_gradient_of<R, K, STEP>;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
    return nullptr;
}

template <int STEP>
static WeightGradient gradient_with_columns(int64_t k, int64_t r) {
    switch (k) {
        case 1: return gradient_with_rows<1, STEP>(r);
        case 2: return gradient_with_rows<2, STEP>(r);
        case 3: return gradient_with_rows<3, STEP>(r);
        case 4: return gradient_with_rows<4, STEP>(r);
        case 5: return gradient_with_rows<5, STEP>(r);
        case 6: return gradient_with_rows<6, STEP>(r);
        case 7: return gradient_with_rows<7, STEP>(r);
        default: return gradient_with_rows<8, STEP>(r);
    }
}

// `in` is what the layer read, `add` the gradient of what it made. A group of blocks adds up into sums of its own.
static void weight_gradient(const Task& task) {
    const Program& p = task.program;
    const Step& step = task.step;
    const Share outputs(step.add.channels, task.worker, task.workers);
    const int64_t blocks = blocks_of(p);
    float* sums = step.sums + task.block * p.groups / blocks * step.count;
    const int64_t columns = step.add.width;
    const Conv c = {step, task.arena, columns, first_lanes(LANES), step.stride[1] * LANES};
    const int64_t k = step.stride[1] > 2 ? 1 : even_part(columns, 8), r = even_part(step.add.height, std::min(8, int(GRADIENT_TILE / k)));
    (step.stride[1] == 2 ? gradient_with_columns<2>(k, r) : gradient_with_columns<1>(k, r))(c, sums, outputs);
}

// The gradient of a strided layer's input comes in planes, one per phase of the stride; this puts them together.
// Pixel u (counted from the padding's corner) is pixel u / stride of plane u % stride; planes beyond the kernel are zero.
static void merge(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const Share channels(step.out.channels, task.worker, task.workers);
    const int64_t phases = step.kernel[0] * step.kernel[1];
    each_channel_row(step.out.height, channels.begin, channels.end, [&](int64_t c, int64_t y) {
        const int64_t uy = y + step.padding[0], phase_y = uy % step.stride[0];
        const float* add = step.add.at >= 0 ? at(arena, step.add, c, y) : nullptr;
        float* out = at(arena, step.out, c, y);
        for (int64_t x = 0; x < step.out.width; ++x) {
            const int64_t ux = x + step.padding[1], phase_x = ux % step.stride[1];
            Vec v = {};
            if (phase_y < step.kernel[0] && phase_x < step.kernel[1])
                v = load(at(arena, step.in, c * phases + phase_y * step.kernel[1] + phase_x, uy / step.stride[0]) +
                         ux / step.stride[1] * LANES);
            if (add) v += load(add + x * LANES);
            store(out + x * LANES, v);
        }
    });
}

// The way back through pooling: `in` is the gradient of the result, `add` (largest value only) what was pooled.
// Of equal values the first one has the gradient, as in torch.
template <bool MAX>
static void pool_gradient(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const Share channels(step.out.channels, task.worker, task.workers);
    for (int64_t c = channels.begin; c < channels.end; ++c) {
        for (int64_t y = 0; y < step.out.height; ++y)
            std::memset(at(arena, step.out, c, y), 0, step.out.width * LANES * sizeof(float));
        for (int64_t y = 0; y < step.in.height; ++y)
            for (int64_t x = 0; x < step.in.width; ++x) {
                const int64_t top = y * step.stride[0] - step.padding[0], left = x * step.stride[1] - step.padding[1];
                const int64_t y0 = top < 0 ? 0 : top, x0 = left < 0 ? 0 : left;
                const int64_t y1 = top + step.kernel[0] < step.out.height ? top + step.kernel[0] : step.out.height;
                const int64_t x1 = left + step.kernel[1] < step.out.width ? left + step.kernel[1] : step.out.width;
                const Vec g = load(at(arena, step.in, c, y) + x * LANES);
                if (MAX) {
                    Vec best = splat(-std::numeric_limits<float>::infinity());
                    Mask where = {};  // the window's pixel that has the largest value, by lane
                    int32_t number = 0;
                    for (int64_t v = y0; v < y1; ++v)
                        for (int64_t u = x0; u < x1; ++u, ++number) {
                            const Vec value = load(at(arena, step.add, c, v) + u * LANES);
                            const Mask larger = (Mask)(value > best) | (Mask)(value != value);
                            best = (Vec)(((Mask)value & larger) | ((Mask)best & ~larger));
                            where = ((Mask{} + number) & larger) | (where & ~larger);
                        }
                    number = 0;
                    for (int64_t v = y0; v < y1; ++v)
                        for (int64_t u = x0; u < x1; ++u, ++number) {
                            float* out = at(arena, step.out, c, v) + u * LANES;
                            store(out, load(out) + keep(g, (Mask)(where == Mask{} + number)));
                        }
                } else {
                    const int64_t count = step.count_padding ? step.count_padding : (y1 - y0) * (x1 - x0);
                    const Vec part = g * splat(1.0f / float(count));
                    for (int64_t v = y0; v < y1; ++v)
                        for (int64_t u = x0; u < x1; ++u) {
                            float* out = at(arena, step.out, c, v) + u * LANES;
                            store(out, load(out) + part);
                        }
                }
            }
    }
}

static void mean_gradient(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const Share channels(step.out.channels, task.worker, task.workers);
    const Vec by = splat(1.0f / float(step.out.height * step.out.width));
    each_channel_row(step.out.height, channels.begin, channels.end, [&](int64_t c, int64_t y) {
        const Vec g = load(at(arena, step.in, c, 0)) * by;
        float* out = at(arena, step.out, c, y);
        for (int64_t x = 0; x < step.out.width; ++x) store(out + x * LANES, g);
    });
}

static void unflatten(const Task& task) {
    const Step& step = task.step;
    float* arena = task.arena;
    const Share channels(step.out.channels, task.worker, task.workers);
    each_channel_row(step.out.height, channels.begin, channels.end, [&](int64_t c, int64_t y) {
        float* out = at(arena, step.out, c, y);
        for (int64_t x = 0; x < step.out.width; ++x)
            store(out + x * LANES, load(at(arena, step.in, (c * step.out.height + y) * step.out.width + x, 0)));
    });
}

// The groups' weight gradients, added up, at their places in the dense gradient; zero at those that Z has switched off.
static void scatter(const Task& task) {
    const Program& p = task.program;
    const Step& step = task.step;
    for (int64_t k = 0; k < step.count; ++k) {
        const int64_t j = step.ranks[k];
        float sum = step.sums[j];
        for (int64_t g = 1; g < p.groups; ++g) sum += step.sums[g * step.count + j];
        step.target[step.places[k]] = step.off && step.off[k] ? 0.0f : sum;
    }
    std::fill_n(step.sums, p.groups * step.count, 0.0f);  // for the next time
}

#define GRADIENT_KINDS(KIND) \
    KIND(WEIGHT_GRADIENT, weight_gradient) \
    KIND(MERGE, merge) \
    KIND(MAX_POOL_GRADIENT, pool_gradient<true>) \
    KIND(AVG_POOL_GRADIENT, pool_gradient<false>) \
    KIND(MEAN_GRADIENT, mean_gradient) \
    KIND(UNFLATTEN, unflatten) \
    KIND(SCATTER, scatter)
