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
// Each block takes one consecutive chunk of the rows, tile by tile. In a tile, rows are ranked by partition in shared
// memory, and every column is written partition by partition, so that neighbouring threads write neighbouring places.
// Each row is ranked by one atomic operation in shared memory, and rows of a partition are in no order. (Ranking the lanes of
// a warp together, by `match.any`, costs several times as much on an H200.)

#include "key.cuh"
#include "value.cuh"

#ifndef PARTITION_BITS
#define PARTITION_BITS 8
#endif
#ifndef ROWS_PER_THREAD
#define ROWS_PER_THREAD 16
#endif
static_assert(PARTITION_BITS >= 1 && PARTITION_BITS <= 10, "the counters of a block fit its shared memory");

// Blocks of a multiprocessor: as many as the launcher makes, so that a pass is one wave.
constexpr u32 RESIDENT_BLOCKS = 4;

constexpr u32 PARTITIONS = 1u << PARTITION_BITS;
constexpr u32 BUCKETS = PARTITIONS + 1;
constexpr u32 TILE_ROWS = BLOCK_THREADS * ROWS_PER_THREAD;
static_assert(TILE_ROWS <= 65536, "places and ranks in a tile are 16-bit numbers");

namespace {

__device__ inline u32 bucket_of(const Key* __restrict__ keys, const u8* __restrict__ valid, u64 row)
{
    return may_match(valid, row) ? (u32)(hashed(keys[row]) >> (64 - PARTITION_BITS)) : PARTITIONS;
}

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
    for (u64 base = chunk.from; base < chunk.end; base += BLOCK_THREADS) {
        const u64 row = base + threadIdx.x;
        add_shared(counters, row < chunk.end ? bucket_of(keys, valid, row) : BUCKETS);
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
    __shared__ u32 first[BUCKETS + 1];
    __shared__ unsigned short local_row[TILE_ROWS];
    __shared__ unsigned short bucket_at[TILE_ROWS];
    for (u32 bucket = threadIdx.x; bucket < BUCKETS; bucket += BLOCK_THREADS)
        cursor[bucket] = offsets[(u64)bucket * gridDim.x + blockIdx.x];
    const Chunk chunk = chunk_of_block(rows);
    for (u64 base = chunk.from; base < chunk.end; base += TILE_ROWS) {
        const u32 tile_rows = chunk.end - base < TILE_ROWS ? (u32)(chunk.end - base) : TILE_ROWS;
        for (u32 bucket = threadIdx.x; bucket <= BUCKETS; bucket += BLOCK_THREADS)
            first[bucket] = 0;
        __syncthreads();
        // The bucket of each row of the thread, and its rank there above 16 bits.
        u32 ranked[ROWS_PER_THREAD];
#pragma unroll
        for (u32 turn = 0; turn < ROWS_PER_THREAD; ++turn) {
            const u32 local = turn * BLOCK_THREADS + threadIdx.x;
            const u32 bucket = local < tile_rows ? bucket_of(keys, valid, base + local) : BUCKETS;
            ranked[turn] = add_shared(first, bucket) << 16 | bucket;
        }
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
                if (bucket < BUCKETS)
                    first[bucket] = before + sum - count;
                before += __shfl_sync(FULL_WARP, sum, WARP_LANES - 1);
            }
            if (threadIdx.x == 0)
                first[BUCKETS] = before;
        }
        __syncthreads();
#pragma unroll
        for (u32 turn = 0; turn < ROWS_PER_THREAD; ++turn) {
            const u32 bucket = ranked[turn] & 0xffffu;
            if (bucket < BUCKETS) {
                const u32 place = first[bucket] + (ranked[turn] >> 16);
                local_row[place] = (unsigned short)(turn * BLOCK_THREADS + threadIdx.x);
                bucket_at[place] = (unsigned short)bucket;
            }
        }
        __syncthreads();
        for (u32 place = threadIdx.x; place < tile_rows; place += BLOCK_THREADS) {
            const u32 bucket = bucket_at[place];
            const u64 row = base + local_row[place];
            const u64 to = (u64)cursor[bucket] + (place - first[bucket]);
            keys_out[to] = keys[row];
            if (row_of != nullptr)
                row_of[to] = (i32)row;
        }
        for (u32 field = 0; field < fields; ++field) {
            const u32 width = widths[field];
            const u8* from = columns[field] + base * width;
            u8* out = columns_out[field];
            for (u32 place = threadIdx.x; place < tile_rows; place += BLOCK_THREADS) {
                const u32 bucket = bucket_at[place];
                const u64 to = (u64)cursor[bucket] + (place - first[bucket]);
                copy_value(out + to * width, from + (u64)local_row[place] * width, width);
            }
        }
        __syncthreads();
        for (u32 bucket = threadIdx.x; bucket < BUCKETS; bucket += BLOCK_THREADS)
            cursor[bucket] += first[bucket + 1] - first[bucket];
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
