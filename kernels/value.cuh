#pragma once
// Values of 1, 2, 4, 8 or 16 bytes, whatever their type.

#include "base.cuh"

struct alignas(16) Wide {
    u64 low;
    u64 high;
};

// Copy one value; both addresses are multiples of its width.
__device__ inline void copy_value(u8* __restrict__ to, const u8* __restrict__ from, u32 width)
{
    switch (width) {
    case 1: *to = *from; break;
    case 2: *(unsigned short*)to = *(const unsigned short*)from; break;
    case 4: *(u32*)to = *(const u32*)from; break;
    case 8: *(u64*)to = *(const u64*)from; break;
    default: *(Wide*)to = *(const Wide*)from;
    }
}
