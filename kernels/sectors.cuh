#pragma once
// Searches in a table of slots, by sectors of 32 bytes, each one memory transaction: round the sector in which a search begins,
// then on to the next one. A table has fewer than 2^32 slots, and whole sectors.

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
