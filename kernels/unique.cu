// Hash joins with a build side of unique keys: each probe row has at most one match.
//
// Chosen where the range of the keys is too wide for direct address. Uniqueness is verified while rows are inserted; a
// duplicate sends the launcher to `csr.cu`. A probe reads a slot of 8 bytes, the next one as long as slots are taken by other keys, and
// the key of the slot that has its tag (`hash_table.cuh`).

#include "fields.cuh"
#include "hash_table.cuh"

namespace {

// The keys of rows, each in a packed row beside its payload, so that comparing it reads that too.
struct PackedKeys {
    const u8* __restrict__ packed;
    u32 row_bytes;
    u32 key_at;

    __device__ Key operator()(i32 row) const
    {
        return read_key((const Key*)(packed + (u64)row * row_bytes + key_at), 0);
    }
};

}  // namespace

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
            hit = find(read_key(keys, row), KeyColumn{build_keys}, table, slots).row;
        found[row] = hit;
        mine += hit != NO_ROW;
    }
    add_warp(matches, mine);
}

// The fields of the build row of each probe row, whether there is one, and how many have one, where packed rows have the key, from
// `key_at` on, beside the payload. Where there is none, the columns are left as they are. The lanes of a warp share out the fields
// of 32 rows, as in `rows.cu`.
extern "C" __global__ void unique_fetch(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                        const Slot* __restrict__ table, u64 slots, u32 key_at,
                                        const u8* __restrict__ packed, u32 row_bytes, u32 flags_at,
                                        const u32* __restrict__ layout, u32 fields, u8* const* columns, u8* const* valids,
                                        u8* __restrict__ marks, u64* __restrict__ matches)
{
    u64 mine = 0;
    for (u64 base = block_start() + warp() * WARP_LANES; base < rows; base += thread_count()) {
        const u64 row = base + lane();
        i32 hit = NO_ROW;
        if (row < rows) {
            if (may_match(valid, row))
                hit = find(read_key(keys, row), PackedKeys{packed, row_bytes, key_at}, table, slots).row;
            marks[row] = hit != NO_ROW;
        }
        mine += hit != NO_ROW;
        emit_rows(packed, row_bytes, flags_at, layout, fields, hit, base, columns, valids);
    }
    add_warp(matches, mine);
}
