// Facts of a key column: smallest and largest key, number of keys, and a sample of rows.
//
// One pass over the column; the sample is one key in many, so it costs a few sectors each. Duplicates are found exactly
// by whichever kernel enters the keys (`direct_insert`, `unique_insert`); the sample only predicts them.

#include "key.cuh"

#if KEY_BYTES == 16
using Order = u64;
#elif KEY_BYTES == 8
using Order = i64;
#else
using Order = i32;
#endif

// Smallest and largest of the keys that may match, as signed 64-bit numbers, and how many there are. `range` is
// {largest, smallest} number before. Keys of 16 bytes have no range: only their number is told.
extern "C" __global__ void key_range(const Order* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                     i64* __restrict__ range, u64* __restrict__ number)
{
    i64 low = 0x7fffffffffffffffll;
    i64 high = -0x7fffffffffffffffll - 1;
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        if (!may_match(valid, row))
            continue;
        ++mine;
#if KEY_BYTES != 16
        const i64 key = keys[row];
        low = key < low ? key : low;
        high = key > high ? key : high;
#endif
    }
    add_warp(number, mine);
    for (u32 distance = WARP_LANES / 2; distance > 0; distance /= 2) {
        const i64 other_low = __shfl_down_sync(FULL_WARP, low, distance);
        const i64 other_high = __shfl_down_sync(FULL_WARP, high, distance);
        low = other_low < low ? other_low : low;
        high = other_high > high ? other_high : high;
    }
    if (lane() == 0 && low <= high) {
        atomicMin(&range[0], low);
        atomicMax(&range[1], high);
    }
}

// A number below `2^bits` for each other one, in an order without pattern: a bijection, another one for each seed.
__device__ inline u64 shuffled(u64 number, u32 bits, u64 seed)
{
    const u64 mask = (1ull << bits) - 1;
    const u32 half = bits > 1 ? bits / 2 : 1;
    for (u32 round = 0; round < 3; ++round) {
        number = (number * 0x9e3779b97f4a7c15ull + mix(seed + round)) & mask;
        number ^= number >> half;
    }
    return number;
}

// Different rows, drawn at random; all rows in their order where as many samples are asked for. No row is drawn twice, so
// equal keys in the sample are of different rows. Rows one after the other would not do: duplicates are often neighbours.
// `bits` are those of the largest row number; a number beyond the rows is shuffled on, until it is one of a row.
extern "C" __global__ void sample_keys(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows, u64 samples,
                                       u32 bits, u64 seed, Key* __restrict__ sampled, u8* __restrict__ sampled_valid)
{
    for (u64 i = thread_index(); i < samples; i += thread_count()) {
        u64 row = i;
        if (samples != rows) {
            do
                row = shuffled(row, bits, seed);
            while (row >= rows);
        }
        sampled[i] = keys[row];
        sampled_valid[i] = may_match(valid, row);
    }
}
