// Payload: columns packed into rows, and rows gathered into columns.
//
// A random access costs a 32-byte sector whatever its width, so n columns gathered one by one cost n sectors a row, and
// packed into a row of at most 32 bytes they cost one (Wu, Koutsoukos, Alonso, arXiv 2312.00720). Here the lanes of a warp
// share out the fields of 32 rows, neighbouring lanes writing or reading one row, so that a row is one transaction of its
// warp. `fields.cuh` says what a row looks like.

#include "expand.cuh"
#include "fields.cuh"

#ifndef OUTPUT_TILE
#define OUTPUT_TILE 1024
#endif
static_assert(OUTPUT_TILE % BLOCK_THREADS == 0, "every thread makes the same number of output rows");

// Columns into rows. `valids[f]` is null where column f has no nulls.
extern "C" __global__ void pack_rows(const u8* const* columns, const u8* const* valids, const u32* __restrict__ layout,
                                     u32 fields, u64 rows, u32 row_bytes, u32 flags_at, u8* __restrict__ packed)
{
    for (u64 base = block_start() + warp() * WARP_LANES; base < rows; base += thread_count()) {
        for (u32 step = 0; step < fields; ++step) {
            const u32 item = step * WARP_LANES + lane();
            const u64 row = base + item / fields;
            const u32 field = item % fields;
            if (row >= rows)
                continue;
            u8* to = packed + row * row_bytes;
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

// The output of a many-to-many join: probe columns and build fields of the pairs `begin … begin + length - 1`, which are
// shared out evenly whatever the number of matches of a key (`expand.cuh`). The matches of probe row r lie side by side in
// `packed`, from row `start[r]` on, so no pairs of row numbers are written or read. Of the example in `expand.cuh`, with
// `start` 7, 0, 2, the pairs are of the probe rows 0, 0, 2 and of the packed rows 7, 8, 2.
extern "C" __global__ void emit_ranges(const i64* __restrict__ running, u64 rows, const i32* __restrict__ start, u64 begin,
                                       u64 length, const u8* const* probe_columns, u8* const* probe_out,
                                       const u32* __restrict__ probe_widths, u32 probe_fields,
                                       const u8* __restrict__ packed, u32 row_bytes, u32 flags_at,
                                       const u32* __restrict__ layout, u32 fields, u8* const* build_out,
                                       u8* const* build_valids)
{
    __shared__ Staging shared;
    __shared__ u32 probe_rows[OUTPUT_TILE];
    __shared__ i32 places[OUTPUT_TILE];
    const u64 tiles = (length + OUTPUT_TILE - 1) / OUTPUT_TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 from = tile * OUTPUT_TILE;
        const u32 count = (u32)(from + OUTPUT_TILE < length ? OUTPUT_TILE : length - from);
        const Owners owners = stage_owners(running, rows, begin + from, begin + from + count - 1, shared);
        for (u32 item = threadIdx.x; item < count; item += BLOCK_THREADS) {
            const Owner owner = owner_of(owners, begin + from + item);
            probe_rows[item] = (u32)owner.row;
            places[item] = start[owner.row] + (i32)owner.number;
        }
        __syncthreads();
        for (u32 field = 0; field < probe_fields; ++field) {
            const u32 width = probe_widths[field];
            for (u32 item = threadIdx.x; item < count; item += BLOCK_THREADS)
                copy_value(probe_out[field] + (from + item) * width,
                           probe_columns[field] + (u64)probe_rows[item] * width, width);
        }
        for (u32 item = threadIdx.x; item < count * fields; item += BLOCK_THREADS)
            emit_field(packed, row_bytes, flags_at, layout, item % fields, places[item / fields], from + item / fields,
                       build_out, build_valids);
        // The barriers in `stage_owners` come before the next tile writes what is read here.
    }
}
