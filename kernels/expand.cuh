#pragma once
// Which row does an item belong to, where rows have any number of items each: work is shared out by item.
//
// `running[i]` is the number of items of rows 0 … i. Item p belongs to the first row whose running number is above p: of
// three rows with 2, 0 and 1 items, with `running` 2, 2, 3, items 0 and 1 are of row 0, and item 2 is of row 2. A
// block takes some consecutive items: it looks up the rows of the first and the last of them once, stages the running
// numbers between them in shared memory where they fit, and each thread searches there.

#include "base.cuh"

#ifndef STAGED_ROWS
#define STAGED_ROWS 2048
#endif
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

// The same by a warp, all lanes of which must call it: each lane looks at the last number of a 32nd part, so 2^24 numbers
// take 5 steps, in place of 24 reads that wait for each other.
__device__ inline u64 first_above_by_warp(const i64* numbers, u64 from, u64 end, i64 value)
{
    while (from < end) {
        const u64 stride = (end - from + WARP_LANES - 1) / WARP_LANES;
        const u64 part = from + lane() * stride;
        const u64 last = (part + stride < end ? part + stride : end) - 1;
        const u32 above = __ballot_sync(FULL_WARP, part >= end || numbers[last] > value);
        from += above == 0 ? end - from : (u64)(__ffs(above) - 1) * stride;
        if (from >= end)
            return end;
        end = (from + stride < end ? from + stride : end) - 1;
    }
    return end;
}

struct Staging {
    i64 numbers[STAGED_ROWS];
    u64 bounds[2];
};

struct Owners {
    const i64* running;
    const i64* staged;
    u64 low;
    u64 high;
};

struct Owner {
    u64 row;
    u64 number;
};

// The rows of the items `first … last`. All threads of the block must call it, for one tile after the other: what the next
// call writes first is not read by `owner_of`, and its first barrier comes before it writes the rest.
__device__ inline Owners stage_owners(const i64* running, u64 rows, u64 first, u64 last, Staging& shared)
{
    for (u32 bound = warp(); bound < 2; bound += BLOCK_WARPS) {
        const u64 row = first_above_by_warp(running, 0, rows, (i64)(bound == 0 ? first : last));
        if (lane() == 0)
            shared.bounds[bound] = row;
    }
    __syncthreads();
    const u64 low = shared.bounds[0];
    const u64 high = shared.bounds[1];
    const bool fit = high - low <= STAGED_ROWS;
    if (fit)
        for (u64 i = threadIdx.x; i < high - low; i += BLOCK_THREADS)
            shared.numbers[i] = running[low + i];
    __syncthreads();
    return Owners{running, fit ? shared.numbers : nullptr, low, high};
}

// The row of one of those items, and the item's number among the row's, from 0. The last row is what is left where the
// running number of no other is above the item.
__device__ inline Owner owner_of(const Owners& owners, u64 item)
{
    const u64 row = owners.staged != nullptr
                        ? owners.low + first_above(owners.staged, 0, owners.high - owners.low, (i64)item)
                        : first_above(owners.running, owners.low, owners.high, (i64)item);
    const i64 before = row == 0 ? 0 : owners.running[row - 1];
    return Owner{row, item - (u64)before};
}

}  // namespace
