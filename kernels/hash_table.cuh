#pragma once
// An open-addressing table with linear probing over distinct keys, each slot one memory transaction.
//
// A slot is taken by the row number alone, so any key is legal. While rows are inserted, the key of a taken slot is read
// through its row from the key column; it is stored in the slot as well, for the probes that come after the kernel.
// Slots are addressed by the high bits of the hash in ascending order: rows in order of those bits touch the table from
// front to back, which is all that a partitioned join needs of its table.

#include "key.cuh"

// Filled with 0xff before the first insert.
#if KEY_BYTES == 16
struct alignas(32) Slot {
    Key key;
    i32 row;
    i32 unused[3];
};
#elif KEY_BYTES == 8
struct alignas(16) Slot {
    Key key;
    i32 row;
    i32 unused;
};
#else
struct alignas(8) Slot {
    Key key;
    i32 row;
};
#endif

// Where the search for a key starts; a table has fewer than 2^32 slots.
__device__ inline u64 home_slot(const Key& key, u64 slots) { return ((hashed(key) >> 32) * slots) >> 32; }

__device__ inline u64 next_slot(u64 at, u64 slots) { return at + 1 == slots ? 0 : at + 1; }

// Slot of a key, entered with `row` where it is new; `holder` is the row that holds it. The table must not be full.
__device__ inline u64 insert(const Key* __restrict__ keys, i32 row, Slot* table, u64 slots, i32* holder)
{
    const Key key = keys[row];
    u64 at = home_slot(key, slots);
    while (true) {
        i32 there = *(volatile i32*)&table[at].row;
        if (there == NO_ROW)
            there = atomicCAS(&table[at].row, NO_ROW, row);
        if (there == NO_ROW) {
            table[at].key = key;
            *holder = row;
            return at;
        }
        if (same(keys[there], key)) {
            *holder = there;
            return at;
        }
        at = next_slot(at, slots);
    }
}

// Slot of a key in a finished table, or -1. A full table ends the search where it began.
__device__ inline i64 find(const Key& key, const Slot* __restrict__ table, u64 slots)
{
    u64 at = home_slot(key, slots);
    for (u64 seen = 0; seen < slots; ++seen) {
        const Slot slot = table[at];
        if (slot.row == NO_ROW)
            return -1;
        if (same(slot.key, key))
            return (i64)at;
        at = next_slot(at, slots);
    }
    return -1;
}
