// As-of search: for each probe row the nearest build row before its point, after it, or either.
//
// Points are 64-bit codes that order as the values do (`gpujoin/engine/ordering.py`). One search finds the place where the
// probe's point would be put; the rows before and after it are its neighbours there. Distances of integer codes are exact
// in 64 unsigned bits; those of floats are taken in double precision between the numbers that the codes stand for.

#include "ordered.cuh"

// Bytes of the floats that codes stand for; 0: codes are integers.
#ifndef FLOAT_BYTES
#define FLOAT_BYTES 0
#endif
static_assert(FLOAT_BYTES == 0 || FLOAT_BYTES == 4 || FLOAT_BYTES == 8, "floats have 4 or 8 bytes");

namespace {

#if FLOAT_BYTES == 0
using Distance = u64;

__device__ inline Distance distance(i64 one, i64 two) { return one < two ? (u64)two - (u64)one : (u64)one - (u64)two; }
#else
using Distance = double;

// Negative floats have the bits below the sign turned over in their code.
__device__ inline double number(i64 code)
{
#if FLOAT_BYTES == 8
    return __longlong_as_double(code < 0 ? code ^ 0x7fffffffffffffffll : code);
#else
    const i32 bits = (i32)code;
    return (double)__int_as_float(bits < 0 ? bits ^ 0x7fffffff : bits);
#endif
}

// Infinity less infinity is no number, so equal ones are compared as such.
__device__ inline Distance distance(i64 one, i64 two)
{
    const double apart = number(one) - number(two);
    return one == two ? 0.0 : apart < 0.0 ? -apart : apart;
}
#endif

}  // namespace

// The build row of each probe row, or -1. `backward`, `forward`: whether rows before or after the point are wanted; of
// both the nearer one, of two as near the one before. `exact`: whether rows at the point are. Of several rows of one
// point the last before, and the first after, is taken. A row further away than `tolerance` is none. For the rest see
// `find_stretches`.
extern "C" __global__ void nearest_rows(const i64* __restrict__ points, u64 places, const i64* __restrict__ samples,
                                        u32 sample_count, u32 shift, const i32* __restrict__ first, u64 groups,
                                        const i32* __restrict__ placed, const i64* __restrict__ sought,
                                        const u8* __restrict__ valid, const i64* __restrict__ group_of, u64 rows,
                                        i32 backward, i32 forward, i32 exact, Distance tolerance,
                                        i32* __restrict__ found, u64* __restrict__ matches)
{
    __shared__ i64 shared[MOST_SAMPLES];
    const Ordered in = staged(points, samples, sample_count, shift, shared);
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        const Stretch among = places_for(row, places, valid, first, groups, group_of);
        const i64 point = sought[row];
        i32 best = NO_ROW;
        Distance least = tolerance;
        if (backward) {
            const u64 after = search(in, among.from, among.end, point, exact != 0);
            if (after > among.from && distance(points[after - 1], point) <= least) {
                best = placed[after - 1];
                least = distance(points[after - 1], point);
            }
        }
        if (forward) {
            const u64 next = search(in, among.from, among.end, point, exact == 0);
            if (next < among.end) {
                const Distance apart = distance(points[next], point);
                if (apart < least || (apart == least && best == NO_ROW))
                    best = placed[next];
            }
        }
        found[row] = best;
        mine += best != NO_ROW;
    }
    add_warp(matches, mine);
}
