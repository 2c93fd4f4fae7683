// Ranges in sorted build rows: where the matches of a probe row begin, and how many there are.
//
// Points are 64-bit integers that order as the values do, sorted within groups of equal keys. A probe row brings a lowest
// and a highest point, both included; what lies between is one stretch of its group, found by two searches, the second
// from where the first one ended. Where build rows ascend by a second point too, the stretch is narrowed by that.

#include "ordered.cuh"

// First place and number of the matches of each row. `first` has the place where each of `groups` groups begins, and where
// the last one ends; rows of no such group match nothing. Null: all rows are one group, and `group_of` is not read.
extern "C" __global__ void find_stretches(const i64* __restrict__ points, u64 places, const i64* __restrict__ samples,
                                          u32 sample_count, u32 shift, const i32* __restrict__ first, u64 groups,
                                          const i64* __restrict__ low, const i64* __restrict__ high,
                                          const u8* __restrict__ valid, const i64* __restrict__ group_of, u64 rows,
                                          i32* __restrict__ start, i32* __restrict__ count, u64* __restrict__ matches)
{
    __shared__ i64 shared[MOST_SAMPLES];
    const Ordered in = staged(points, samples, sample_count, shift, shared);
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        const Stretch among = places_for(row, places, valid, first, groups, group_of);
        const u64 from = search(in, among.from, among.end, low[row], false);
        const u64 length = search(in, from, among.end, high[row], true) - from;
        start[row] = (i32)from;
        count[row] = (i32)length;
        mine += length;
    }
    add_warp(matches, mine);
}

// The part of each row's places whose second point lies in its second range; second points ascend in these places.
extern "C" __global__ void narrow_stretches(const i64* __restrict__ points, const i64* __restrict__ samples,
                                            u32 sample_count, u32 shift, const i64* __restrict__ low,
                                            const i64* __restrict__ high, u64 rows, i32* __restrict__ start,
                                            i32* __restrict__ count, u64* __restrict__ matches)
{
    __shared__ i64 shared[MOST_SAMPLES];
    const Ordered in = staged(points, samples, sample_count, shift, shared);
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        const u64 end = (u64)start[row] + (u64)count[row];
        const u64 from = search(in, (u64)start[row], end, low[row], false);
        const u64 length = search(in, from, end, high[row], true) - from;
        start[row] = (i32)from;
        count[row] = (i32)length;
        mine += length;
    }
    add_warp(matches, mine);
}
