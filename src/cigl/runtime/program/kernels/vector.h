// Vectors of LANES floats in the compiler's own notation: the same source for every instruction set.
#pragma once
#include <cstdint>
#include <cstring>

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef float Unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(LANES * 4), may_alias));

static inline Vec load(const float* p) { return *reinterpret_cast<const Unaligned*>(p); }
static inline void store(float* p, Vec v) { *reinterpret_cast<Unaligned*>(p) = v; }
static inline Vec splat(float x) { return x - Vec{}; }
static inline Vec keep(Vec v, Mask m) { return (Vec)((Mask)v & m); }

// A NaN fails every comparison, so it stays.
static inline Vec relu(Vec v) {
    const Vec zero = {};
    return zero > v ? zero : v;
}
static inline float relu(float v) { return 0.0f > v ? 0.0f : v; }

static inline Mask first_lanes(int64_t count) {
    Mask m = {};
    for (int i = 0; i < LANES; ++i) m[i] = i < count ? -1 : 0;
    return m;
}

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Mask{__VA_ARGS__})
#endif

#if LANES == 8
static inline Vec zip_low(Vec a, Vec b) { return SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
static inline Vec zip_high(Vec a, Vec b) { return SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
static inline Vec evens(Vec a, Vec b) { return SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
#else
static inline Vec zip_low(Vec a, Vec b) {
    return SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static inline Vec zip_high(Vec a, Vec b) {
    return SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
static inline Vec evens(Vec a, Vec b) {
    return SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
#endif

// LANES vectors as the rows of a square, turned: zipping the halves log2(LANES) times moves every bit of the index.
static inline void transpose(Vec* rows) {
    for (int half = 1; half < LANES; half *= 2) {
        Vec zipped[LANES];
        for (int i = 0; i < LANES / 2; ++i) {
            zipped[2 * i] = zip_low(rows[i], rows[i + LANES / 2]);
            zipped[2 * i + 1] = zip_high(rows[i], rows[i + LANES / 2]);
        }
        for (int i = 0; i < LANES; ++i) rows[i] = zipped[i];
    }
}

// The part of `count` items that falls to one of several workers.
struct Share {
    int64_t begin, end;
    Share(int64_t count, int64_t worker, int64_t workers)
        : begin(count * worker / workers), end(count * (worker + 1) / workers) {}
};
