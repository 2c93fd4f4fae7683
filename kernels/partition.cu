// One pass that orders rows by the high bits of the hash of their key.
//
// The hash table of `hash_table.cuh` is addressed by the same bits in the same order: rows that follow each other in a
// partition meet a stretch of the table that stays in the L2 cache, and payload that was moved along is gathered from
// a stretch as short. Partitions have no capacity of their own: their sizes are counted before anything is moved, and
// the table is one, so a partition that is too full only takes more of it. (One pass of 8 bits: Rui and Tu, SSDBM 2017,
// and Sioulas et al., ICDE 2019, take two of up to 8, to reach shared memory; L2 needs no second one.)
//
// Rows that match nothing go to one more partition, the last.
//
// Each block takes one consecutive chunk of the rows, tile by tile. In a tile, rows are ranked by partition, each by one
// atomic operation in shared memory. Then every column goes to its places by way of shared memory: it is read as it lies, all
// values of a thread at once, and written partition by partition, so that neighbouring threads write neighbouring places.
// Rows of a partition are in no order.

#include "key.cuh"

#ifndef PARTITION_BITS
#define PARTITION_BITS 8
#endif
#ifndef ROWS_PER_THREAD
#define ROWS_PER_THREAD 8
#endif
static_assert(PARTITION_BITS >= 1 && PARTITION_BITS <= 10, "the counters of a block fit its shared memory");

// Blocks of a multiprocessor: as many as the launcher makes, so that a pass is one wave.
constexpr u32 RESIDENT_BLOCKS = 3;

constexpr u32 PARTITIONS = 1u << PARTITION_BITS;
constexpr u32 BUCKETS = PARTITIONS + 1;
constexpr u32 TILE_ROWS = BLOCK_THREADS * ROWS_PER_THREAD;
static_assert(TILE_ROWS <= 3072, "a tile fits the 48 KB of shared memory of a block; places in it are 16-bit numbers");

namespace {

__device__ inline u32 bucket_of(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 row)
{
    return may_match(valid, row) ? (u32)(hashed(keys[row]) >> (64 - PARTITION_BITS)) : PARTITIONS;
}

// A thread has the rows `threadIdx.x + turn * BLOCK_THREADS` of a tile: those of a warp lie beside each other. Distances
// from the first one are constants, or every turn would take registers for an address of its own.
__device__ inline bool has_row(u32 turn, u32 tile_rows) { return (i32)(turn * BLOCK_THREADS) < (i32)tile_rows - (i32)threadIdx.x; }

// Buckets of the rows of a thread; BUCKETS beyond the tile. All are read before any is used.
struct Buckets {
    u32 of[ROWS_PER_THREAD];

