// What a device can do at best, for the accesses that joins are made of: the floor that benchmarks compare with.
//
// Places are hashes of counters, so that nothing but the access itself touches memory.

#include "key.cuh"
#include "value.cuh"

namespace {

__device__ inline u64 place(u64 number, u64 places) { return ((mix(number) >> 32) * places) >> 32; }

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
    constexpr u64 FREE = ~0ull;
    for (u64 i = thread_index(); i < takes; i += thread_count()) {
        u64* slot = &slots[place(i, places)];
        if (*(volatile u64*)slot == FREE)
            atomicCAS(slot, FREE, i);
    }
}
