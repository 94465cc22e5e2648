// All kernels for one instruction set. Compiled once per set, with its flags and -DVARIANT=name -DLANES=floats.
#include "channels.h"
#include "conv.h"
#include "gradients.h"
#include "plain.h"
#include "recurrent.h"
#include "training.h"

namespace {

#define KERNEL(kind, function) function,
#define NAME(kind, function) " " #kind
#define EVERY_KIND(LIST) \
    CONV_KINDS(LIST) PLAIN_KINDS(LIST) TRAINING_KINDS(LIST) GRADIENT_KINDS(LIST) CHANNEL_KINDS(LIST)
void (*const kernels[])(const Task&) = {EVERY_KIND(KERNEL)};
const char kinds[] = EVERY_KIND(NAME);

void run(const Task& task) { kernels[task.step.kind](task); }

// Twelve independent chains: enough for two units of four cycles' latency, and few enough to stay in registers.
double fma(int64_t rounds) {
    Vec s[12];
    for (int i = 0; i < 12; ++i) s[i] = splat(float(i));
    Vec a = splat(0.999f), b = splat(0.001f);
    for (int64_t n = 0; n < rounds; ++n) {
        asm volatile("" : "+m"(a), "+m"(b));
#pragma GCC unroll 8
        for (int repeat = 0; repeat < 8; ++repeat)
#pragma GCC unroll 12
            for (int i = 0; i < 12; ++i) s[i] = s[i] * a + b;
    }
    Vec sum = {};
    for (int i = 0; i < 12; ++i) sum += s[i];
    volatile float kept = sum[0];
    (void)kept;
    return 2.0 * LANES * 12 * 8 * double(rounds);
}

}  // namespace

#define NAMED_(name) variant_##name
#define NAMED(name) NAMED_(name)
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

extern const Variant NAMED(VARIANT);
const Variant NAMED(VARIANT) = {TEXT(VARIANT), LANES, kinds, run, recur, fma};
