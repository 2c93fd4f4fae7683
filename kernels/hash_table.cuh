#pragma once
// An open-addressing table over distinct keys, probed by sectors of 32 bytes, each one memory transaction.
//
// A slot is taken by the row number alone, so any key is legal. While rows are inserted, the key of a taken slot is read
// through its row from the key column; it is stored in the slot as well, for the probes that come after the kernel.
// A search begins at the first slot of a sector and goes on slot by slot: 4, 2 or 1 to a sector, whose keys have 4, 8 or 16
// bytes. At most half of the slots are taken: of 8-byte keys 88 % of those that are there, and 68 % of those that are not, are
// decided in the first sector.
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

constexpr u64 SECTOR_BYTES = 32;
constexpr u64 SECTOR_SLOTS = SECTOR_BYTES / sizeof(Slot);
static_assert(SECTOR_SLOTS >= 1 && (SECTOR_SLOTS & (SECTOR_SLOTS - 1)) == 0, "a sector holds a power of two of slots");

// Where the search for a key starts: the first slot of a sector. A table has fewer than 2^32 slots, and whole sectors.
__device__ inline u64 home_slot(const Key& key, u64 slots)
{
    return ((hashed(key) >> 32) * slots >> 32) & ~(SECTOR_SLOTS - 1);
}

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

// A slot of a finished table, each 16 bytes of it in one request.
__device__ inline Slot read_slot(const Slot* __restrict__ table, u64 at)
{
    Slot slot;
#if KEY_BYTES == 16
    const ulonglong2 key = *(const ulonglong2*)&table[at].key;
    slot.key = Key{key.x, key.y};
    slot.row = table[at].row;
#elif KEY_BYTES == 8
    const ulonglong2 both = *(const ulonglong2*)&table[at];
    slot.key = Key{both.x};
    slot.row = (i32)(u32)both.y;
#else
    const u64 both = *(const u64*)&table[at];
    slot.key = Key{(u32)both};
    slot.row = (i32)(u32)(both >> 32);
#endif
    return slot;
}

struct Found {
    i32 row;
    u64 slot;
};

// The row that holds a key in a finished table, and its slot; NO_ROW where there is none. A full table ends the search
// where it began.
__device__ inline Found find(Key key, const Slot* __restrict__ table, u64 slots)
{
    u64 at = home_slot(key, slots);
    for (u64 seen = 0; seen < slots; ++seen) {
        const Slot slot = read_slot(table, at);
        if (slot.row == NO_ROW)
            break;
        if (same(slot.key, key))
            return Found{slot.row, at};
        at = next_slot(at, slots);
    }
    return Found{NO_ROW, 0};
}
