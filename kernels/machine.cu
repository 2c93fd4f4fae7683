// What a device can do at best, for the accesses that joins are made of: the floor that benchmarks compare with.
//
// Places are hashes of counters, so that nothing but the access itself touches memory.

#include "key.cuh"
#include "value.cuh"

namespace {

constexpr u64 FREE_SLOT = ~0ull;

#ifndef RADIX_TILE
#define RADIX_TILE 4096
#endif
constexpr u32 DIGITS = 256;
constexpr u32 THREAD_ROWS = RADIX_TILE / BLOCK_THREADS;
static_assert(DIGITS == BLOCK_THREADS, "a thread for each digit");
static_assert(RADIX_TILE % BLOCK_THREADS == 0, "every thread has the same number of rows");

__device__ inline u64 place(u64 number, u64 places) { return ((mix(number) >> 32) * places) >> 32; }

// Enter a number into the window of its partition, at the first free slot from its place on.
__device__ inline void enter(u64* slots, u64 window, u64 partition_entries, u64 number)
{
    u64* own = slots + number / partition_entries * window;
    u64 at = place(number, window);
    while (atomicCAS(&own[at], FREE_SLOT, number) != FREE_SLOT)
        at = at + 1 == window ? 0 : at + 1;
}

__device__ inline u32 digit_of(u64 key) { return (u32)(mix(key) >> 56); }

}  // namespace

// Copy 16-byte words.
extern "C" __global__ void copy_words(const Wide* __restrict__ from, Wide* __restrict__ to, u64 words)
{
    for (u64 i = thread_index(); i < words; i += thread_count())
        to[i] = from[i];
}

// Read 8-byte words at random places; their sum keeps the reads from being left out.
extern "C" __global__ void gather_words(const u64* __restrict__ from, u64 words, u64 reads, u64* __restrict__ sum)
{
    u64 mine = 0;
    for (u64 i = thread_index(); i < reads; i += thread_count())
        mine += from[place(i, words)];
    add_warp(sum, mine);
}

// Read runs of 8-byte words at random places, as many lanes a run as it has words.
extern "C" __global__ void gather_runs(const u64* __restrict__ from, u64 runs, u32 words, u64 reads, u64* __restrict__ sum)
{
    u64 mine = 0;
    for (u64 i = thread_index(); i < reads * words; i += thread_count())
        mine += from[place(i / words, runs) * words + i % words];
    add_warp(sum, mine);
}

// Add to 4-byte counters at random places.
extern "C" __global__ void add_counters(u32* counters, u64 places, u64 additions)
{
    for (u64 i = thread_index(); i < additions; i += thread_count())
        atomicAdd(&counters[place(i, places)], 1u);
}

// Read 8-byte slots at random places, and exchange those that are free, as a hash table is built.
extern "C" __global__ void take_slots(u64* slots, u64 places, u64 takes)
{
    for (u64 i = thread_index(); i < takes; i += thread_count()) {
        u64* slot = &slots[place(i, places)];
        if (*(volatile u64*)slot == FREE_SLOT)
            atomicCAS(slot, FREE_SLOT, i);
    }
}

// Compare 8-byte slots at random places with what was just read there, and exchange them.
extern "C" __global__ void swap_slots(u64* slots, u64 places, u64 swaps)
{
    for (u64 i = thread_index(); i < swaps; i += thread_count()) {
        u64* slot = &slots[place(i, places)];
        atomicCAS(slot, *(volatile u64*)slot, i);
    }
}

// Enter numbers partition by partition, each thread at its stride: fast blocks are soon some partitions ahead of slow ones.
extern "C" __global__ void enter_by_stride(u64* slots, u64 window, u64 partition_entries, u64 entries)
{
    for (u64 i = thread_index(); i < entries; i += thread_count())
        enter(slots, window, partition_entries, i);
}

