// Pairs of a many-to-many join, output rows shared out evenly whatever the number of matches of a key (`expand.cuh`).

#include "expand.cuh"

#ifndef OUTPUT_TILE
#define OUTPUT_TILE 1024
#endif
static_assert(OUTPUT_TILE % BLOCK_THREADS == 0, "every thread makes the same number of output rows");

// Pairs `begin … begin + length - 1`: the probe row and the build row of each, ascending by probe row and place.
// Where `placed` is null the build row is the place itself, for payload that lies in that order.
extern "C" __global__ void expand_pairs(const i64* __restrict__ running, u64 rows, const i32* __restrict__ start,
                                        const i32* __restrict__ placed, u64 begin, u64 length,
                                        i32* __restrict__ probe_row, i32* __restrict__ build_row)
{
    __shared__ Staging shared;
    const u64 tiles = (length + OUTPUT_TILE - 1) / OUTPUT_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 from = tile * OUTPUT_TILE;
        const u64 end = from + OUTPUT_TILE < length ? from + OUTPUT_TILE : length;
        const Owners owners = stage_owners(running, rows, begin + from, begin + end - 1, shared);
        for (u64 out = from + threadIdx.x; out < end; out += BLOCK_THREADS) {
            const Owner owner = owner_of(owners, begin + out);
            const i64 place = (i64)start[owner.row] + (i64)owner.number;
            probe_row[out] = (i32)owner.row;
            build_row[out] = placed == nullptr ? (i32)place : placed[place];
        }
    }
}