    __device__ inline Buckets(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 base, u32 tile_rows)
    {
#pragma unroll
        for (u32 turn = 0; turn < ROWS_PER_THREAD; ++turn)
            of[turn] = has_row(turn, tile_rows) ? bucket_of(keys, valid, base + threadIdx.x + turn * BLOCK_THREADS) : BUCKETS;
    }
};

// Adds one to a shared counter, and gives what it was; BUCKETS is none.
__device__ inline u32 add_shared(u32* counters, u32 counter)
{
    return counter < BUCKETS ? atomicAdd(&counters[counter], 1u) : 0;
}

struct Chunk {
    u64 from;
    u64 end;
};

// Whole tiles for every block, the last ones perhaps none.
__device__ inline Chunk chunk_of_block(u64 rows)
{
    const u64 tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const u64 share = (tiles + gridDim.x - 1) / gridDim.x * TILE_ROWS;
    const u64 from = blockIdx.x * share;
    const u64 end = from + share;
    return Chunk{from < rows ? from : rows, end < rows ? end : rows};
}

__device__ inline u32 rows_of_tile(const Chunk& chunk, u64 base)
{
    return chunk.end - base < TILE_ROWS ? (u32)(chunk.end - base) : TILE_ROWS;
}

// Where the rows of a tile go; in shared memory, for which a thread has not enough registers.
struct Places {
    const unsigned short* of_row;     // place of each row among the rows of the tile, ordered by bucket
    const unsigned short* bucket_at;  // bucket of each place
    const i64* ahead;                 // what to add to a place in the tile, for each bucket, to have the place in the output
    u32 tile_rows;
};

// Reads the thread's values of a tile, from `from[row * step]`, all before any is used.
template <typename Value>
__device__ inline void read_values(const void* from, u32 step, u32 tile_rows, u64 (&values)[ROWS_PER_THREAD])
{
    const Value* __restrict__ mine = (const Value*)from + threadIdx.x * step;
#pragma unroll
    for (u32 turn = 0; turn < ROWS_PER_THREAD; ++turn)
        if (has_row(turn, tile_rows))
            values[turn] = mine[turn * BLOCK_THREADS * step];
}

// Puts the thread's values where rows lie by partition. All threads call it, and wait for each other twice.
__device__ inline void put(const Places& places, const u64 (&values)[ROWS_PER_THREAD], u64* exchange)
{
    const unsigned short* mine = places.of_row + threadIdx.x;
    __syncthreads();
#pragma unroll
    for (u32 turn = 0; turn < ROWS_PER_THREAD; ++turn)
        if (has_row(turn, places.tile_rows))
            exchange[mine[turn * BLOCK_THREADS]] = values[turn];
    __syncthreads();
}

// Writes values that lie by partition, to `to[place * step]`.
template <typename Value>
__device__ inline void write_values(const Places& places, void* to, u32 step, const u64* exchange)
{
    Value* __restrict__ out = (Value*)to;
    for (u32 place = threadIdx.x; place < places.tile_rows; place += BLOCK_THREADS)
        out[(u64)(places.ahead[places.bucket_at[place]] + (i64)place) * step] = (Value)exchange[place];
}

// Moves a value of 1, 2, 4, 8 or 16 bytes of each row of a tile; the last in two halves. All threads call it; `exchange` is
// shared memory for a tile.
__device__ inline void move_values(const Places& places, const u8* from, u8* to, u32 width, u64* exchange)
{
    u64 values[ROWS_PER_THREAD];
    const u32 step = width > sizeof(u64) ? 2 : 1;
    for (u32 half = 0; half < step; ++half) {
        switch (width) {
        case 1: read_values<u8>(from, 1, places.tile_rows, values); break;
        case 2: read_values<unsigned short>(from, 1, places.tile_rows, values); break;
        case 4: read_values<u32>(from, 1, places.tile_rows, values); break;
        default: read_values<u64>(from + half * sizeof(u64), step, places.tile_rows, values);
        }
        put(places, values, exchange);
        switch (width) {
        case 1: write_values<u8>(places, to, 1, exchange); break;
        case 2: write_values<unsigned short>(places, to, 1, exchange); break;
        case 4: write_values<u32>(places, to, 1, exchange); break;
        default: write_values<u64>(places, to + half * sizeof(u64), step, exchange);
        }
    }
}

}  // namespace

// Rows of each bucket in each block's chunk: `counts[bucket * gridDim.x + block]`.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, RESIDENT_BLOCKS)
void partition_count(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows, i64* __restrict__ counts)
{
    __shared__ u32 counters[BUCKETS];
    for (u32 bucket = threadIdx.x; bucket < BUCKETS; bucket += BLOCK_THREADS)
        counters[bucket] = 0;
    __syncthreads();
    const Chunk chunk = chunk_of_block(rows);
    for (u64 base = chunk.from; base < chunk.end; base += TILE_ROWS) {
        const Buckets buckets(keys, valid, base, rows_of_tile(chunk, base));
#pragma unroll
        for (u32 turn = 0; turn < ROWS_PER_THREAD; ++turn)
            add_shared(counters, buckets.of[turn]);
    }
    __syncthreads();
    for (u32 bucket = threadIdx.x; bucket < BUCKETS; bucket += BLOCK_THREADS)
        counts[(u64)bucket * gridDim.x + blockIdx.x] = counters[bucket];
}

