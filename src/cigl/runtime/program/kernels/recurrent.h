// LSTM and GRU: one step after the other, the recurrent weights as their non-zeros. What the inputs contribute to the
// gates is computed before, for all steps at once.
#pragma once
#include "plain.h"

#include <vector>

namespace {  // a class of its own in each instruction set's file

// V vectors of images side by side, or a single image (V = 0): every array is [feature][image] of so many images.
template <int V>
struct Cells {
    static constexpr int64_t WIDTH = V ? V * LANES : 1;
    const Recurrent& r;
    const int64_t first, images, size;  // of this block: its first image, those that there are; numbers in a state
    std::vector<float> gates, sums, state, cell;

    Cells(const Recurrent& r, int64_t first)
        : r(r), first(first), images(r.images - first < WIDTH ? r.images - first : WIDTH), size(r.hidden * WIDTH),
          gates(r.gates * size + LANES), sums(r.gates * size + LANES), state(size + LANES), cell(size + LANES) {}

    // Between the caller's [image][feature] and ours.
    void read(const float* from, int64_t image, int64_t count, float* to) const {
        if constexpr (!V) {
            std::memcpy(to, from, count * sizeof(float));
        } else {
            for (int64_t v = 0; v < V; ++v)
                interleave(from + v * LANES * image, image, present(v), count, to + v * LANES, WIDTH, LANES);
        }
    }
    void write(const float* from, int64_t image, int64_t count, float* to) const {
        if constexpr (!V) {
            std::memcpy(to, from, count * sizeof(float));
        } else {
            for (int64_t v = 0; v < V; ++v)
                if (present(v)) separate(from + v * LANES, WIDTH, present(v), count, to + v * LANES * image, image);
        }
    }
    int64_t present(int64_t v) const {
        const int64_t left = images - v * LANES;
        return left < 0 ? 0 : left < LANES ? left : LANES;
    }

    // sums = bias + weights * state, with several sums at once, because each addition waits for the one before.
    void multiply() {
        for (int64_t row = 0; row < r.gates * r.hidden; ++row) {
            const float bias = r.bias ? r.bias[row] : 0.0f;
            const int64_t end = r.rows[row + 1];
            int64_t j = r.rows[row];
            if constexpr (!V) {
                float s[4] = {bias, 0.0f, 0.0f, 0.0f};
                for (; j + 4 <= end; j += 4)
                    for (int i = 0; i < 4; ++i) s[i] += r.values[j + i] * state[r.columns[j + i]];
                for (; j < end; ++j) s[0] += r.values[j] * state[r.columns[j]];
                sums[row] = (s[0] + s[1]) + (s[2] + s[3]);
            } else {
                constexpr int AT_ONCE = 4 / V;
                Vec s[4] = {};
                for (int v = 0; v < V; ++v) s[v] = splat(bias);
                const auto add = [&](int64_t j, int to) {
                    const Vec value = splat(r.values[j]);
                    const float* from = state.data() + r.columns[j] * WIDTH;
#pragma GCC unroll 4
                    for (int v = 0; v < V; ++v) s[to * V + v] += value * load(from + v * LANES);
                };
                for (; j + AT_ONCE <= end; j += AT_ONCE)
#pragma GCC unroll 4
                    for (int i = 0; i < AT_ONCE; ++i) add(j + i, i);
                for (; j < end; ++j) add(j, 0);
                for (int i = 1; i < AT_ONCE; ++i)
                    for (int v = 0; v < V; ++v) s[v] += s[i * V + v];
                for (int v = 0; v < V; ++v) store(sums.data() + row * WIDTH + v * LANES, s[v]);
            }
        }
    }

    Vec gate(int64_t number, int64_t i) const {
        return load(gates.data() + number * size + i) + load(sums.data() + number * size + i);
    }

    // Gates in torch's order: input, forget, cell, output. The last vector may reach into what nobody reads.
    void lstm() {
        for (int64_t i = 0; i < size; i += LANES) {
            const Vec kept = sigmoid(gate(1, i)) * load(cell.data() + i);
            const Vec now = kept + sigmoid(gate(0, i)) * activated<TANH>(gate(2, i));
            store(cell.data() + i, now);
            store(state.data() + i, sigmoid(gate(3, i)) * activated<TANH>(now));
        }
    }

    // Reset, update, new.
    void gru() {
        for (int64_t i = 0; i < size; i += LANES) {
            const Vec update = sigmoid(gate(1, i));
            const Vec proposed = sigmoid(gate(0, i)) * load(sums.data() + 2 * size + i);
            const Vec fresh = activated<TANH>(load(gates.data() + 2 * size + i) + proposed);
            store(state.data() + i, fresh + update * (load(state.data() + i) - fresh));
        }
    }

    void run() {
        const bool is_lstm = r.gates == 4;
        read(r.state + first * r.hidden, r.hidden, r.hidden, state.data());
        if (is_lstm) read(r.cell + first * r.hidden, r.hidden, r.hidden, cell.data());
        for (int64_t i = 0; i < r.steps; ++i) {
            const int64_t step = r.backwards ? r.steps - 1 - i : i;
            read(r.in + step * r.in_step + first * r.in_image, r.in_image, r.gates * r.hidden, gates.data());
            multiply();
            is_lstm ? lstm() : gru();
            write(state.data(), r.out_image, r.hidden, r.out + step * r.out_step + first * r.out_image);
        }
        write(state.data(), r.hidden, r.hidden, r.state + first * r.hidden);
        if (is_lstm) write(cell.data(), r.hidden, r.hidden, r.cell + first * r.hidden);
    }
};

}  // namespace

template <int V>
static void recur_blocks(const Recurrent& r, int64_t worker, int64_t workers) {
    constexpr int64_t width = Cells<V>::WIDTH;
    for (int64_t first = worker * width; first < r.images; first += workers * width) Cells<V>(r, first).run();
}

// Images are shared among workers, who need not wait for each other.
static void recur(const Recurrent& r, int64_t worker, int64_t workers) {
    const int64_t each = (r.images + workers - 1) / workers;
    if (r.images == 1) return recur_blocks<0>(r, worker, workers);
    if (each <= LANES) return recur_blocks<1>(r, worker, workers);
    if (each <= 2 * LANES) return recur_blocks<2>(r, worker, workers);
    recur_blocks<4>(r, worker, workers);
}
