// The library's plain C interface: which instruction sets there are, and running a program.
#include "barrier.h"
#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#ifdef CIGL_X86
#include <cpuid.h>
#endif

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

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// body(worker, workers, barrier) in each of so many threads, or of fewer, if OpenMP has no more.
template <class Body>
static void in_threads(int64_t threads, const Body& body) {
    Barrier barrier;
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(int(threads))
        body(omp_get_thread_num(), omp_get_num_threads(), barrier);
        return;
    }
#endif
    body(0, 1, barrier);
}

// All steps of a band are about rows of the same height: of what the first one writes.
static int64_t banded_height(const Step& step) { return (step.out.at < 0 ? step.in : step.out).height; }

extern "C" {
#pragma GCC visibility push(default)

int64_t cigl_abi() { return CIGL_ABI; }

// The kinds of steps in their order, and size and offset of every structure and field, a line each: what the caller's
// mirrors must say, too.
const char* cigl_interface() {
    static const std::string text = [] {
#define NAME(name) " " #name
        std::string lines = std::string("kinds") + variant_portable.kinds + "\nactivations" ACTIVATIONS(NAME) "\n";
#undef NAME
        for (const Field& field : FIELDS)
            lines += field.name + (" " + std::to_string(field.offset)) + " " + std::to_string(field.size) + "\n";
        return lines;
    }();
    return text.c_str();
}

// Floats per vector of an instruction set, or 0 where this processor does not have it.
int64_t cigl_lanes(const char* isa) {
    const Variant* v = find(isa);
    return v ? v->lanes : 0;
}

// The four registers of the cpuid instruction; zeros where the processor has none or not this leaf.
void cigl_cpuid(uint32_t leaf, uint32_t* registers) {
    std::fill(registers, registers + 4, 0u);
#ifdef CIGL_X86
    __get_cpuid(leaf, registers, registers + 1, registers + 2, registers + 3);
#endif
}

int64_t cigl_recur(const char* isa, const Recurrent* r) {
    const Variant* v = find(isa);
    if (!v) return -1;
    in_threads(r->threads, [&](int64_t worker, int64_t workers, Barrier&) { v->recur(*r, worker, workers); });
    return 0;
}

// Multiply-adds of one core, in floating-point operations per second.
double cigl_fma_peak(const char* isa, double seconds) {
    const Variant* v = find(isa);
    if (!v) return 0.0;
    double best = 0.0, spent = 0.0;
    while (spent < seconds) {
        const double start = now(), work = v->fma(100000), took = now() - start;
        if (work / took > best) best = work / took;
        spent += took;
    }
    return best;
}

// Runs all images. `arena` holds p->threads times p->arena floats if there are as many blocks, else one.
// Whole blocks go to one thread each, so that a block's activations stay in its cache; what is left over is shared.
// `seconds`, unless null, receives the time that the first thread spends on each step.
int64_t cigl_run(const char* isa, const Program* p, float* arena, const float* const* inputs, float* const* outputs,
                 double* seconds) {
    const Variant* v = find(isa);
    if (!v) return 1;
    const int64_t size = p->lanes * p->spread, blocks = (p->images + size - 1) / size;
    const int64_t whole = blocks / p->threads * p->threads;
    if (seconds) std::fill(seconds, seconds + p->count, 0.0);
    in_threads(p->threads, [&](int64_t worker, int64_t workers, Barrier& barrier) {
        const bool timed = seconds && !worker;
        for (int64_t b = worker; b < whole; b += workers)
            for (int64_t i = 0; i < p->count; ++i) {
                const double start = timed ? now() : 0.0;
                v->run({*p, p->steps[i], arena + worker * p->arena, b, 0, 1, inputs, outputs});
                if (timed) seconds[i] += now() - start;
            }
        barrier.wait(workers);
        for (int64_t b = whole; b < blocks; ++b)
            for (int64_t i = 0; i < p->count; ++i) {
                const double start = timed ? now() : 0.0;
                v->run({*p, p->steps[i], arena, b, worker, workers, inputs, outputs});
                barrier.wait(workers);
                if (timed) seconds[i] += now() - start;
            }
    });
    return 0;
}

// Runs steps first to last of a training program. `memory` holds blocks * p->kept floats that outlive the call, then
// p->threads * p->arena floats for what doesn't. All blocks go through a run of steps before the steps once per batch that
// follow it; the next run begins with the last block, whose values are still in a cache. The order of all sums is the
// same for any number of threads.
int64_t cigl_train(const char* isa, const Program* p, int64_t first, int64_t last, float* memory,
                   const float* const* inputs, float* const* outputs, double* seconds) {
    const Variant* v = find(isa);
    if (!v) return 1;
    const int64_t size = p->lanes * p->spread, blocks = (p->images + size - 1) / size;
    const bool alone = p->threads <= p->groups;  // each block's steps are done by one thread
    if (seconds) std::fill(seconds, seconds + p->count, 0.0);
    in_threads(p->threads, [&](int64_t worker, int64_t workers, Barrier& barrier) {
        const bool timed = seconds && !worker;
        // Rows from `y` to `end` of a step, or all if it is not banded.
        const auto run = [&](int64_t i, int64_t block, int64_t y, int64_t end) {
            const double start = timed ? now() : 0.0;
            const int64_t kept = block * p->kept, own = blocks * p->kept + (alone ? worker : 0) * p->arena;
            Step step = p->steps[i];
            View* const views[] = {&step.in, &step.add, &step.out, &step.other};
            for (int bit = 0; bit < 4; ++bit) {
                View& view = *views[bit];
                if (view.at < 0 || step.outside >> bit & 1) continue;
                view.at += step.kept >> bit & 1 ? kept : own;
                if (end < 0) continue;
                view.height = end - y;
                if (!(step.rolling >> bit & 1)) view.at += y * view.row;
            }
            step.before = end < 0 ? 0 : y;
            if (alone)
                v->run({*p, step, memory, block, 0, 1, inputs, outputs});
            else {
                v->run({*p, step, memory, block, worker, workers, inputs, outputs});
                barrier.wait(workers);
            }
            if (timed) seconds[i] += now() - start;
        };
        // Steps `from` to `to` for a block. What a banded step leaves is read while it is still in the cache.
        const auto run_block = [&](int64_t from, int64_t to, int64_t block) {
            for (int64_t i = from; i < to; ++i) {
                const Step& step = p->steps[i];
                if (!step.banded) {
                    run(i, block, 0, -1);
                    continue;
                }
                const int64_t height = banded_height(step);
                for (int64_t y = 0; y < height; y += step.band)
                    for (int64_t j = i; j < i + step.banded; ++j) {
                        const int64_t lead = p->steps[j].lead;
                        const int64_t begin = y ? std::min(y + lead, height) : 0;
                        const int64_t end = std::min(y + step.band + lead, height);
                        if (begin < end) run(j, block, begin, end);
                    }
                i += step.banded - 1;
            }
        };
        bool upwards = true;
        for (int64_t from = first; from < last; upwards = !upwards) {
            int64_t to = from;
            while (to < last && !p->steps[to].per_batch) ++to;
            for (int64_t i = 0; i < blocks; ++i) {
                const int64_t b = upwards ? i : blocks - 1 - i;
                if (!alone || b * p->groups / blocks % workers == worker) run_block(from, to, b);
            }
            barrier.wait(workers);
            for (from = to; from < last && p->steps[from].per_batch; ++from)
                if (from % workers == worker) {
                    const double start = timed ? now() : 0.0;
                    v->run({*p, p->steps[from], memory, 0, 0, 1, inputs, outputs});
                    if (timed) seconds[from] += now() - start;
                }
            barrier.wait(workers);
        }
    });
    return 0;
}

// to[j] = from[places[j]]: values of one order in another one.
void cigl_gather(const float* from, const int32_t* places, float* to, int64_t count) {
    for (int64_t j = 0; j < count; ++j) to[j] = from[places[j]];
}
#pragma GCC visibility pop
}
