// Vectors of LANES floats in the compiler's own notation: the same source for every instruction set.
#pragma once
#include <cstdint>
#include <cstring>

typedef float Vec __attribute__((vector_size(LANES * 4), may_alias));
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

// The part of `count` items that falls to one of several workers.
struct Share {
    int64_t begin, end;
    Share(int64_t count, int64_t worker, int64_t workers)
        : begin(count * worker / workers), end(count * (worker + 1) / workers) {}
};
