// Candidates of a range join, looked at one by one: build rows whose first point fits, of which the second may not.
//
// Candidates are shared out by number, not by probe row (`expand.cuh`), so a row with millions of them keeps no warp
// waiting. Candidate p is the place `start[row] + number` of the probe row that it belongs to, and a match if the rank of
// its second point is one of the `width[row]` from `low[row]` on.

#ifndef STAGED_ROWS
#define STAGED_ROWS 1536
#endif

#include "expand.cuh"

#ifndef OUTPUT_TILE
#define OUTPUT_TILE 1024
#endif
static_assert(OUTPUT_TILE % BLOCK_THREADS == 0, "every thread looks at the same number of candidates");

namespace {

struct Candidate {
    u64 row;
    u64 place;
    bool matches;
};

__device__ inline Candidate look(const Owners& owners, u64 item, const i32* __restrict__ start,
                                 const i32* __restrict__ ranks, const i32* __restrict__ low,
                                 const i32* __restrict__ width)
{
    const Owner owner = owner_of(owners, item);
    const u64 place = (u64)start[owner.row] + owner.number;
    // In unsigned arithmetic a rank below the lowest one is far above it.
    return Candidate{owner.row, place, (u32)ranks[place] - (u32)low[owner.row] < (u32)width[owner.row]};
}

}  // namespace

// Matches of each probe row among its candidates, all of which are looked at; `count` is zero before.
extern "C" __global__ void count_candidates(const i64* __restrict__ running, u64 rows, const i32* __restrict__ start,
                                            const i32* __restrict__ ranks, const i32* __restrict__ low,
                                            const i32* __restrict__ width, u64 length, i32* count,
                                            u64* __restrict__ matches)
{
    __shared__ Staging shared;
    const u64 tiles = (length + OUTPUT_TILE - 1) / OUTPUT_TILE;
    u64 mine = 0;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 from = tile * OUTPUT_TILE;
        const u64 end = from + OUTPUT_TILE < length ? from + OUTPUT_TILE : length;
        const Owners owners = stage_owners(running, rows, from, end - 1, shared);
        for (u64 base = from; base < end; base += BLOCK_THREADS) {
            const u64 item = base + threadIdx.x;
            Candidate found{0, 0, false};
            if (item < end)
                found = look(owners, item, start, ranks, low, width);
            // Lanes of one row are neighbours: the first of them adds for all.
            const u32 hits = __ballot_sync(FULL_WARP, found.matches);
            const u32 peers = __match_any_sync(FULL_WARP, (u32)found.row) & hits;
            if (found.matches && (peers & lanes_below()) == 0)
                atomicAdd(&count[found.row], (i32)__popc(peers));
            mine += found.matches;
        }
    }
    add_warp(matches, mine);
}

// How many of each OUTPUT_TILE of the candidates `begin … begin + length - 1` match.
extern "C" __global__ void tile_candidates(const i64* __restrict__ running, u64 rows, const i32* __restrict__ start,
                                           const i32* __restrict__ ranks, const i32* __restrict__ low,
                                           const i32* __restrict__ width, u64 begin, u64 length,
                                           i32* __restrict__ of_tile)
{
    __shared__ Staging shared;
    const u64 tiles = (length + OUTPUT_TILE - 1) / OUTPUT_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 from = tile * OUTPUT_TILE;
        const u64 end = from + OUTPUT_TILE < length ? from + OUTPUT_TILE : length;
        const Owners owners = stage_owners(running, rows, begin + from, begin + end - 1, shared);
        i32 found = 0;
        for (u64 base = from; base < end; base += BLOCK_THREADS) {
            const u64 item = base + threadIdx.x;
            found += __syncthreads_count(item < end && look(owners, begin + item, start, ranks, low, width).matches);
        }
        if (threadIdx.x == 0)
            of_tile[tile] = found;
    }
}

// Those that match, in their order; `offset[tile]` of them lie in the tiles before.
extern "C" __global__ void keep_candidates(const i64* __restrict__ running, u64 rows, const i32* __restrict__ start,
                                           const i32* __restrict__ ranks, const i32* __restrict__ low,
                                           const i32* __restrict__ width, const i32* __restrict__ placed, u64 begin,
                                           u64 length, const i64* __restrict__ offset, i32* __restrict__ probe_row,
                                           i32* __restrict__ build_row)
{
    __shared__ Staging shared;
    __shared__ u32 warp_counts[BLOCK_WARPS];
    const u64 tiles = (length + OUTPUT_TILE - 1) / OUTPUT_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 from = tile * OUTPUT_TILE;
        const u64 end = from + OUTPUT_TILE < length ? from + OUTPUT_TILE : length;
        const Owners owners = stage_owners(running, rows, begin + from, begin + end - 1, shared);
        u64 out = (u64)offset[tile];
        for (u64 base = from; base < end; base += BLOCK_THREADS) {
            const u64 item = base + threadIdx.x;
            Candidate found{0, 0, false};
            if (item < end)
                found = look(owners, begin + item, start, ranks, low, width);
            u32 kept;
            const u32 rank = block_rank(found.matches, warp_counts, &kept);
            if (found.matches) {
                probe_row[out + rank] = (i32)found.row;
                build_row[out + rank] = placed[found.place];
            }
            out += kept;
            __syncthreads();
        }
    }
}
