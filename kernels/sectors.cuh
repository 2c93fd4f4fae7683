#pragma once
// Open addressing in a table of slots, by sectors of 32 bytes, each one memory transaction.
//
// A search begins at the slot that the hash tells, goes round its sector, and then on to the next one. It ends at a slot that is
// free, or that `is_same` says is that of the key; what a slot holds is up to the caller (`hash_table.cuh`, `hashset.cu`). A free
// slot has all bits set. A table has fewer than 2^32 slots, and whole sectors.
//
// Example, a sector with the slots A, free, C, free: a search that begins at C, and does not find its key there, goes on to the
// fourth slot, which is free: the key is not there, and is entered here.

#include "base.cuh"

constexpr u64 SECTOR_BYTES = 32;

// Where the search for a key of a hash starts.
__device__ inline u64 home_slot(u64 hash, u64 slots) { return (hash >> 32) * slots >> 32; }

// The slot after one, in a search that began at `home`. A sector has a power of two of slots.
template <u64 SECTOR_SLOTS>
__device__ inline u64 next_slot(u64 at, u64 home, u64 slots)
{
    static_assert((SECTOR_SLOTS & (SECTOR_SLOTS - 1)) == 0, "slots of a sector are a power of two");
    const u64 next = (at & ~(SECTOR_SLOTS - 1)) | ((at + 1) & (SECTOR_SLOTS - 1));
    if ((next ^ home) & (SECTOR_SLOTS - 1))
        return next;
    const u64 beyond = next + SECTOR_SLOTS;
    return beyond < slots ? beyond : beyond - slots;
}

template <typename Slot>
constexpr Slot FREE_SLOT = ~(Slot)0;

// Where a search ended, and what the slot held before: FREE_SLOT where the key was not there.
template <typename Slot>
struct Place {
    u64 at;
    Slot held;
};

// Enter a key of a hash as `slot`, unless it is there. The table must not be full. A slot is read before it is exchanged: the
// exchange alone takes longer where the sector is not in L2.
template <typename Slot, typename Same>
__device__ inline Place<Slot> enter(u64 hash, Slot slot, Slot* table, u64 slots, Same is_same)
{
    const u64 home = home_slot(hash, slots);
    for (u64 at = home;; at = next_slot<SECTOR_BYTES / sizeof(Slot)>(at, home, slots)) {
        Slot there = *(volatile Slot*)&table[at];
        if (there == FREE_SLOT<Slot>)
            there = atomicCAS(&table[at], FREE_SLOT<Slot>, slot);
        if (there == FREE_SLOT<Slot> || is_same(there))
            return Place<Slot>{at, there};
    }
}

// Look for a key of a hash in a finished table. A full table ends the search where it began.
template <typename Slot, typename Same>
__device__ inline Place<Slot> search(u64 hash, const Slot* __restrict__ table, u64 slots, Same is_same)
{
    const u64 home = home_slot(hash, slots);
    u64 at = home;
    for (u64 seen = 0; seen < slots; ++seen) {
        const Slot there = table[at];
        if (there == FREE_SLOT<Slot> || is_same(there))
            return Place<Slot>{at, there};
        at = next_slot<SECTOR_BYTES / sizeof(Slot)>(at, home, slots);
    }
    return Place<Slot>{0, FREE_SLOT<Slot>};
}
