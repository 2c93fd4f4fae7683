// Pairs of a many-to-many join, output rows shared out evenly whatever the number of matches of a key.
//
// `running[i]` is the number of pairs of probe rows 0 … i. Output row p belongs to the first probe row whose running
// number is above p. A block makes OUTPUT_TILE consecutive output rows: it looks up the first and the last of them once,
// stages the running numbers between them in shared memory where they fit, and each thread searches there.

#include "base.cuh"

#ifndef OUTPUT_TILE
#define OUTPUT_TILE 1024
#endif
#ifndef STAGED_ROWS
#define STAGED_ROWS 2048
#endif
static_assert(OUTPUT_TILE % BLOCK_THREADS == 0, "every thread makes the same number of output rows");
static_assert(STAGED_ROWS * 8 <= 32768, "staged numbers leave shared memory for several blocks");

namespace {

// First of `from … end - 1` whose number is above `value`; `end` if none is.
__device__ inline u64 first_above(const i64* numbers, u64 from, u64 end, i64 value)
{
    while (from < end) {
        const u64 middle = from + (end - from) / 2;
        if (numbers[middle] > value)
            end = middle;
        else
            from = middle + 1;
    }
    return from;
}

}  // namespace

// Pairs `begin … begin + length - 1`: the probe row and the build row of each, ascending by probe row and place.
// Where `placed` is null the build row is the place itself, for payload that lies in that order.
extern "C" __global__ void expand_pairs(const i64* __restrict__ running, u64 rows, const i32* __restrict__ start,
                                        const i32* __restrict__ placed, u64 begin, u64 length,
                                        i32* __restrict__ probe_row, i32* __restrict__ build_row)
{
    __shared__ i64 staged[STAGED_ROWS];
    __shared__ u64 bounds[2];
    const u64 tiles = (length + OUTPUT_TILE - 1) / OUTPUT_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 from = tile * OUTPUT_TILE;
        const u64 end = from + OUTPUT_TILE < length ? from + OUTPUT_TILE : length;
        if (threadIdx.x == 0)
            bounds[0] = first_above(running, 0, rows, (i64)(begin + from));
        if (threadIdx.x == WARP_LANES % BLOCK_THREADS)
            bounds[1] = first_above(running, 0, rows, (i64)(begin + end - 1));
        __syncthreads();
        const u64 low = bounds[0];
        const u64 high = bounds[1] + 1;
        const bool in_shared = high - low <= STAGED_ROWS;
        if (in_shared)
            for (u64 i = threadIdx.x; i < high - low; i += BLOCK_THREADS)
                staged[i] = running[low + i];
        __syncthreads();
        for (u64 out = from + threadIdx.x; out < end; out += BLOCK_THREADS) {
            const i64 pair = (i64)(begin + out);
            const u64 row = in_shared ? low + first_above(staged, 0, high - low, pair)
                                      : first_above(running, low, high, pair);
            const i64 before = row == 0 ? 0 : running[row - 1];
            const i64 place = (i64)start[row] + (pair - before);
            probe_row[out] = (i32)row;
            build_row[out] = placed == nullptr ? (i32)place : placed[place];
        }
        // What the next tile writes first is not read here, and its first barrier comes before it writes the rest.
    }
}
