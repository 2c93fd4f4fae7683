// Many-to-many joins: the rows of each key lie side by side in a compressed sparse row structure.
//
// Build: find the slot of each row (by hash here, by direct address in `direct.cu`), count and number the rows of each slot,
// sum up the counts (`sums.cu`), and place the rows. Probe: offsets give the exact number of matches of each probe row; their
// 64-bit running sum tells the size of the output before anything is allocated. Output: every thread finds the probe row
// of its own output row in that running sum, so work is split by output and a key with millions of matches is shared by
// all blocks (Sioulas et al., ICDE 2019; merge-based load balancing after Merrill and Garland, SC 2016).

#include "hash_table.cuh"

// Slot of each row in a table over the distinct keys; -1 for rows that match nothing.
extern "C" __global__ void csr_insert(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows, Slot* table,
                                      u64 slots, i32* __restrict__ slot_of)
{
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        i32 place = NO_ROW;
        if (may_match(valid, row))
            place = (i32)insert(keys, row, table, slots).slot;
        slot_of[row] = place;
    }
}

namespace {

// Adds one to a counter for every lane, the lanes of one counter together; gives each lane its own number. All lanes of
// the warp must call it, with `counter` -1 where there is nothing to add.
__device__ inline i32 add_together(i32* counters, i32 counter)
{
    const u32 peers = __match_any_sync(FULL_WARP, counter);
    const u32 leader = __ffs(peers) - 1;
    i32 base = 0;
    if (counter != NO_ROW && lane() == leader)
        base = atomicAdd(&counters[counter], (i32)__popc(peers));
    base = __shfl_sync(FULL_WARP, base, leader);
    return base + (i32)__popc(peers & lanes_below());
}

}  // namespace

// Rows of each slot, and the number of each row among those of its slot, in any order; `counts` is zero before.
extern "C" __global__ void csr_count(const i32* __restrict__ slot_of, u64 rows, i32* counts, i32* __restrict__ number)
{
    for (u64 base = block_start(); base < rows; base += thread_count()) {
        const u64 row = base + threadIdx.x;
        const i32 own = add_together(counts, row < rows ? slot_of[row] : NO_ROW);
        if (row < rows)
            number[row] = own;
    }
}

// Rows by slot, each at the first place of its slot and its own number on: `placed` is the row at each place.
extern "C" __global__ void csr_place(const i32* __restrict__ slot_of, u64 rows, const i32* __restrict__ first,
                                     const i32* __restrict__ number, i32* __restrict__ placed)
{
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        const i32 slot = slot_of[row];
        if (slot != NO_ROW)
            placed[first[slot] + number[row]] = (i32)row;
    }
}

// Ascending rows within each slot, by insertion; for slots of few rows (`gpujoin.launch.csr`).
extern "C" __global__ void csr_order(const i32* __restrict__ first, u64 slots, i32* placed)
{
    for (u64 slot = thread_index(); slot < slots; slot += thread_count()) {
        const i64 from = first[slot];
        const i64 end = first[slot + 1];
        for (i64 next = from + 1; next < end; ++next) {
            const i32 row = placed[next];
            i64 hole = next;
            while (hole > from && placed[hole - 1] > row) {
                placed[hole] = placed[hole - 1];
                --hole;
            }
            placed[hole] = row;
        }
    }
}

// First place and number of the matches of each probe row, and the sum of the numbers.
extern "C" __global__ void csr_ranges(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                      const Key* __restrict__ build_keys, const Slot* __restrict__ table, u64 slots,
                                      const i32* __restrict__ first, i32* __restrict__ start, i32* __restrict__ count,
                                      u64* __restrict__ matches)
{
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        i32 from = 0;
        i32 length = 0;
        if (may_match(valid, row)) {
            const Found found = find(read_key(keys, row), KeyColumn{build_keys}, table, slots);
            if (found.row != NO_ROW) {
                from = first[found.slot];
                length = first[found.slot + 1] - from;
            }
        }
        start[row] = from;
        count[row] = length;
        mine += (u64)length;
    }
    add_warp(matches, mine);
}
