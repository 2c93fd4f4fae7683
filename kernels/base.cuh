#pragma once
// Integer aliases, grid-stride iteration, and counting across a warp and a block.
//
// Every index and total is 64 bits wide. Row numbers are stored in 32 bits: a launcher refuses more than 2^31 - 1 rows.

using u8 = unsigned char;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

constexpr i32 NO_ROW = -1;
constexpr u32 WARP_LANES = 32;
constexpr u32 FULL_WARP = 0xffffffffu;

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 256
#endif
static_assert(BLOCK_THREADS % 32 == 0 && BLOCK_THREADS >= 32 && BLOCK_THREADS <= 1024, "a block is whole warps");
constexpr u32 BLOCK_WARPS = BLOCK_THREADS / WARP_LANES;

// Grid-stride loops come in two forms. Where threads never meet, a thread starts at `thread_index()` and steps by
// `thread_count()`. Where they do, all threads of a block go through the same `base` values and test `base + threadIdx.x`.
__device__ inline u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u64 thread_count() { return (u64)gridDim.x * blockDim.x; }
__device__ inline u64 block_start() { return (u64)blockIdx.x * blockDim.x; }

__device__ inline u32 lane() { return threadIdx.x % WARP_LANES; }
__device__ inline u32 warp() { return threadIdx.x / WARP_LANES; }
__device__ inline u32 lanes_below() { return (1u << lane()) - 1u; }

// Add one number of every thread of the warp to a total in global memory. All lanes must call it.
__device__ inline void add_warp(u64* total, u64 mine)
{
    for (u32 distance = WARP_LANES / 2; distance > 0; distance /= 2)
        mine += __shfl_down_sync(FULL_WARP, mine, distance);
    if (lane() == 0 && mine != 0)
        atomicAdd(total, mine);
}

// Exclusive prefix count of a flag over the block, and the block's count. All threads must call it; `warp_counts` is
// shared memory that may be used again after the next barrier.
__device__ inline u32 block_rank(bool flag, u32* warp_counts, u32* count)
{
    const u32 votes = __ballot_sync(FULL_WARP, flag);
    if (lane() == 0)
        warp_counts[warp()] = __popc(votes);
    __syncthreads();
    u32 before = 0;
    u32 sum = 0;
    for (u32 other = 0; other < BLOCK_WARPS; ++other) {
        if (other < warp())
            before += warp_counts[other];
        sum += warp_counts[other];
    }
    *count = sum;
    return before + __popc(votes & lanes_below());
}
