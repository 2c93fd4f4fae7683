// A wavelet matrix: ranks within any stretch of a sequence of integers (Claude, Navarro, Ordóñez, Information Systems 47,
// 2015; `gpujoin/backends/ordered/wavelet.py` is the same over arrays).
//
// For every bit of the values, from the highest, the sequence is divided stably into zeros and ones. A level keeps one word
// for each 32 positions: in the upper half which of them are zeros, in the lower half how many zeros come before. So the
// zeros before any position are one read of 8 bytes, and a level takes 2 bits a position.

#include "expand.cuh"

#ifndef OUTPUT_TILE
#define OUTPUT_TILE 1024
#endif
static_assert(OUTPUT_TILE % BLOCK_THREADS == 0, "every thread makes the same number of output rows");
static_assert(BLOCK_THREADS % WARP_LANES == 0, "a warp makes a word");

namespace {

__device__ inline u64 zeros_before(const u64* __restrict__ level, u64 position)
{
    const u64 word = level[position / 32];
    return (word & 0xffffffffull) + (u64)__popc((u32)(word >> 32) & ((1u << (position % 32)) - 1u));
}

struct Matrix {
    const u64* words;
    const i64* zeros;
    u64 level_words;
    u32 depth;
};

// How many of the values at `begin … end - 1` are less than `bound`, which has no more bits than the values.
__device__ inline u64 count_below(const Matrix& in, u64 begin, u64 end, u32 bound)
{
    u64 count = 0;
    for (u32 step = 0; step < in.depth; ++step) {
        const u64* level = in.words + step * in.level_words;
        const u64 low = zeros_before(level, begin);
        const u64 high = zeros_before(level, end);
        if ((bound >> (in.depth - 1 - step)) & 1u) {
            count += high - low;
            begin = (u64)in.zeros[step] + begin - low;
            end = (u64)in.zeros[step] + end - high;
        } else {
            begin = low;
            end = high;
        }
    }
    return count;
}

// Position, in the order of the last level, of the `number`-th value, from 0, of those at `begin … end - 1`, by value,
// then position.
__device__ inline u64 select(const Matrix& in, u64 begin, u64 end, u64 number)
{
    for (u32 step = 0; step < in.depth; ++step) {
        const u64* level = in.words + step * in.level_words;
        const u64 low = zeros_before(level, begin);
        const u64 high = zeros_before(level, end);
        if (number >= high - low) {
            number -= high - low;
            begin = (u64)in.zeros[step] + begin - low;
            end = (u64)in.zeros[step] + end - high;
        } else {
            begin = low;
            end = high;
        }
    }
    return begin + number;
}

}  // namespace

// Which of each 32 values have a zero bit, and how many. `words` is over a 32nd of `length`, so that there is a position
// after the last value.
extern "C" __global__ void wavelet_zeros(const i32* __restrict__ values, u64 length, u64 words, u32 bit,
                                         u32* __restrict__ zeros, i64* __restrict__ number)
{
    for (u64 base = block_start(); base < words * WARP_LANES; base += thread_count()) {
        const u64 position = base + threadIdx.x;
        const bool zero = position < length && (((u32)values[position] >> bit) & 1u) == 0;
        const u32 votes = __ballot_sync(FULL_WARP, zero);
        if (lane() == 0 && position / WARP_LANES < words) {
            zeros[position / WARP_LANES] = votes;
            number[position / WARP_LANES] = (i64)__popc(votes);
        }
    }
}

// Divide the values, and the rows that go with them, into zeros and ones, each in their order, and write the level.
// `running` has the numbers of zeros up to and with each word.
extern "C" __global__ void wavelet_split(const i32* __restrict__ values, const i32* __restrict__ placed, u64 length,
                                         u64 words, const u32* __restrict__ zeros, const i64* __restrict__ running,
                                         u64* __restrict__ level, i32* __restrict__ new_values,
                                         i32* __restrict__ new_placed)
{
    const u64 all = (u64)running[words - 1];
    for (u64 base = block_start(); base < words * WARP_LANES; base += thread_count()) {
        const u64 position = base + threadIdx.x;
        const u64 word = position / WARP_LANES;
        if (word >= words)
            continue;
        const u32 votes = zeros[word];
        const u64 before = (u64)running[word] - (u64)__popc(votes);
        if (lane() == 0)
            level[word] = ((u64)votes << 32) | before;
        if (position >= length)
            continue;
        const u64 mine = before + (u64)__popc(votes & lanes_below());
        const u64 to = (votes >> lane()) & 1u ? mine : all + position - mine;
        new_values[to] = values[position];
        new_placed[to] = placed[position];
    }
}

// Of each row's places how many have a rank below the `width[row]` from `low[row]` on, and how many have one of those.
extern "C" __global__ void wavelet_count(const u64* __restrict__ words, const i64* __restrict__ zeros, u64 level_words,
                                         u32 depth, const i32* __restrict__ start, const i32* __restrict__ length,
                                         const i32* __restrict__ low, const i32* __restrict__ width, u64 rows,
                                         i32* __restrict__ below, i32* __restrict__ count, u64* __restrict__ matches)
{
    const Matrix in{words, zeros, level_words, depth};
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        const u64 begin = (u64)start[row];
        const u64 end = begin + (u64)length[row];
        const u64 skipped = count_below(in, begin, end, (u32)low[row]);
        const u64 found = count_below(in, begin, end, (u32)low[row] + (u32)width[row]) - skipped;
        below[row] = (i32)skipped;
        count[row] = (i32)found;
        mine += found;
    }
    add_warp(matches, mine);
}

// Pairs `begin … begin + length - 1` of what was counted: ascending by probe row, rank and place. `placed` is in the order
// of the last level.
extern "C" __global__ void wavelet_pairs(const u64* __restrict__ words, const i64* __restrict__ zeros, u64 level_words,
                                         u32 depth, const i32* __restrict__ placed, const i64* __restrict__ running,
                                         u64 rows, const i32* __restrict__ start, const i32* __restrict__ places,
                                         const i32* __restrict__ below, u64 begin, u64 length,
                                         i32* __restrict__ probe_row, i32* __restrict__ build_row)
{
    __shared__ Staging shared;
    const Matrix in{words, zeros, level_words, depth};
    const u64 tiles = (length + OUTPUT_TILE - 1) / OUTPUT_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 from = tile * OUTPUT_TILE;
        const u64 end = from + OUTPUT_TILE < length ? from + OUTPUT_TILE : length;
        const Owners owners = stage_owners(running, rows, begin + from, begin + end - 1, shared);
        for (u64 out = from + threadIdx.x; out < end; out += BLOCK_THREADS) {
            const Owner owner = owner_of(owners, begin + out);
            const u64 first = (u64)start[owner.row];
            const u64 at = select(in, first, first + (u64)places[owner.row], (u64)below[owner.row] + owner.number);
            probe_row[out] = (i32)owner.row;
            build_row[out] = placed[at];
        }
    }
}
