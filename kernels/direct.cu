// Joins by direct address: the slot of a key is its distance from the smallest build key.
//
// Chosen where the range of the build keys is small (`gpujoin.backends.cudf.algorithm`). A probe costs one access to the table and
// nothing is compared. Unique keys store a row, or -1, in their slot, or the packed payload of the row itself (`rows.cu`), and a bit
// says that it is there; duplicates are counted per slot and laid out by `csr.cu`; where only the existence of a match is asked for,
// a slot is one bit.
//
// `low` and `slots` describe the range [low, low + slots) of build keys. The distance of a key is taken in unsigned
// arithmetic, which is right for every pair of 64-bit keys: a key below `low` wraps to a distance of at least `slots`.

#include "fields.cuh"

#ifndef KEY_BYTES
#define KEY_BYTES 8
#endif
static_assert(KEY_BYTES == 4 || KEY_BYTES == 8, "direct address needs integer keys");

#if KEY_BYTES == 8
using Integer = i64;
#else
using Integer = i32;
#endif

namespace {

__device__ inline u64 distance(Integer key, i64 low) { return (u64)(i64)key - (u64)low; }

__device__ inline bool may_match(const u8* __restrict__ valid, u64 row) { return valid == nullptr || valid[row] != 0; }

}  // namespace

// Enter each row in the slot of its key; `table` is filled with -1 before. Sets `*duplicate` where two rows meet, and
// the table is then of no use.
extern "C" __global__ void direct_insert(const Integer* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                         i64 low, u64 slots, i32* __restrict__ table, u32* duplicate)
{
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        if (!may_match(valid, row))
            continue;
        const u64 slot = distance(keys[row], low);
        if (slot < slots && atomicExch(&table[slot], (i32)row) != NO_ROW)
            atomicOr(duplicate, 1u);
    }
}

// The row of each probe key, or -1, and how many have one.
extern "C" __global__ void direct_probe(const Integer* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                        i64 low, u64 slots, const i32* __restrict__ table, i32* __restrict__ found,
                                        u64* __restrict__ matches)
{
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        i32 hit = NO_ROW;
        if (may_match(valid, row)) {
            const u64 slot = distance(keys[row], low);
            if (slot < slots)
                hit = table[slot];
        }
        found[row] = hit;
        mine += hit != NO_ROW;
    }
    add_warp(matches, mine);
}

// The slot of each row, or -1: what `csr.cu` counts and lays out.
extern "C" __global__ void direct_slots(const Integer* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                        i64 low, u64 slots, i32* __restrict__ slot_of)
{
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        i32 place = NO_ROW;
        if (may_match(valid, row)) {
            const u64 slot = distance(keys[row], low);
            if (slot < slots)
                place = (i32)slot;
        }
        slot_of[row] = place;
    }
}

// Payload in the slots: the fields of the build row of each probe row, whether there is one, and how many have one. Where there is
// none, the columns are left as they are. `bits` is null where every slot is taken. The lanes of a warp share out the fields of 32
// rows, as in `rows.cu`.
extern "C" __global__ void direct_fetch(const Integer* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                        i64 low, u64 slots, const u32* __restrict__ bits, const u8* __restrict__ packed,
                                        u32 row_bytes, u32 flags_at, const u32* __restrict__ layout, u32 fields,
                                        u8* const* columns, u8* const* valids, u8* __restrict__ marks,
                                        u64* __restrict__ matches)
{
    u64 mine = 0;
    for (u64 base = block_start() + warp() * WARP_LANES; base < rows; base += thread_count()) {
        const u64 row = base + lane();
        i32 place = NO_ROW;
        if (row < rows) {
            if (may_match(valid, row)) {
                const u64 slot = distance(keys[row], low);
                if (slot < slots && (bits == nullptr || (bits[slot / 32] >> (slot % 32) & 1u) != 0))
                    place = (i32)slot;
            }
            marks[row] = place != NO_ROW;
        }
        mine += place != NO_ROW;
        emit_rows(packed, row_bytes, flags_at, layout, fields, place, base, columns, valids);
    }
    add_warp(matches, mine);
}

// First place and number of the matches of each probe row, by the offsets of `csr.cu`, and the sum of the numbers.
extern "C" __global__ void direct_ranges(const Integer* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                         i64 low, u64 slots, const i32* __restrict__ first, i32* __restrict__ start,
                                         i32* __restrict__ count, u64* __restrict__ matches)
{
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        i32 from = 0;
        i32 length = 0;
        if (may_match(valid, row)) {
            const u64 slot = distance(keys[row], low);
            if (slot < slots) {
                from = first[slot];
                length = first[slot + 1] - from;
            }
        }
        start[row] = from;
        count[row] = length;
        mine += (u64)length;
    }
    add_warp(matches, mine);
}

// One bit a key: the set of build keys. `bits` is zero before, and has (slots + 31) / 32 words.
extern "C" __global__ void direct_enter_bits(const Integer* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                             i64 low, u64 slots, u32* __restrict__ bits)
{
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        if (!may_match(valid, row))
            continue;
        const u64 slot = distance(keys[row], low);
        if (slot >= slots)
            continue;
        const u32 bit = 1u << (slot % 32);
        // Most rows of a key with many duplicates find their bit set, and need no atomic operation.
        if ((*(volatile u32*)&bits[slot / 32] & bit) == 0)
            atomicOr(&bits[slot / 32], bit);
    }
}

// Whether each probe row has a match, and how many have.
extern "C" __global__ void direct_test_bits(const Integer* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                            i64 low, u64 slots, const u32* __restrict__ bits, u8* __restrict__ marks,
                                            u64* __restrict__ matches)
{
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        bool hit = false;
        if (may_match(valid, row)) {
            const u64 slot = distance(keys[row], low);
            hit = slot < slots && (bits[slot / 32] >> (slot % 32) & 1u) != 0;
        }
        marks[row] = hit;
        mine += hit;
    }
    add_warp(matches, mine);
}
