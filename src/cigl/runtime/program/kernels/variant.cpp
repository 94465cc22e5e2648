// All kernels for one instruction set. Compiled once per set, with its flags and -DVARIANT=name -DLANES=floats.
#include "conv.h"
#include "plain.h"

namespace {

void run(const Program& p, const Op& op, float* arena, int64_t block, int64_t worker, int64_t workers,
         const float* const* inputs, float* const* outputs) {
    const Share out_rows(op.out.channels * op.out.height, worker, workers);
    const Share in_rows(op.in.channels * op.in.height, worker, workers);
    const Share channels(op.out.channels, worker, workers);
    switch (op.kind) {
        case LOAD: {
            const float* from = inputs[op.in.at];
            each_row(p, op.in, op.out, block, worker, workers,
                     [=](int64_t in, int64_t image, int64_t images, int64_t count, int64_t out, int64_t step) {
                         interleave(from + in, image, images, count, arena + out, step, p.lanes);
                     });
            break;
        }
        case STORE: {
            float* to = outputs[op.out.at];
            each_row(p, op.out, op.in, block, worker, workers,
                     [=](int64_t out, int64_t image, int64_t images, int64_t count, int64_t in, int64_t step) {
                         separate(arena + in, step, images, count, to + out, image);
                     });
            break;
        }
        case CONV: conv(p, op, arena, worker, workers); break;
        case DOT: dot(op, arena, channels); break;
        case ELEMENTWISE: elementwise(op, arena, p.lanes, out_rows); break;
        case SPLIT: split(op, arena, out_rows); break;
        case MAX_POOL: pool<true>(op, arena, p.lanes, out_rows); break;
        case AVG_POOL: pool<false>(op, arena, p.lanes, out_rows); break;
        case MEAN: mean(op, arena, p.lanes, channels); break;
        case FLATTEN: flatten(op, arena, p.lanes, in_rows); break;
    }
}

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
const Variant NAMED(VARIANT) = {TEXT(VARIANT), LANES, run, fma};
