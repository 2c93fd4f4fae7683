// Residual conditions over pairs of rows, compiled in: RESIDUAL is a C++ expression written from a condition's tree by
// `gpujoin.backends.cudf.residual`, over the helpers below.
//
// Values follow Spark: three-valued logic; NaN equals NaN and is above every other number; -0.0 equals 0.0. An operation
// that overflows in ANSI mode sets `failed`, whether or not Spark would have evaluated it for that row; the caller then
// evaluates the condition again, row by active row, and that decides.

#include "base.cuh"

#ifndef RESIDUAL
#define RESIDUAL literal<bool>(true)
#endif

using i8 = signed char;
using i16 = short;

struct Pair {
    const u8* const* columns;
    const u8* const* valids;
    const u64* constants;
    u64 left;
    u64 right;
    bool failed;
};

namespace {

template <class T>
__device__ inline bool nan(T value) { return value != value; }

template <class T>
__device__ inline bool less(T one, T two) { return one < two || (nan(two) && !nan(one)); }

template <class T>
__device__ inline bool equals(T one, T two) { return one == two || (nan(one) && nan(two)); }

template <class T>
struct Unsigned;
template <>
struct Unsigned<i32> {
    using Type = u32;
};
template <>
struct Unsigned<i64> {
    using Type = u64;
};

}  // namespace

// Each operation on doubles is rounded: no product may be fused into a sum.
#ifdef __CUDA_ARCH__
__device__ inline double rounded_sum(double a, double b) { return __dadd_rn(a, b); }
__device__ inline double rounded_product(double a, double b) { return __dmul_rn(a, b); }
#else
__device__ inline double rounded_sum(double a, double b) { return a + b; }
__device__ inline double rounded_product(double a, double b) { return a * b; }
#endif

enum Mode { WRAP, NULL_ON_OVERFLOW, FAIL };

template <class T>
struct Cell;

using Truth = Cell<bool>;

// The result of an integer operation, before it is said what becomes of an overflow.
template <class T>
struct Outcome {
    T value;
    bool known;
    bool overflow;

    template <Mode MODE>
    __device__ Cell<T> checked(Pair& pair) const
    {
        if (MODE == FAIL && known && overflow)
            pair.failed = true;
        return Cell<T>{value, known && !(MODE == NULL_ON_OVERFLOW && overflow)};
    }
};

// A value that may be null. Comparisons and logic follow SQL's three values.
template <class T>
struct Cell {
    T value;
    bool known;

    __device__ Truth eq(const Cell& b) const { return Truth{equals(value, b.value), known && b.known}; }
    __device__ Truth ne(const Cell& b) const { return Truth{!equals(value, b.value), known && b.known}; }
    __device__ Truth lt(const Cell& b) const { return Truth{less(value, b.value), known && b.known}; }
    __device__ Truth le(const Cell& b) const { return Truth{!less(b.value, value), known && b.known}; }
    __device__ Truth same(const Cell& b) const
    {
        return Truth{known && b.known ? equals(value, b.value) : !known && !b.known, true};
    }
    __device__ Truth is_null() const { return Truth{!known, true}; }
    __device__ Truth is_nan() const { return Truth{known && nan(value), true}; }

    template <class To>
    __device__ Cell<To> as() const { return Cell<To>{(To)value, known}; }

    __device__ Truth negated() const { return Truth{!value, known}; }
    __device__ Truth both(const Cell& b) const
    {
        const bool is_false = (known && !value) || (b.known && !b.value);
        return Truth{!is_false && value && b.value, is_false || (known && b.known)};
    }
    __device__ Truth either(const Cell& b) const
    {
        const bool is_true = (known && value) || (b.known && b.value);
        return Truth{is_true, is_true || (known && b.known)};
    }

    // Of 4- and 8-byte integers.
    __device__ Outcome<T> add(const Cell& b) const
    {
        using U = typename Unsigned<T>::Type;
        const T sum = (T)((U)value + (U)b.value);
        return Outcome<T>{sum, known && b.known, ((value ^ sum) & (b.value ^ sum)) < 0};
    }
    __device__ Outcome<T> subtract(const Cell& b) const
    {
        using U = typename Unsigned<T>::Type;
        const T difference = (T)((U)value - (U)b.value);
        return Outcome<T>{difference, known && b.known, ((value ^ b.value) & (value ^ difference)) < 0};
    }

