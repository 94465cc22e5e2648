// The library's plain C interface: which instruction sets there are, and running a program.
#include "program.h"

#include <chrono>
#include <cstring>
#include <initializer_list>

#ifdef _OPENMP
#include <omp.h>
#endif

extern const Variant variant_portable;
#ifdef CIGL_X86
extern const Variant variant_avx2, variant_avx512;
#endif

static const Variant* find(const char* name) {
#ifdef CIGL_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && !std::strcmp(name, "avx512")) return &variant_avx512;
    if (avx2 && !std::strcmp(name, "avx2")) return &variant_avx2;
#endif
    return std::strcmp(name, "portable") ? nullptr : &variant_portable;
}

static void run_block(const Variant& v, const Program& p, float* arena, int64_t block, const float* const* inputs,
                      float* const* outputs) {
    for (int64_t i = 0; i < p.count; ++i) v.run(p, p.ops[i], arena, block, 0, 1, inputs, outputs);
}

extern "C" {
#pragma GCC visibility push(default)

int64_t cigl_abi() { return CIGL_ABI; }

// Floats per vector of an instruction set, or 0 where this processor does not have it.
int64_t cigl_lanes(const char* isa) {
    const Variant* v = find(isa);
    return v ? v->lanes : 0;
}

// Multiply-adds of one core, in floating-point operations per second.
double cigl_fma_peak(const char* isa, double seconds) {
    const Variant* v = find(isa);
    if (!v) return 0.0;
    double best = 0.0, spent = 0.0;
    while (spent < seconds) {
        const auto start = std::chrono::steady_clock::now();
        const double work = v->fma(100000);
        const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (work / took > best) best = work / took;
        spent += took;
    }
    return best;
}

// Runs all images. `arena` holds p->threads times p->arena floats if there are as many blocks, else one.
// Whole blocks go to one thread each, so that a block's activations stay in its cache; what is left over is shared.
int64_t cigl_run(const char* isa, const Program* p, float* arena, const float* const* inputs, float* const* outputs) {
    const Variant* v = find(isa);
    if (!v) return 1;
    const int64_t size = p->lanes * p->spread, blocks = (p->images + size - 1) / size;
    const int64_t whole = blocks / p->threads * p->threads;
    if (p->threads == 1) {
        for (int64_t b = 0; b < blocks; ++b) run_block(*v, *p, arena, b, inputs, outputs);
        return 0;
    }
#pragma omp parallel num_threads(int(p->threads))
    {
        int64_t worker = 0, workers = 1;
#ifdef _OPENMP
        worker = omp_get_thread_num(), workers = omp_get_num_threads();
#endif
        for (int64_t b = worker; b < whole; b += workers)
            run_block(*v, *p, arena + worker * p->arena, b, inputs, outputs);
#pragma omp barrier
        for (int64_t b = whole; b < blocks; ++b)
            for (int64_t i = 0; i < p->count; ++i) {
                v->run(*p, p->ops[i], arena, b, worker, workers, inputs, outputs);
#pragma omp barrier
            }
    }
    return 0;
}
#pragma GCC visibility pop
}
