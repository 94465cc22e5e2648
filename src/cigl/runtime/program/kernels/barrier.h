// A barrier for the threads of one program. OpenMP's own lets threads sleep at once if its wait policy is passive, and
// waking one takes longer than most steps; here a waiting thread spins for some microseconds, then gives way to others.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

class Barrier {
   public:
    void wait(int64_t threads) {
        if (threads == 1) return;
        const int64_t before = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived.store(0, std::memory_order_relaxed);
            round.store(before + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; round.load(std::memory_order_acquire) == before; ++spins)
            if (spins < SPINS)
                pause();
            else
                std::this_thread::yield();  // the one waited for may need this very core
    }

   private:
    static constexpr int SPINS = 2000;  // about 30 us

    static void pause() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }

    alignas(64) std::atomic<int64_t> arrived{0};
    alignas(64) std::atomic<int64_t> round{0};
};
