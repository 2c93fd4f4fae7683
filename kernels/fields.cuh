#pragma once
// Fields of packed rows: columns of fixed width, those of a row side by side.
//
// `layout[f]` holds the offset of field f in its row in the low 16 bits, and its width (1, 2, 4, 8 or 16 bytes) above.
// Bit f of the 4-byte word at `flags_at` says that field f is not null; rows without nullable fields have no such word,
// and `flags_at` is NO_FLAGS. Rows have a multiple of 8 bytes, of 16 where a field has 16.

#include "value.cuh"

namespace {

constexpr u32 NO_FLAGS = 0xffffffffu;

__device__ inline void clear_value(u8* to, u32 width)
{
    switch (width) {
    case 1: *to = 0; break;
    case 2: *(unsigned short*)to = 0; break;
    case 4: *(u32*)to = 0; break;
    case 8: *(u64*)to = 0; break;
    default: *(Wide*)to = Wide{0, 0};
    }
}

// Field f of output row `out` from packed row `row`, null where `row` is NO_ROW.
__device__ inline void emit_field(const u8* __restrict__ packed, u32 row_bytes, u32 flags_at, const u32* __restrict__ layout,
                                  u32 field, i32 row, u64 out, u8* const* columns, u8* const* valids)
{
    const u32 width = layout[field] >> 16;
    u8* to = columns[field] + out * width;
    bool there = row != NO_ROW;
    if (there) {
        const u8* from = packed + (u64)row * row_bytes;
        copy_value(to, from + (layout[field] & 0xffffu), width);
        if (flags_at != NO_FLAGS)
            there = (*(const u32*)(from + flags_at) >> field & 1u) != 0;
    } else {
        clear_value(to, width);
    }
    if (valids[field] != nullptr)
        valids[field][out] = there;
}

// The fields of the packed row `own_row` of each lane, at the output row `base` and the number of the lane; nothing where that is
// NO_ROW. The lanes share them out, neighbours writing one row. All lanes of the warp must call it.
__device__ inline void emit_rows(const u8* __restrict__ packed, u32 row_bytes, u32 flags_at, const u32* __restrict__ layout,
                                 u32 fields, i32 own_row, u64 base, u8* const* columns, u8* const* valids)
{
    for (u32 step = 0; step < fields; ++step) {
        const u32 item = step * WARP_LANES + lane();
        const u32 which = item / fields;
        const i32 row = __shfl_sync(FULL_WARP, own_row, which);
        if (row != NO_ROW)
            emit_field(packed, row_bytes, flags_at, layout, item % fields, row, base + which, columns, valids);
    }
}

}  // namespace