    // Of doubles.
    __device__ Cell plus(const Cell& b) const { return Cell{rounded_sum(value, b.value), known && b.known}; }
    __device__ Cell minus(const Cell& b) const { return Cell{rounded_sum(value, -b.value), known && b.known}; }
    __device__ Cell times(const Cell& b) const { return Cell{rounded_product(value, b.value), known && b.known}; }
};

// A column of either side: `from_left(pair).column<i64>(3)`.
struct Row {
    const Pair& pair;
    u64 row;

    template <class T>
    __device__ Cell<T> column(u32 number) const
    {
        const bool known = pair.valids[number] == nullptr || pair.valids[number][row] != 0;
        return Cell<T>{known ? ((const T*)pair.columns[number])[row] : T(), known};
    }
    // Whether a column of any type is null.
    __device__ Truth missing(u32 number) const
    {
        return Truth{pair.valids[number] != nullptr && pair.valids[number][row] == 0, true};
    }
    __device__ Truth truth(u32 number) const
    {
        const Cell<u8> stored = column<u8>(number);
        return Truth{stored.value != 0, stored.known};
    }
};

__device__ inline Row from_left(const Pair& pair) { return Row{pair, pair.left}; }
__device__ inline Row from_right(const Pair& pair) { return Row{pair, pair.right}; }

template <class T>
__device__ inline Cell<T> literal(T value) { return Cell<T>{value, true}; }

// A constant of the condition, by its number. Constants are arguments, so conditions that differ in them are one module.
template <class T>
__device__ inline Cell<T> constant(const Pair& pair, u32 number)
{
    union {
        u64 word;
        T value;
    } stored;
    stored.word = pair.constants[number];
    return Cell<T>{stored.value, true};
}

template <class T>
__device__ inline Cell<T> unknown() { return Cell<T>{T(), false}; }

// -- kernels ------------------------------------------------------------------------------------------------------

namespace {

__device__ inline bool holds(Pair& pair)
{
    const Truth truth = RESIDUAL;
    return truth.known && truth.value;
}

}  // namespace

// For each pair, whether the condition is true. A side's rows are those of its map, or, without a map, the pairs' own.
extern "C" __global__ void residual_mask(const u8* const* columns, const u8* const* valids,
                                         const u64* __restrict__ constants, const i32* __restrict__ left_row,
                                         const i32* __restrict__ right_row, u64 pairs, u8* __restrict__ mask,
                                         u32* failed)
{
    bool any_failed = false;
    for (u64 i = thread_index(); i < pairs; i += thread_count()) {
        Pair pair{columns, valids, constants, left_row == nullptr ? i : (u64)left_row[i],
                  right_row == nullptr ? i : (u64)right_row[i], false};
        mask[i] = holds(pair);
        any_failed |= pair.failed;
    }
    if (any_failed)
        atomicOr(failed, 1u);
}

// The matches of a unique build side for which the condition is true, and how many they are. The left side of the
// condition is the probe side, or, with `swapped`, the build side.
extern "C" __global__ void residual_found(const u8* const* columns, const u8* const* valids,
                                          const u64* __restrict__ constants, const i32* __restrict__ found, u64 rows,
                                          u32 swapped, i32* __restrict__ kept, u64* __restrict__ matches, u32* failed)
{
    bool any_failed = false;
    u64 mine = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        const i32 hit = found[row];
        bool keep = false;
        if (hit != NO_ROW) {
            Pair pair{columns, valids, constants, swapped ? (u64)hit : row, swapped ? row : (u64)hit, false};
            keep = holds(pair);
            any_failed |= pair.failed;
        }
        kept[row] = keep ? hit : NO_ROW;
        mine += keep;
    }
    add_warp(matches, mine);
    if (any_failed)
        atomicOr(failed, 1u);
}
