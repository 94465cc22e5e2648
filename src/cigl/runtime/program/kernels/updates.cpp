// The formulas of torch's SGD, Adam and AdamW, on the entries of a pattern alone. `places` are theirs in all tensors.
#include <cmath>
#include <cstdint>

static const int64_t AHEAD = 32;  // entries whose memory is asked for in advance: their places are all over a weight

extern "C" {
#pragma GCC visibility push(default)

void cigl_sgd(float* weight, const float* gradient, float* momentum, const int32_t* places, int64_t count, double lr,
              double beta, double dampening, double decay, int64_t nesterov, int64_t maximize) {
    const float rate = float(lr), b = float(beta), damp = float(1.0 - dampening), wd = float(decay);
    for (int64_t j = 0; j < count; ++j) {
        const int64_t i = places[j];
        if (j + AHEAD < count) {
            const int64_t next = places[j + AHEAD];
            __builtin_prefetch(weight + next, 1), __builtin_prefetch(gradient + next);
            if (momentum) __builtin_prefetch(momentum + next, 1);
        }
        float g = maximize ? -gradient[i] : gradient[i];
        g += wd * weight[i];
        if (momentum) {
            const float m = b * momentum[i] + damp * g;
            momentum[i] = m;
            g = nesterov ? g + b * m : m;
        }
        weight[i] -= rate * g;
    }
}

// `step` counts from 1, this one included.
void cigl_adam(float* weight, const float* gradient, float* mean, float* square, const int32_t* places, int64_t count,
               double step, double lr, double beta1, double beta2, double eps, double decay, int64_t decoupled,
               int64_t maximize) {
    const float b1 = float(beta1), b2 = float(beta2), c1 = float(1.0 - beta1), c2 = float(1.0 - beta2);
    const float rate = float(lr / (1.0 - std::pow(beta1, step))), root = float(std::sqrt(1.0 - std::pow(beta2, step)));
    const float shrink = float(1.0 - lr * decay), wd = float(decay), e = float(eps);
    for (int64_t j = 0; j < count; ++j) {
        const int64_t i = places[j];
        if (j + AHEAD < count) {
            const int64_t next = places[j + AHEAD];
            __builtin_prefetch(weight + next, 1), __builtin_prefetch(gradient + next);
            __builtin_prefetch(mean + next, 1), __builtin_prefetch(square + next, 1);
        }
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
