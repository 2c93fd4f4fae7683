#pragma once
// Key codes of 4, 8 or 16 bytes, equal exactly when the keys are. Every bit pattern is a legal key: a kernel that uses one
// to mean "empty" keeps that key elsewhere.

#include "base.cuh"

#ifndef KEY_BYTES
#define KEY_BYTES 8
#endif
static_assert(KEY_BYTES == 4 || KEY_BYTES == 8 || KEY_BYTES == 16, "key codes have 4, 8 or 16 bytes");

// Tests force collisions by clearing bits of the hash.
#ifndef HASH_MASK
#define HASH_MASK 0xffffffffffffffffull
#endif

#if KEY_BYTES == 16
struct alignas(16) Key {
    u64 low;
    u64 high;
};
#elif KEY_BYTES == 8
struct alignas(8) Key {
    u64 low;
};
#else
struct alignas(4) Key {
    u32 low;
};
#endif

// The key of a row, in one request.
__device__ inline Key read_key(const Key* __restrict__ keys, u64 row)
{
#if KEY_BYTES == 16
    const ulonglong2 both = *(const ulonglong2*)&keys[row];
    return Key{both.x, both.y};
#else
    return keys[row];
#endif
}

__device__ inline bool same(const Key& one, const Key& two)
{
#if KEY_BYTES == 16
    return one.low == two.low && one.high == two.high;
#else
    return one.low == two.low;
#endif
}

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection, so 8-byte keys never collide in all bits.
__device__ inline u64 mix(u64 bits)
{
    bits += 0x9e3779b97f4a7c15ull;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
    return bits ^ (bits >> 31);
}

__device__ inline u64 hashed(const Key& key)
{
#if KEY_BYTES == 16
    return mix(mix(key.low) ^ key.high) & HASH_MASK;
#else
    return mix(key.low) & HASH_MASK;
#endif
}

// Whether a row may match anything; `valid` is null where every row may.
__device__ inline bool may_match(const u8* __restrict__ valid, u64 row) { return valid == nullptr || valid[row] != 0; }
