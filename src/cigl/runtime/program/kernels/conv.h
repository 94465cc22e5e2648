// Sparse convolution: R rows of K vectors of one output channel stay in registers while its non-zeros pass by.
#pragma once
#include "activations.h"

static const int REGISTERS = 8;   // vectors in a tile
static const int64_t WIDEST = LANES == 16 ? 4 : 8;  // vectors in a row of a tile: two rows read fewer inputs than one
static const int64_t AHEAD = 2;   // output channels
static const int64_t CHUNK = 64;  // output channels whose partial sums wait in L1 between blocks of input channels

struct Conv {
    const Step& step;
    float* arena;
    int64_t columns;  // vectors in an output row
    Mask edge;        // the part of a row's last vector that is inside
    int64_t advance;  // input floats from one output vector to the next
    bool depthwise;   // each channel by itself: its pixels one after the other, as they lie in memory
};

// Everything that follows the sum, while it is in registers.
template <int R, int K>
static inline void finish(const Conv& c, const Vec* sums, int64_t o, int64_t y, int64_t x) {
    const Step& step = c.step;
    const bool last = x + K == c.columns;
    Vec s[R * K];
    for (int i = 0; i < R * K; ++i) s[i] = sums[i];
    if (step.add.at >= 0) {
        const float* add = c.arena + step.add.at + o * step.add.channel + y * step.add.row + x * LANES;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int k = 0; k < K; ++k) s[r * K + k] += load(add + r * step.add.row + k * LANES);
    }
    if (step.normed.at < 0) activate<R * K>(step.activation, s);
    if (step.out.at >= 0) {
        float* out = c.arena + step.out.at + o * step.out.channel + y * step.out.row + x * LANES;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int k = 0; k < K; ++k)
                store(out + r * step.out.row + k * LANES,
                      k == K - 1 && last ? keep(s[r * K + k], c.edge) : s[r * K + k]);
    }
    if (step.normed.at >= 0) {
        const Vec scale = splat(step.scale[o]), shift = splat(step.shift[o]);
#pragma GCC unroll 16
        for (int i = 0; i < R * K; ++i) s[i] = s[i] * scale + shift;
        activate<R * K>(step.activation, s);
        float* out = c.arena + step.normed.at + o * step.normed.channel + y * step.normed.row + x * LANES;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int k = 0; k < K; ++k)
                store(out + r * step.normed.row + k * LANES,
                      k == K - 1 && last ? keep(s[r * K + k], c.edge) : s[r * K + k]);
    }
}

// Asks for the memory that `finish` will touch: a tile's lines are too far from the last one's for the processor to
// guess.
template <int R, int K>
static inline void prefetch(const Conv& c, const View& v, int64_t o, int64_t y, int64_t x) {
    if (v.at < 0) return;
    const float* p = c.arena + v.at + o * v.channel + y * v.row + x * LANES;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int k = 0; k < K; k += 16 / LANES) __builtin_prefetch(p + r * v.row + k * LANES, 1);
}

// STEP is a stride over vectors of images. SECOND: of vectors of pixels, which are then taken apart.
static const int SECOND = -2;
template <int STEP>
static inline Vec load_input_vector(const float* in, int k) {
    if constexpr (STEP == SECOND) return evens(load(in + 2 * k * LANES), load(in + (2 * k + 1) * LANES));
    return load(in + k * STEP * LANES);
}

// One tile of one output channel: the loop that everything else is for.
template <int R, int K, int STEP>
static inline void accumulate(Vec* sums, const float* const* in, const int32_t* offsets, const float* values,
                              int64_t count) {
    Vec s[R * K];
#pragma GCC unroll 16
    for (int i = 0; i < R * K; ++i) s[i] = sums[i];
    for (int64_t j = 0; j < count; ++j) {
        const int64_t offset = offsets[j];
        const Vec value = splat(values[j]);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int k = 0; k < K; ++k) s[r * K + k] += value * load_input_vector<STEP>(in[r] + offset, k);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R * K; ++i) sums[i] = s[i];
}

