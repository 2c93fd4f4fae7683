// Sets of keys by hash: which probe rows have a match, for semi, anti and existence joins without a condition.
//
// A slot is the key alone, and a sector of 32 bytes holds 4 keys of 8 bytes or 8 of 4: at most half of the slots are taken, so
// nearly every search ends in the sector where it begins. A free slot has all bits set. The key with all bits set is legal
// too: it has no slot, and `*all_set` says whether a build row has it. Build rows may repeat keys. Searches go as in
// `sectors.cuh`. Keys of 16 bytes cannot be exchanged at once and are joined by `unique.cu`.
//
// Example of one sector of 4 slots: the build keys 5, 9, 5 and -1, of which 5 begins at the first slot and 9 too, give the slots 5, 9, free,
// free, and `*all_set`. A probe of 13 that begins at the second slot ends at the third, which is free: no match. A probe of -1
// reads `*all_set`.

#include "key.cuh"
#include "sectors.cuh"

static_assert(KEY_BYTES == 4 || KEY_BYTES == 8, "keys of 16 bytes have no atomic exchange");

#if KEY_BYTES == 8
using Word = u64;
#else
using Word = u32;
#endif

// Enter the key of every row that may match. `set` is filled with 0xff before, `*all_set` with zero.
extern "C" __global__ void set_insert(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows, Word* set,
                                      u64 slots, u32* all_set)
{
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        if (!may_match(valid, row))
            continue;
        const Key key = keys[row];
        if (key.low == FREE_SLOT<Word>) {
            if (*(volatile u32*)all_set == 0)
                atomicOr(all_set, 1u);
            continue;
        }
        enter(hashed(key), (Word)key.low, set, slots, [&](Word there) { return there == key.low; });
    }
}

// For each probe row 0 where its key is in the set and -1 where it is not, and how many are.
extern "C" __global__ void set_probe(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows,
                                     const Word* __restrict__ set, u64 slots, const u32* __restrict__ all_set,
                                     i32* __restrict__ found, u64* __restrict__ matches)
{
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        bool hit = false;
        if (may_match(valid, row)) {
            const Key key = keys[row];
            if (key.low == FREE_SLOT<Word>)
                hit = *all_set != 0;
            else
                hit = search(hashed(key), set, slots, [&](Word there) { return there == key.low; }).held == key.low;
        }
        found[row] = hit ? 0 : NO_ROW;
        mine += hit;
    }
    add_warp(matches, mine);
}
