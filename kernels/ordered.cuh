#pragma once
// Binary search in ascending 64-bit integers whose upper levels lie in shared memory.
//
// Every 2^shift-th value is a sample. A block loads all samples once; a search among them leaves fewer than 2^shift
// values to be looked at in global memory. Values need to ascend only where they are searched, between `from` and `end`:
// within one group, say. So samples between the two are all that is asked.

#include "base.cuh"

#ifndef MOST_SAMPLES
#define MOST_SAMPLES 2048
#endif
static_assert(MOST_SAMPLES * 8 <= 32768, "samples leave shared memory for several blocks");

namespace {

struct Ordered {
    const i64* values;
    const i64* samples;
    u32 shift;
};

// Copy the samples to shared memory. All threads of the block must call it; they may be searched afterwards.
__device__ inline Ordered staged(const i64* __restrict__ values, const i64* __restrict__ samples, u32 sample_count,
                                 u32 shift, i64* shared)
{
    for (u32 i = threadIdx.x; i < sample_count; i += BLOCK_THREADS)
        shared[i] = samples[i];
    __syncthreads();
    return Ordered{values, shared, shift};
}

__device__ inline bool precedes(i64 value, i64 bound, bool including)
{
    return value < bound || (including && value == bound);
}

// First of `values[from … end - 1]` that does not precede.
__device__ inline u64 partition_point(const i64* values, u64 from, u64 end, i64 bound, bool including)
{
    while (from < end) {
        const u64 middle = from + (end - from) / 2;
        if (precedes(values[middle], bound, including))
            from = middle + 1;
        else
            end = middle;
    }
    return from;
}

// First place of `from … end - 1` whose value is not less than the bound, or, `including`, greater; `end` if none is.
__device__ inline u64 search(const Ordered& in, u64 from, u64 end, i64 bound, bool including)
{
    const u64 rest = (1ull << in.shift) - 1;
    const u64 first = (from + rest) >> in.shift;
    const u64 last = (end + rest) >> in.shift;
    const u64 sample = partition_point(in.samples, first, last, bound, including);
    if (sample < last)
        end = sample << in.shift;
    if (sample > first)
        from = ((sample - 1) << in.shift) + 1;
    return partition_point(in.values, from, end, bound, including);
}

struct Stretch {
    u64 from;
    u64 end;
};

// The places that a probe row's matches are among: those of its group, or all where `first` is null; none where it may
// match nothing, or there is no such group.
__device__ inline Stretch places_for(u64 row, u64 places, const u8* __restrict__ valid, const i32* __restrict__ first,
                                     u64 groups, const i64* __restrict__ group_of)
{
    if (valid != nullptr && valid[row] == 0)
        return Stretch{0, 0};
    if (first == nullptr)
        return Stretch{0, places};
    const u64 group = (u64)group_of[row];
    if (group >= groups)
        return Stretch{0, 0};
    return Stretch{(u64)first[group], (u64)first[group + 1]};
}

}  // namespace