// The tiles are shared among workers; if there are few, so are the chunks of output channels.
// The last tile of a row or column overlaps the one before, where the size is no multiple: same inputs, same result.
template <int R, int K, int STEP>
static void convolve(const Conv& c, int64_t worker, int64_t workers) {
    const Step& step = c.step;
    const int64_t outputs = step.out.channels;
    const int64_t tiles_x = (c.columns + K - 1) / K, tiles_y = (step.out.height + R - 1) / R, tiles = tiles_x * tiles_y;
    int64_t chunk = CHUNK;
    if (workers > 1 && tiles < 4 * workers) chunk = (outputs * tiles + 4 * workers - 1) / (4 * workers);
    chunk = chunk < 1 || c.depthwise ? 1 : chunk > CHUNK ? CHUNK : chunk;
    const int64_t chunks = (outputs + chunk - 1) / chunk;
    Vec partial[CHUNK][R * K];
    const Share share(tiles * chunks, worker, workers);
    for (int64_t item = share.begin; item < share.end; ++item) {
        const int64_t tile = c.depthwise ? item % tiles : item / chunks;
        const int64_t from = c.depthwise ? item / tiles : item % chunks * chunk;
        const int64_t to = from + chunk < outputs ? from + chunk : outputs;
        int64_t y = tile / tiles_x * R, x = tile % tiles_x * K;
        if (y + R > step.out.height) y = step.out.height - R;
        if (x + K > c.columns) x = c.columns - K;
        const float* in[R];
        for (int r = 0; r < R; ++r)
            in[r] = c.arena + step.in.at + (y + r) * step.stride[0] * step.in.row + x * c.advance;
        for (int64_t block = 0; block < step.blocks; ++block)
            for (int64_t o = from; o < to; ++o) {
                const int32_t* row = step.rows + block * outputs + o;
                if (block == step.blocks - 1 && o + AHEAD < to) {
                    prefetch<R, K>(c, step.add, o + AHEAD, y, x);
                    prefetch<R, K>(c, step.out, o + AHEAD, y, x);
                    prefetch<R, K>(c, step.normed, o + AHEAD, y, x);
                }
                Vec sums[R * K];
                const Vec bias = splat(step.bias ? step.bias[o] : 0.0f);
                for (int i = 0; i < R * K; ++i) sums[i] = block ? partial[o - from][i] : bias;
                accumulate<R, K, STEP>(sums, in, step.offsets + row[0], step.values + row[0], row[1] - row[0]);
                if (block == step.blocks - 1)
                    finish<R, K>(c, sums, o, y, x);
                else
                    for (int i = 0; i < R * K; ++i) partial[o - from][i] = sums[i];
            }
    }
}

typedef void (*Tiled)(const Conv&, int64_t, int64_t);

template <int K, int STEP>
static Tiled with_rows(int64_t r) {
#define CASE(R) \
    if constexpr (R * K <= REGISTERS) \
        if (r == R) return convolve<R, K, STEP>;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
    return nullptr;
}

template <int STEP>
static Tiled with_columns(int64_t k, int64_t r) {
    switch (k) {
        case 1: return with_rows<1, STEP>(r);
        case 2: return with_rows<2, STEP>(r);
        case 3: return with_rows<3, STEP>(r);
        case 4: return with_rows<4, STEP>(r);
        case 5: return with_rows<5, STEP>(r);
        case 6: return with_rows<6, STEP>(r);
        case 7: return with_rows<7, STEP>(r);
        default: return with_rows<8, STEP>(r);
    }
}

// `size` in as few parts of at most `most` as possible, as even as possible.
static int64_t even_part(int64_t size, int64_t most) {
    const int64_t parts = (size + most - 1) / most;
    return (size + parts - 1) / parts;
}

static void conv(const Task& task) {
    const Step& step = task.step;
    const int64_t floats = step.out.width * task.program.lanes, columns = (floats + LANES - 1) / LANES;
    const bool pixels = task.program.lanes == 1;
    const Conv c = {step, task.arena, columns, first_lanes(floats - (columns - 1) * LANES), step.stride[1] * LANES,
                    pixels && step.groups == step.in.channels && step.groups > 1};
    const int64_t k = step.stride[1] > 2 ? 1 : even_part(columns, WIDEST), r = even_part(step.out.height, REGISTERS / k);
    const auto with = step.stride[1] != 2 ? with_columns<1> : pixels ? with_columns<SECOND> : with_columns<2>;
    with(k, r)(c, task.worker, task.workers);
}

#define CONV_KINDS(KIND) KIND(CONV, conv)
