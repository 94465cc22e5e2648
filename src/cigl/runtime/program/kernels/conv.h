// Sparse convolution: tiles of outputs stay in registers while the non-zeros pass by.
//
// R, K    rows and vectors per row of a tile
// G       output channels side by side. Of one channel, each input is loaded for one multiply-add. Where weights are dense
//         enough that neighbouring channels share inputs, the inputs of G channels are sorted by which of them use it
//         (USERS, a bit each), and loaded once.
// STEP    vectors from one output's input to the next one's, the stride
#pragma once
#include "activations.h"

static const int REGISTERS = 8;                    // vectors in a tile of one output channel
static const int64_t WIDEST = LANES == 16 ? 4 : 8;  // of them in a row: two rows read fewer inputs than one
static const int TOGETHER = LANES == 16 ? 4 : 2;   // output channels side by side: AVX-512 has twice as many registers
static const int SHARED = 4;                       // vectors in a tile of each of them
static const int64_t AHEAD = 2;                    // output channels
static const int64_t CHUNK = 64;  // (several) output channels whose partial sums wait between blocks of input channels

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

// The loops that everything else is for: first the inputs that the first channel alone uses, at last those that all use.
template <int G, int R, int K, int STEP, int USERS = 1>
static inline __attribute__((always_inline)) void accumulate(Vec* sums, const float* const* in, const int32_t* offsets,
                                                             const float* values, const int32_t* lists) {
    for (int64_t j = lists[USERS - 1]; j < lists[USERS]; ++j) {
        const int64_t offset = offsets[j];
        if constexpr (G == 1) {
            const Vec value = splat(*values++);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int k = 0; k < K; ++k) sums[r * K + k] += value * load_input_vector<STEP>(in[r] + offset, k);
        } else {
            Vec inputs[R * K];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int k = 0; k < K; ++k) inputs[r * K + k] = load_input_vector<STEP>(in[r] + offset, k);
#pragma GCC unroll 4
            for (int g = 0; g < G; ++g)
                if (USERS >> g & 1) {
                    const Vec value = splat(*values++);
#pragma GCC unroll 8
                    for (int i = 0; i < R * K; ++i) sums[g * R * K + i] += value * inputs[i];
                }
        }
    }
    if constexpr (USERS + 1 < 1 << G) accumulate<G, R, K, STEP, USERS + 1>(sums, in, offsets, values, lists);
}

namespace {  // a class of its own in each instruction set's file

// The tiles are shared among workers; if there are few, so are the chunks of output channels.
// The last tile of a row or column overlaps the one before, where the size is no multiple: same inputs, same result.
template <int G, int STEP>
struct Convolve {
    template <int R, int K>
    static void run(const Conv& c, int64_t worker, int64_t workers) {
        const Step& step = c.step;
        const int64_t outputs = step.out.channels, groups = (outputs + G - 1) / G;
        const int64_t tiles_x = (c.columns + K - 1) / K, tiles_y = (step.out.height + R - 1) / R, tiles = tiles_x * tiles_y;
        int64_t chunk = CHUNK;
        if (workers > 1 && tiles < 4 * workers) chunk = (groups * tiles + 4 * workers - 1) / (4 * workers);
        chunk = chunk < 1 || c.depthwise ? 1 : chunk > CHUNK ? CHUNK : chunk;
        const int64_t chunks = (groups + chunk - 1) / chunk;
        const int32_t *const rows = step.rows, *const firsts = step.firsts, *const offsets = step.offsets;
        const float *const values = step.values, *const bias = step.bias;
        Vec partial[CHUNK][G * R * K];
        const Share share(tiles * chunks, worker, workers);
        for (int64_t item = share.begin; item < share.end; ++item) {
            const int64_t tile = c.depthwise ? item % tiles : item / chunks;
            const int64_t from = c.depthwise ? item / tiles : item % chunks * chunk;
            const int64_t to = from + chunk < groups ? from + chunk : groups;
            int64_t y = tile / tiles_x * R, x = tile % tiles_x * K;
            if (y + R > step.out.height) y = step.out.height - R;
            if (x + K > c.columns) x = c.columns - K;
            const float* in[R];
            for (int r = 0; r < R; ++r)
                in[r] = c.arena + step.in.at + (y + r) * step.stride[0] * step.in.row + x * c.advance;
            // Apart from each other, so that the loops in between are short: many rows have but a few non-zeros.
            const auto sum = [&](int64_t block, int64_t group, Vec* sums) __attribute__((always_inline)) {
                const int64_t place = block * groups + group;
                const int32_t* lists = rows + place * ((1 << G) - 1);
                if (block)
#pragma GCC unroll 16
                    for (int i = 0; i < G * R * K; ++i) sums[i] = partial[group - from][i];
                else
#pragma GCC unroll 4
                    for (int g = 0; g < G; ++g) {
                        const Vec start = splat(bias && group * G + g < outputs ? bias[group * G + g] : 0.0f);
#pragma GCC unroll 8
                        for (int i = 0; i < R * K; ++i) sums[g * R * K + i] = start;
                    }
                accumulate<G, R, K, STEP>(sums, in, offsets, values + (G == 1 ? lists[0] : firsts[place]), lists);
            };
            const int64_t last = step.blocks - 1;
            for (int64_t block = 0; block < last; ++block)
                for (int64_t group = from; group < to; ++group) {
                    Vec sums[G * R * K];
                    sum(block, group, sums);
#pragma GCC unroll 16
                    for (int i = 0; i < G * R * K; ++i) partial[group - from][i] = sums[i];
                }
            for (int64_t group = from; group < to; ++group) {
                for (int64_t o = group * G + AHEAD; o < (group + 1) * G + AHEAD && o < to * G && o < outputs; ++o)
                    for (const View* view : {&step.add, &step.out, &step.normed}) prefetch<R, K>(c, *view, o, y, x);
                Vec sums[G * R * K];
                sum(last, group, sums);
#pragma GCC unroll 4
                for (int g = 0; g < G; ++g)
                    if (group * G + g < outputs) finish<R, K>(c, sums + g * R * K, group * G + g, y, x);
            }
        }
    }
};

}  // namespace

// Kernel::run<R, K> for a tile of r rows and k vectors, of which there are at most MOST.
template <class Kernel, int MOST, int R = 1, int K = 1>
static auto tiled(int64_t r, int64_t k) -> decltype(&Kernel::template run<1, 1>) {
    if (r == R && k == K) return Kernel::template run<R, K>;
    if constexpr ((R + 1) * K <= MOST)
        return tiled<Kernel, MOST, R + 1, K>(r, k);
    else if constexpr (K < MOST)
        return tiled<Kernel, MOST, 1, K + 1>(r, k);
    return nullptr;
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
    const int64_t most = step.together > 1 ? SHARED : REGISTERS;
    const int64_t k = step.stride[1] > 2 ? 1 : even_part(columns, most < WIDEST ? most : WIDEST), r = even_part(step.out.height, most / k);
    const bool strided = step.stride[1] == 2;
    const auto kernel = step.together > 1 ? (strided ? tiled<Convolve<TOGETHER, 2>, SHARED> : tiled<Convolve<TOGETHER, 1>, SHARED>)
                        : !strided        ? tiled<Convolve<1, 1>, REGISTERS>
                        : pixels          ? tiled<Convolve<1, SECOND>, REGISTERS>
                                          : tiled<Convolve<1, 2>, REGISTERS>;
    kernel(r, k)(c, task.worker, task.workers);
}

#define CONV_KINDS(KIND) KIND(CONV, conv)