// Move keys, row numbers and columns to their partitions; `offsets` is the running sum of the counts, from zero.
// `widths[f]` is 1, 2, 4, 8 or 16 bytes; `row_of` is null where row numbers are not asked for.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, RESIDENT_BLOCKS)
void partition_rows(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 rows, const i64* __restrict__ offsets,
                    Key* __restrict__ keys_out, i32* __restrict__ row_of, const u8* const* columns,
                    u8* const* columns_out, const u32* __restrict__ widths, u32 fields)
{
    __shared__ i64 cursor[BUCKETS];
    __shared__ i64 ahead[BUCKETS];
    __shared__ u32 first[BUCKETS + 1];
    __shared__ unsigned short place_of[TILE_ROWS];
    __shared__ unsigned short bucket_at[TILE_ROWS];
    __shared__ u64 exchange[TILE_ROWS];
    for (u32 bucket = threadIdx.x; bucket < BUCKETS; bucket += BLOCK_THREADS)
        cursor[bucket] = offsets[(u64)bucket * gridDim.x + blockIdx.x];
    const Chunk chunk = chunk_of_block(rows);
    for (u64 base = chunk.from; base < chunk.end; base += TILE_ROWS) {
        const u32 tile_rows = rows_of_tile(chunk, base);
        for (u32 bucket = threadIdx.x; bucket <= BUCKETS; bucket += BLOCK_THREADS)
            first[bucket] = 0;
        const Buckets buckets(keys, valid, base, tile_rows);
        __syncthreads();
        u32 rank[ROWS_PER_THREAD];
#pragma unroll
        for (u32 turn = 0; turn < ROWS_PER_THREAD; ++turn)
            rank[turn] = add_shared(first, buckets.of[turn]);
        __syncthreads();
        // The first warp turns the counts into first places.
        if (threadIdx.x < WARP_LANES) {
            u32 before = 0;
            for (u32 start = 0; start < BUCKETS; start += WARP_LANES) {
                const u32 bucket = start + threadIdx.x;
                const u32 count = bucket < BUCKETS ? first[bucket] : 0;
                u32 sum = count;
                for (u32 distance = 1; distance < WARP_LANES; distance *= 2) {
                    const u32 other = __shfl_up_sync(FULL_WARP, sum, distance);
                    if (threadIdx.x >= distance)
                        sum += other;
                }
                if (bucket < BUCKETS) {
                    first[bucket] = before + sum - count;
                    ahead[bucket] = cursor[bucket] - (i64)first[bucket];
                    cursor[bucket] += count;
                }
                before += __shfl_sync(FULL_WARP, sum, WARP_LANES - 1);
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 turn = 0; turn < ROWS_PER_THREAD; ++turn) {
            const u32 bucket = buckets.of[turn];
            if (bucket < BUCKETS) {
                const u32 place = first[bucket] + rank[turn];
                (place_of + threadIdx.x)[turn * BLOCK_THREADS] = (unsigned short)place;
                bucket_at[place] = (unsigned short)bucket;
            }
        }
        const Places places{place_of, bucket_at, ahead, tile_rows};
        move_values(places, (const u8*)(keys + base), (u8*)keys_out, sizeof(Key), exchange);
        if (row_of != nullptr) {
            u64 numbers[ROWS_PER_THREAD];
#pragma unroll
            for (u32 turn = 0; turn < ROWS_PER_THREAD; ++turn)
                numbers[turn] = base + threadIdx.x + turn * BLOCK_THREADS;
            put(places, numbers, exchange);
            write_values<i32>(places, row_of, 1, exchange);
        }
        for (u32 field = 0; field < fields; ++field) {
            const u32 width = widths[field];
            move_values(places, columns[field] + base * width, columns_out[field], width, exchange);
        }
        __syncthreads();
    }
}

// What was found for partitioned probe rows, in the order and the row numbers from before: `found` has a place of the
// partitioned build side, or -1, for each place of the partitioned probe side. Where `build_row` is null only matches
// matter, and the place stands for the build row.
extern "C" __global__ void restore_order(const i32* __restrict__ found, u64 rows, const i32* __restrict__ probe_row,
                                         const i32* __restrict__ build_row, i32* __restrict__ found_row)
{
    for (u64 place = thread_index(); place < rows; place += thread_count()) {
        const i32 hit = found[place];
        found_row[probe_row[place]] = hit == NO_ROW || build_row == nullptr ? hit : build_row[hit];
    }
}
