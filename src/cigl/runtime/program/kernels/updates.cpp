// What a training step does to single entries of a weight: its active ones, at sorted `places` in memory.
// `off`, unless null, is not 0 at the entries that a random mask Z has switched off in this step.
#include <cmath>
#include <cstdint>

#define SHARED _Pragma("omp parallel for schedule(static) num_threads(int(threads)) if (threads > 1 && count > 1 << 14)")
static const int64_t AHEAD = 32;  // entries whose memory is asked for in advance: their places are all over a weight

extern "C" {
#pragma GCC visibility push(default)

// Draw Z: the hash of random_numbers.py over the `positions`, below a threshold where an entry is switched off.
void cigl_draw(const uint32_t* positions, int64_t count, uint64_t key, uint32_t threshold, uint8_t* off,
               int64_t threads) {
    const uint32_t first = uint32_t(key), second = uint32_t(key >> 32);
    SHARED for (int64_t k = 0; k < count; ++k) {
        uint32_t h = positions[k] * 0x9E3779B9u ^ first;
        h = (h ^ h >> 16) * 0x85EBCA6Bu + second;
        h = (h ^ h >> 13) * 0xC2B2AE35u;
        off[k] = (h ^ h >> 16) < threshold;
    }
}

// The active entries as the kernels read them: entry k has rank ranks[k] in their order.
void cigl_pack(const float* weight, const int32_t* places, const int32_t* ranks, const uint8_t* off, float* values,
               int64_t count, int64_t threads) {
    SHARED for (int64_t k = 0; k < count; ++k) {
        if (k + AHEAD < count) __builtin_prefetch(weight + places[k + AHEAD]);
        values[ranks[k]] = off && off[k] ? 0.0f : weight[places[k]];
    }
}

// The formulas of torch's SGD, Adam and AdamW. What is switched off stays as it is, weight and state.
void cigl_sgd(float* weight, const float* gradient, float* momentum, const int32_t* places, const uint8_t* off,
              int64_t count, double lr, double beta, double dampening, double decay, int64_t nesterov,
              int64_t maximize, int64_t threads) {
    const float rate = float(lr), b = float(beta), damp = float(1.0 - dampening), wd = float(decay);
    SHARED for (int64_t k = 0; k < count; ++k) {
        const int64_t i = places[k];
        if (k + AHEAD < count) {
            const int64_t next = places[k + AHEAD];
            __builtin_prefetch(weight + next, 1), __builtin_prefetch(gradient + next);
            if (momentum) __builtin_prefetch(momentum + next, 1);
        }
        const bool stays = off && off[k];
        const float w = weight[i];
        float g = maximize ? -gradient[i] : gradient[i];
        g += wd * w;
        if (momentum) {
            const float before = momentum[i], m = b * before + damp * g;
            momentum[i] = stays ? before : m;
            g = nesterov ? g + b * m : m;
        }
        weight[i] = stays ? w : w - rate * g;
    }
}

// `step` counts from 1, this one included.
void cigl_adam(float* weight, const float* gradient, float* mean, float* square, const int32_t* places,
               const uint8_t* off, int64_t count, double step, double lr, double beta1, double beta2, double eps,
               double decay, int64_t decoupled, int64_t maximize, int64_t threads) {
    const float b1 = float(beta1), b2 = float(beta2), c1 = float(1.0 - beta1), c2 = float(1.0 - beta2);
    const float rate = float(lr / (1.0 - std::pow(beta1, step))), root = float(std::sqrt(1.0 - std::pow(beta2, step)));
    const float shrink = float(1.0 - lr * decay), wd = float(decay), e = float(eps);
    SHARED for (int64_t k = 0; k < count; ++k) {
        const int64_t i = places[k];
        if (k + AHEAD < count) {
            const int64_t next = places[k + AHEAD];
            __builtin_prefetch(weight + next, 1), __builtin_prefetch(gradient + next);
            __builtin_prefetch(mean + next, 1), __builtin_prefetch(square + next, 1);
        }
        if (off && off[k]) continue;
        float g = maximize ? -gradient[i] : gradient[i], w = weight[i];
        if (decoupled)
            w *= shrink;
        else
            g += wd * w;
        const float m = b1 * mean[i] + c1 * g, s = b2 * square[i] + c2 * g * g;
        mean[i] = m, square[i] = s;
        weight[i] = w - rate * m / (std::sqrt(s) / root + e);
    }
}
#pragma GCC visibility pop
}
