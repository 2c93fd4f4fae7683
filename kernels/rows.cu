// Payload: columns packed into rows, and rows gathered into columns.
//
// A random access costs a 32-byte sector whatever its width, so n columns gathered one by one cost n sectors a row, and
// packed into a row of at most 32 bytes they cost one (Wu, Koutsoukos, Alonso, arXiv 2312.00720). Here the lanes of a warp
// share out the fields of 32 rows, neighbouring lanes reading one row, so that a row is one transaction of its warp.
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

}  // namespace

// Columns into rows. `valids[f]` is null where column f has no nulls. `order` is the row to put in each place, or null.
extern "C" __global__ void pack_rows(const u8* const* columns, const u8* const* valids, const u32* __restrict__ layout,
                                     u32 fields, u64 rows, const i32* __restrict__ order, u32 row_bytes, u32 flags_at,
                                     u8* __restrict__ packed)
{
    for (u64 base = block_start() + warp() * WARP_LANES; base < rows; base += thread_count()) {
        const u64 own = base + lane();
        const u64 own_row = order == nullptr || own >= rows ? own : (u64)order[own];
        for (u32 step = 0; step < fields; ++step) {
            const u32 item = step * WARP_LANES + lane();
            const u32 which = item / fields;
            const u32 field = item % fields;
            const u64 row = __shfl_sync(FULL_WARP, own_row, which);
            if (base + which >= rows)
                continue;
            u8* to = packed + (base + which) * row_bytes;
            const u32 width = layout[field] >> 16;
            copy_value(to + (layout[field] & 0xffffu), columns[field] + row * width, width);
            if (field == 0 && flags_at != NO_FLAGS) {
                u32 flags = 0;
                for (u32 other = 0; other < fields; ++other)
                    if (valids[other] == nullptr || valids[other][row] != 0)
                        flags |= 1u << other;
                *(u32*)(to + flags_at) = flags;
            }
        }
    }
}

// Rows by a map into columns; a null row where the map is negative.
extern "C" __global__ void gather_rows(const u8* __restrict__ packed, u32 row_bytes, u32 flags_at,
                                       const u32* __restrict__ layout, u32 fields, const i32* __restrict__ map, u64 length,
                                       u8* const* columns, u8* const* valids)
{
    for (u64 base = block_start() + warp() * WARP_LANES; base < length; base += thread_count()) {
        const u64 own = base + lane();
        const i32 own_row = own < length ? map[own] : NO_ROW;
        for (u32 step = 0; step < fields; ++step) {
            const u32 item = step * WARP_LANES + lane();
            const u32 which = item / fields;
            const i32 row = __shfl_sync(FULL_WARP, own_row, which);
            if (base + which < length)
                emit_field(packed, row_bytes, flags_at, layout, item % fields, row < 0 ? NO_ROW : row, base + which,
                           columns, valids);
        }
    }
}

// Rows with a match (or, with `wanted` 0, without one) in each tile of BLOCK_THREADS probe rows.
extern "C" __global__ void count_tiles(const i32* __restrict__ found, u64 rows, u32 wanted, i64* __restrict__ counts)
{
    const u64 tiles = (rows + BLOCK_THREADS - 1) / BLOCK_THREADS;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 row = tile * BLOCK_THREADS + threadIdx.x;
        const bool kept = row < rows && (found[row] != NO_ROW) == (wanted != 0);
        const int count = __syncthreads_count(kept);
        if (threadIdx.x == 0)
            counts[tile] = count;
    }
}

// The output of a join whose probe rows have at most one match each: probe columns and build fields of the rows that have
// one (or of those that have none), in the order of the probe rows. `offsets[t]` is the first output row of tile t.
extern "C" __global__ void emit_matches(const i32* __restrict__ found, u64 rows, u32 wanted, const i64* __restrict__ offsets,
                                        const u8* const* probe_columns, u8* const* probe_out,
                                        const u32* __restrict__ probe_widths, u32 probe_fields,
                                        const u8* __restrict__ packed, u32 row_bytes, u32 flags_at,
                                        const u32* __restrict__ layout, u32 fields, u8* const* build_out,
                                        u8* const* build_valids)
{
    __shared__ u32 warp_counts[BLOCK_WARPS];
    __shared__ u32 kept_rows[BLOCK_THREADS];
    __shared__ i32 kept_found[BLOCK_THREADS];
    const u64 tiles = (rows + BLOCK_THREADS - 1) / BLOCK_THREADS;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 base = tile * BLOCK_THREADS;
        const u64 row = base + threadIdx.x;
        const i32 hit = row < rows ? found[row] : NO_ROW;
        const bool kept = row < rows && (hit != NO_ROW) == (wanted != 0);
        u32 count;
        const u32 rank = block_rank(kept, warp_counts, &count);
        if (kept) {
            kept_rows[rank] = threadIdx.x;
            kept_found[rank] = hit;
        }
        __syncthreads();
        const u64 out = (u64)offsets[tile];
        for (u32 item = threadIdx.x; item < count * fields; item += BLOCK_THREADS)
            emit_field(packed, row_bytes, flags_at, layout, item % fields, kept_found[item / fields],
                       out + item / fields, build_out, build_valids);
        for (u32 field = 0; field < probe_fields; ++field) {
            const u32 width = probe_widths[field];
            if (threadIdx.x < count)
                copy_value(probe_out[field] + (out + threadIdx.x) * width,
                           probe_columns[field] + (base + kept_rows[threadIdx.x]) * width, width);
        }
        // The barrier in `block_rank` comes before the next tile writes what is read here.
    }
}
