// Hash joins with a build side of unique keys: each probe row has at most one match.
//
// Chosen where the range of the keys is too wide for direct address. Uniqueness is verified while rows are inserted; a
// duplicate sends the launcher to `csr.cu`. A probe reads a slot of 8 bytes, the next one as long as slots are taken by other keys, and
// the key of the slot that has its tag (`hash_table.cuh`).

#include "hash_table.cuh"

// Enter every row that may match; sets `*duplicate` where a key occurs twice, and the table is then of no use.
extern "C" __global__ void unique_insert(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                         Slot* table, u64 slots, u32* duplicate)
{
    for (u64 row = thread_index(); row < rows; row += thread_count())
        if (may_match(valid, row) && insert(keys, row, table, slots).row != (i32)row)
            atomicOr(duplicate, 1u);
}

// The build row of each probe row, or -1, and how many have one.
extern "C" __global__ void unique_probe(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                        const Key* __restrict__ build_keys, const Slot* __restrict__ table, u64 slots,
                                        i32* __restrict__ found, u64* __restrict__ matches)
{
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        i32 hit = NO_ROW;
        if (may_match(valid, row))
            hit = find(read_key(keys, row), build_keys, table, slots).row;
        found[row] = hit;
        mine += hit != NO_ROW;
    }
    add_warp(matches, mine);
}
