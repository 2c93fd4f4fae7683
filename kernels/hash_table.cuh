#pragma once
// An open-addressing table over distinct keys, whose slots lie in sectors of 32 bytes, each one memory transaction.
//
// A slot has 8 bytes: a tag of the key, and the row that has it. The tag is the low half of the key's hash; where tags are equal
// the keys are compared, that of the slot in the build side's column. Keys of 4 bytes are their own tags. Any key is legal,
// since a free slot has the row -1.
// At most half of the slots are taken, so most searches (`sectors.cuh`) end at their first or second slot. What a search costs is
// its accesses: on an H200, 400 M of them to a table of 2 GB took 14 ms, whether or not they lay near each other.

#include "key.cuh"
#include "sectors.cuh"

using Slot = u64;  // the tag above 32 bits of row

struct Found {
    i32 row;
    u64 slot;
};

__device__ inline i32 row_of(Slot slot) { return (i32)(u32)slot; }

// The tag of a key, in the bits where a slot has it.
__device__ inline Slot tag_of(const Key& key, u64 hash)
{
#if KEY_BYTES == 4
    return (u64)key.low << 32;
#else
    return hash << 32;
#endif
}

// Whether a taken slot is that of a key; `key_of` gives the key of a row.
template <typename KeyOf>
__device__ inline bool holds(Slot slot, Slot tag, const Key& key, KeyOf key_of)
{
    if ((slot ^ tag) >> 32 != 0)
        return false;
#if KEY_BYTES == 4
    return true;
#else
    return same(key_of(row_of(slot)), key);
#endif
}

// The keys of rows, in a column.
struct KeyColumn {
    const Key* __restrict__ keys;

    __device__ Key operator()(i32 row) const { return read_key(keys, row); }
};

// Slot of the key of a row, entered with the row where it is new, and the row that holds it. The table must not be full.
__device__ inline Found insert(const Key* __restrict__ keys, u64 row, Slot* table, u64 slots)
{
    const Key key = read_key(keys, row);
    const u64 hash = hashed(key);
    const Slot tag = tag_of(key, hash);
    const Place<Slot> place =
        enter(hash, tag | row, table, slots, [&](Slot there) { return holds(there, tag, key, KeyColumn{keys}); });
    return Found{place.held == FREE_SLOT<Slot> ? (i32)row : row_of(place.held), place.at};
}

// The row that holds a key in a finished table, and its slot; NO_ROW where there is none. `key_of` gives the key of a row.
template <typename KeyOf>
__device__ inline Found find(const Key& key, KeyOf key_of, const Slot* __restrict__ table, u64 slots)
{
    const u64 hash = hashed(key);
    const Slot tag = tag_of(key, hash);
    const Place<Slot> place = search(hash, table, slots, [&](Slot there) { return holds(there, tag, key, key_of); });
    // A free slot has all bits set, and so the row -1.
    static_assert((i32)(u32)FREE_SLOT<Slot> == NO_ROW, "a free slot has no row");
    return Found{row_of(place.held), place.at};
}