// Enter numbers partition by partition, each block drawing tile after tile: all blocks are within as many tiles as there are
// blocks.
extern "C" __global__ void enter_by_ticket(u64* slots, u64 window, u64 partition_entries, u64 entries, u64* next_tile)
{
    __shared__ u64 tile;
    for (;;) {
        if (threadIdx.x == 0)
            tile = atomicAdd(next_tile, 1ull);
        __syncthreads();
        const u64 number = tile * BLOCK_THREADS + threadIdx.x;
        const bool finished = tile * BLOCK_THREADS >= entries;
        __syncthreads();
        if (finished)
            return;
        if (number < entries)
            enter(slots, window, partition_entries, number);
    }
}

// Count the digits of each tile of rows: `counts[digit * tiles + tile]`.
extern "C" __global__ void count_digits(const u64* __restrict__ keys, u64 rows, u32* __restrict__ counts)
{
    __shared__ u32 tile_counts[DIGITS];
    const u64 tiles = (rows + RADIX_TILE - 1) / RADIX_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        tile_counts[threadIdx.x] = 0;
        __syncthreads();
        for (u32 item = 0; item < THREAD_ROWS; ++item) {
            const u64 row = tile * RADIX_TILE + item * BLOCK_THREADS + threadIdx.x;
            if (row < rows)
                atomicAdd(&tile_counts[digit_of(keys[row])], 1u);
        }
        __syncthreads();
        counts[threadIdx.x * tiles + tile] = tile_counts[threadIdx.x];
        __syncthreads();
    }
}

// Move rows to where their digit begins. `ends[digit * tiles + tile]` are the running counts up to and with each one. A tile is
// put into order in shared memory first, keys and then payload, so that rows of a digit are written side by side.
extern "C" __global__ void move_by_digit(const u64* __restrict__ keys, const u64* __restrict__ payload, u64 rows,
                                         const u64* __restrict__ ends, u64* __restrict__ new_keys,
                                         u64* __restrict__ new_payload)
{
    __shared__ u64 words[RADIX_TILE];
    __shared__ u32 taken[DIGITS];
    __shared__ u32 starts[DIGITS];
    __shared__ u64 targets[DIGITS];
    const u64 tiles = (rows + RADIX_TILE - 1) / RADIX_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 first = tile * RADIX_TILE;
        const u32 length = (u32)(rows - first < RADIX_TILE ? rows - first : RADIX_TILE);
        const u64 place_of_digit = threadIdx.x * tiles + tile;
        targets[threadIdx.x] = place_of_digit == 0 ? 0 : ends[place_of_digit - 1];
        taken[threadIdx.x] = (u32)(ends[place_of_digit] - targets[threadIdx.x]);
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 sum = 0;
            for (u32 digit = 0; digit < DIGITS; ++digit) {
                starts[digit] = sum;
                sum += taken[digit];
                taken[digit] = 0;
            }
        }
        __syncthreads();
        u32 at[THREAD_ROWS];
        for (u32 item = 0; item < THREAD_ROWS; ++item) {
            const u32 local = item * BLOCK_THREADS + threadIdx.x;
            if (local < length) {
                const u64 key = keys[first + local];
                const u32 digit = digit_of(key);
                at[item] = starts[digit] + atomicAdd(&taken[digit], 1u);
                words[at[item]] = key;
            }
        }
        __syncthreads();
        u64 target[THREAD_ROWS];
        for (u32 item = 0; item < THREAD_ROWS; ++item) {
            const u32 local = item * BLOCK_THREADS + threadIdx.x;
            if (local < length) {
                const u64 key = words[local];
                const u32 digit = digit_of(key);
                target[item] = targets[digit] + (local - starts[digit]);
                new_keys[target[item]] = key;
            }
        }
        __syncthreads();
        for (u32 item = 0; item < THREAD_ROWS; ++item) {
            const u32 local = item * BLOCK_THREADS + threadIdx.x;
            if (local < length)
                words[at[item]] = payload[first + local];
        }
        __syncthreads();
        for (u32 item = 0; item < THREAD_ROWS; ++item) {
            const u32 local = item * BLOCK_THREADS + threadIdx.x;
            if (local < length)
                new_payload[target[item]] = words[local];
        }
        __syncthreads();
    }
}
