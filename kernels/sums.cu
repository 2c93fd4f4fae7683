// Running sums of counts, in two passes over tiles: the sum of each tile, which the launcher sums up, and then the sums within it.
//
// Of the counts 2, 0, 1 the sums before are 0, 2, 2, and the total 3 comes last. The total has 31 bits.

#include "base.cuh"

#ifndef SUM_TILE
#define SUM_TILE 4096
#endif
constexpr u32 QUAD_COUNTS = 4;
static_assert(SUM_TILE % (BLOCK_THREADS * QUAD_COUNTS) == 0, "every thread sums up the same number of quads");
constexpr u32 THREAD_QUADS = SUM_TILE / BLOCK_THREADS / QUAD_COUNTS;

namespace {

struct alignas(16) Quad {
    i32 counts[QUAD_COUNTS];
};

// The counts from `at` on, a multiple of four, in one request; zero behind the last one.
__device__ inline Quad read_quad(const i32* __restrict__ counts, u64 at, u64 length)
{
    if (at + QUAD_COUNTS <= length)
        return *(const Quad*)&counts[at];
    Quad quad = {};
    for (u32 i = 0; i < QUAD_COUNTS; ++i)
        if (at + i < length)
            quad.counts[i] = counts[at + i];
    return quad;
}

__device__ inline i32 sum_of(const Quad& quad)
{
    return quad.counts[0] + quad.counts[1] + quad.counts[2] + quad.counts[3];
}

// Sum over all lanes up to and with each one. All lanes of the warp must call it.
__device__ inline i32 sum_up_to(i32 value)
{
    for (u32 distance = 1; distance < WARP_LANES; distance *= 2) {
        const i32 before = __shfl_up_sync(FULL_WARP, value, distance);
        if (lane() >= distance)
            value += before;
    }
    return value;
}

// Sum over all threads of the block before each one, and over all of them. All threads must call it; `warp_sums` is shared
// memory that may be used again after the next barrier.
__device__ inline i32 sum_before(i32 value, i32* warp_sums, i32* sum)
{
    const i32 up_to = sum_up_to(value);
    if (lane() == WARP_LANES - 1)
        warp_sums[warp()] = up_to;
    __syncthreads();
    i32 before = up_to - value;
    *sum = 0;
    for (u32 other = 0; other < BLOCK_WARPS; ++other) {
        if (other < warp())
            before += warp_sums[other];
        *sum += warp_sums[other];
    }
    return before;
}

}  // namespace

// Sum of the counts of each tile. `counts` begins at a multiple of 16 bytes.
extern "C" __global__ void sum_tiles(const i32* __restrict__ counts, u64 length, i32* __restrict__ sums)
{
    __shared__ i32 warp_sums[BLOCK_WARPS];
    const u64 tiles = (length + SUM_TILE - 1) / SUM_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        i32 mine = 0;
        for (u32 item = threadIdx.x; item < SUM_TILE / QUAD_COUNTS; item += BLOCK_THREADS)
            mine += sum_of(read_quad(counts, tile * SUM_TILE + item * QUAD_COUNTS, length));
        i32 sum;
        sum_before(mine, warp_sums, &sum);
        if (threadIdx.x == 0)
            sums[tile] = sum;
        __syncthreads();
    }
}

// Sum of the counts before each one, and at last of all. `ends[t]` is the sum of the tiles up to and with tile t. `counts` and
// `sums` begin at multiples of 16 bytes. A thread has some quads side by side.
extern "C" __global__ void sum_counts(const i32* __restrict__ counts, u64 length, const i32* __restrict__ ends,
                                      i32* __restrict__ sums)
{
    __shared__ i32 warp_sums[BLOCK_WARPS];
    const u64 tiles = (length + SUM_TILE - 1) / SUM_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 start = tile * SUM_TILE + threadIdx.x * (THREAD_QUADS * QUAD_COUNTS);
        Quad quads[THREAD_QUADS];
        i32 mine = 0;
        for (u32 quad = 0; quad < THREAD_QUADS; ++quad) {
            quads[quad] = read_quad(counts, start + quad * QUAD_COUNTS, length);
            mine += sum_of(quads[quad]);
        }
        i32 sum;
        i32 before = (tile == 0 ? 0 : ends[tile - 1]) + sum_before(mine, warp_sums, &sum);
        for (u32 quad = 0; quad < THREAD_QUADS; ++quad) {
            Quad made;
            for (u32 i = 0; i < QUAD_COUNTS; ++i) {
                made.counts[i] = before;
                before += quads[quad].counts[i];
            }
            const u64 at = start + quad * QUAD_COUNTS;
            if (at + QUAD_COUNTS <= length)
                *(Quad*)&sums[at] = made;
            else
                for (u32 i = 0; i < QUAD_COUNTS; ++i)
                    if (at + i < length)
                        sums[at + i] = made.counts[i];
        }
        if (tile == tiles - 1 && threadIdx.x == BLOCK_THREADS - 1)
            sums[length] = before;
        __syncthreads();
    }
}
