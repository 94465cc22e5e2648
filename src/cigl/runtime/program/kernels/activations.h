// Functions of each element, on vectors. A NaN stays a NaN.
#pragma once
#include "program.h"
#include "vector.h"

#include <initializer_list>

typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));

static inline Vec clamped(Vec v, float low, float high) {
    const Vec least = splat(low), most = splat(high);
    v = least > v ? least : v;
    return v > most ? most : v;
}

// 2^n * e^r with |r| <= ln(2) / 2, where a polynomial of degree 6 is right to a few units in the last place.
static inline Vec exponential(Vec v) {
    v = clamped(v, -87.0f, 88.0f);
    const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to whole numbers
    const Vec shifted = v * splat(1.44269504f) + magic, n = shifted - magic;
    const Vec r = (v - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
    Vec p = splat(1.0f / 720);
    for (float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = p * r + splat(c);
    const Bits power = ((Bits)shifted - (Bits)magic + 127u) << 23;
    return p * (Vec)power;
}

static inline Vec sigmoid(Vec v) { return splat(1.0f) / (splat(1.0f) + exponential(-v)); }

template <int64_t NAME>
static inline Vec activated(Vec v) {
    if constexpr (NAME == RELU) return relu(v);
    if constexpr (NAME == RELU6) return clamped(v, 0.0f, 6.0f);
    if constexpr (NAME == SIGMOID) return sigmoid(v);
    if constexpr (NAME == SILU) return v * sigmoid(v);
    if constexpr (NAME == HARDSIGMOID) return clamped(v + splat(3.0f), 0.0f, 6.0f) * splat(1.0f / 6);
    if constexpr (NAME == HARDSWISH) return v * clamped(v + splat(3.0f), 0.0f, 6.0f) * splat(1.0f / 6);
    if constexpr (NAME == TANH) return splat(2.0f) * sigmoid(v + v) - splat(1.0f);
    if constexpr (NAME == MISH) {  // x tanh(ln(1 + e^x)), with e^x bounded: its square must be finite
        const Vec e = exponential(clamped(v, -87.0f, 40.0f)), n = e * (e + splat(2.0f));
        return v * (n / (n + splat(2.0f)));
    }
    if constexpr (NAME == GELU) {  // x times the normal distribution's tail: Abramowitz & Stegun 7.1.26, to 1e-7
        const Vec size = v < Vec{} ? -v : v, t = splat(1.0f) / (splat(1.0f) + splat(0.3275911f * 0.70710678f) * size);
        Vec p = splat(1.061405429f);
        for (float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = p * t + splat(c);
        const Vec tail = splat(0.5f) * p * t * exponential(splat(-0.5f) * v * v) * v;
        return v > Vec{} ? v - tail : tail;
    }
    if constexpr (NAME == GELU_TANH) return v * sigmoid(v * (splat(1.59576912f) + splat(0.07135481f) * v * v));
    return v;
}

template <int64_t NAME>
static void activate_as(Vec* v, int64_t count) {
    for (int64_t i = 0; i < count; ++i) v[i] = activated<NAME>(v[i]);
}

// Not inlined: what is not ReLU takes long enough to be called.
__attribute__((noinline)) static void activate_otherwise(int64_t name, Vec* v, int64_t count) {
#define ENTRY(name) activate_as<name>,
    static void (*const functions[])(Vec*, int64_t) = {ACTIVATIONS(ENTRY)};
#undef ENTRY
    functions[name](v, count);
}

template <int COUNT>
static inline void activate(int64_t name, Vec* v) {
    if (name == RELU)
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; ++i) v[i] = relu(v[i]);
    else if (name != NONE)
        activate_otherwise(name, v, COUNT);
}

static inline float activate(int64_t name, float x) {
    Vec v = splat(x);
    activate<1>(name, &v);
    return v[0];
}
