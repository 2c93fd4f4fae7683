// Key columns as key codes: packed exactly into 64 or 128 bits where they fit, else hashed to 64 bits and verified.
//
// A layout (`gpujoin.launch.normalise`) gives every column a stretch of bits. One launch a column puts its values there:
// `code[row * words + …] |= value << shift`; the first column writes the codes. Values are normalised on the way:
// integers, dates, times and timestamps are their distance from the smallest build value; floats are their bits, with
// -0.0 as 0.0 and one NaN; decimals are their unscaled integers; texts are their bytes, and their length unless no build
// text ends in a zero byte.
//
// A row has no code, and matches nothing, where a key that is not null-safe is null, and where a value cannot be one of
// the build side's: outside their range, or longer than all of them.

#include "key.cuh"

#ifndef VALUE_BYTES
#define VALUE_BYTES 8
#endif
static_assert(VALUE_BYTES == 1 || VALUE_BYTES == 2 || VALUE_BYTES == 4 || VALUE_BYTES == 8 || VALUE_BYTES == 16,
              "values have 1, 2, 4, 8 or 16 bytes");
#ifndef FLOATING
#define FLOATING 0
#endif
static_assert(!FLOATING || VALUE_BYTES == 4 || VALUE_BYTES == 8, "floats have 4 or 8 bytes");
#ifndef OFFSET_BYTES
#define OFFSET_BYTES 4
#endif

#if VALUE_BYTES == 16
struct alignas(16) Stored {
    u64 low;
    u64 high;
};
#elif VALUE_BYTES == 8
using Stored = i64;
#elif VALUE_BYTES == 4
using Stored = i32;
#elif VALUE_BYTES == 2
using Stored = short;
#else
using Stored = signed char;
#endif

#if OFFSET_BYTES == 8
using Offset = i64;
#else
using Offset = i32;
#endif

namespace {

struct Bits {
    u64 low;
    u64 high;
};

// A value as bits: sign-extended, a float's after normalisation.
__device__ inline Bits bits_of(const Stored& value)
{
#if VALUE_BYTES == 16
    return Bits{value.low, value.high};
#elif FLOATING && VALUE_BYTES == 8
    const u64 bits = (u64)value;
    const u64 magnitude = bits & 0x7fffffffffffffffull;
    if (magnitude == 0)
        return Bits{0, 0};
    return Bits{magnitude > 0x7ff0000000000000ull ? 0x7ff8000000000000ull : bits, 0};
#elif FLOATING
    const u32 bits = (u32)value;
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude == 0)
        return Bits{0, 0};
    return Bits{magnitude > 0x7f800000u ? 0x7fc00000u : bits, 0};
#else
    return Bits{(u64)(i64)value, value < 0 ? ~0ull : 0ull};
#endif
}

// A value at `shift` of a code of two words, of which the second stays zero where a code has one. Bits of the value above
// its width are zero.
__device__ inline Bits shifted(const Bits& value, u32 shift)
{
    if (shift >= 64)
        return Bits{0, value.low << (shift - 64)};
    return Bits{value.low << shift, shift == 0 ? value.high : value.low >> (64 - shift) | value.high << shift};
}

__device__ inline Bits bit(i32 at) { return shifted(Bits{1, 0}, (u32)at); }

// Put what a column adds to the code of a row. The first column writes code and validity, the others change them.
__device__ inline void put(u64* __restrict__ codes, u8* __restrict__ coded, u64 row, u32 words, u32 first, const Bits& added,
                           bool has_code)
{
    u64* code = codes + row * words;
    if (first) {
        code[0] = added.low;
        if (words == 2)
            code[1] = added.high;
        coded[row] = has_code;
        return;
    }
    if (!has_code) {
        coded[row] = 0;
        return;
    }
    if (added.low != 0)
        code[0] |= added.low;
    if (words == 2 && added.high != 0)
        code[1] |= added.high;
}

__device__ inline bool is_null(const u8* __restrict__ valid, u64 row) { return valid != nullptr && valid[row] == 0; }

// Hash of one value on top of the hash of the columns before.
__device__ inline u64 fold(u64 hash, u64 word) { return mix(hash ^ mix(word + 0x2545f4914f6cdd1dull)); }

// The bytes `from … end - 1` as a word, 8 at most, the first one lowest. Of the array only `limit` bytes may be read: where the
// aligned words that hold these bytes lie in it, they are read whole.
__device__ inline u64 text_word(const u8* __restrict__ bytes, i64 from, i64 end, i64 limit)
{
    const u32 length = (u32)(end - from);
    if (length == 0)
        return 0;
    const u32 skip = (u32)((u64)(bytes + from) % 8);
    const i64 aligned = from - skip;
    const bool straddles = skip + length > 8;
    if (aligned >= 0 && aligned + (straddles ? 16 : 8) <= limit) {
        const u64* words = (const u64*)(bytes + aligned);
        u64 word = words[0] >> (8 * skip);
        if (straddles)
            word |= words[1] << (64 - 8 * skip);
        return length == 8 ? word : word & ((1ull << (8 * length)) - 1);
    }
    u64 word = 0;
    for (u32 i = 0; i < length; ++i)
        word |= (u64)bytes[from + i] << (8 * i);
    return word;
}

}  // namespace

// Values of a fixed width. With `ranged`, what is put is the distance from `low`, and rows whose distance is above `span`
// have no code. `null_bit` is the bit that says "null" of a null-safe key, -1 otherwise. Nothing is read of `codes` and
// `coded` where the column is the `first`.
extern "C" __global__ void pack_values(const Stored* __restrict__ values, const u8* __restrict__ valid, u64 rows,
                                       u32 words, u32 first, u32 shift, u32 width, u32 ranged, i64 low, u64 span,
                                       i32 null_bit, u64* __restrict__ codes, u8* __restrict__ coded)
{
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        if (is_null(valid, row)) {
            put(codes, coded, row, words, first, null_bit < 0 ? Bits{0, 0} : bit(null_bit), null_bit >= 0);
            continue;
        }
        Bits value = bits_of(values[row]);
        bool has_code = true;
        if (ranged) {
            value = Bits{value.low - (u64)low, 0};
            has_code = value.low <= span;
        } else if (width < 128) {
            value.high = 0;
            if (width < 64)
                value.low &= (1ull << width) - 1;
        }
        put(codes, coded, row, words, first, has_code ? shifted(value, shift) : Bits{0, 0}, has_code);
    }
}

// Texts of at most `longest` bytes, 16 at most. `length_shift` is where their length is put, or -1: then no text that
// ends in a zero byte has a code.
extern "C" __global__ void pack_texts(const Offset* __restrict__ offsets, const u8* __restrict__ bytes,
                                      const u8* __restrict__ valid, u64 rows, u32 words, u32 first, u32 shift, u32 longest,
                                      i32 length_shift, i32 null_bit, u64* __restrict__ codes, u8* __restrict__ coded)
{
    const i64 limit = offsets[rows];
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        if (is_null(valid, row)) {
            put(codes, coded, row, words, first, null_bit < 0 ? Bits{0, 0} : bit(null_bit), null_bit >= 0);
            continue;
        }
        const i64 from = offsets[row];
        const i64 end = offsets[row + 1];
        const i64 length = end - from;
        if (length > (i64)longest) {
            put(codes, coded, row, words, first, Bits{0, 0}, false);
            continue;
        }
        const i64 middle = length > 8 ? from + 8 : end;
        const Bits text{text_word(bytes, from, middle, limit), text_word(bytes, middle, end, limit)};
        const bool ends_in_zero = length > 0 && (length > 8 ? text.high >> (8 * (length - 9)) : text.low >> (8 * (length - 1))) == 0;
        Bits code = shifted(text, shift);
        if (length_shift >= 0) {
            const Bits counted = shifted(Bits{(u64)length, 0}, (u32)length_shift);
            code = Bits{code.low | counted.low, code.high | counted.high};
        }
        const bool has_code = length_shift >= 0 || !ends_in_zero;
        put(codes, coded, row, words, first, has_code ? code : Bits{0, 0}, has_code);
    }
}

// The longest text, and whether any ends in a zero byte; `facts` is zero before. Null rows do not count.
extern "C" __global__ void text_facts(const Offset* __restrict__ offsets, const u8* __restrict__ bytes,
                                      const u8* __restrict__ valid, u64 rows, u64* __restrict__ facts)
{
    u64 longest = 0;
    u64 zero_ended = 0;
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        if (is_null(valid, row))
            continue;
        const i64 from = offsets[row];
        const i64 end = offsets[row + 1];
        longest = (u64)(end - from) > longest ? (u64)(end - from) : longest;
        if (end > from && bytes[end - 1] == 0)
            zero_ended = 1;
    }
    for (u32 distance = WARP_LANES / 2; distance > 0; distance /= 2) {
        const u64 other = __shfl_down_sync(FULL_WARP, longest, distance);
        longest = other > longest ? other : longest;
    }
    if (lane() == 0 && longest != 0)
        atomicMax(&facts[0], longest);
    if (__any_sync(FULL_WARP, zero_ended != 0) && lane() == 0)
        atomicOr(&facts[1], 1ull);
}

// Hashes of fixed-width values, folded into those of the columns before; a seed is there before the first. A null-safe
// null hashes like no value.
extern "C" __global__ void hash_values(const Stored* __restrict__ values, const u8* __restrict__ valid, u64 rows,
                                       u32 null_safe, u64* __restrict__ codes, u8* __restrict__ coded)
{
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        if (is_null(valid, row)) {
            if (null_safe)
                codes[row] = mix(codes[row]);
            else
                coded[row] = 0;
            continue;
        }
        const Bits value = bits_of(values[row]);
        codes[row] = fold(fold(codes[row], value.low), value.high) & HASH_MASK;
    }
}

// Hashes of texts, likewise.
extern "C" __global__ void hash_texts(const Offset* __restrict__ offsets, const u8* __restrict__ bytes,
                                      const u8* __restrict__ valid, u64 rows, u32 null_safe, u64* __restrict__ codes,
                                      u8* __restrict__ coded)
{
    const i64 limit = offsets[rows];
    for (u64 row = thread_index(); row < rows; row += thread_count()) {
        if (is_null(valid, row)) {
            if (null_safe)
                codes[row] = mix(codes[row]);
            else
                coded[row] = 0;
            continue;
        }
        const i64 end = offsets[row + 1];
        u64 hash = fold(codes[row], (u64)(end - offsets[row]));
        for (i64 at = offsets[row]; at < end; at += 8)
            hash = fold(hash, text_word(bytes, at, at + 8 < end ? at + 8 : end, limit));
        codes[row] = hash & HASH_MASK;
    }
}

// Whether candidate pairs have equal values; `equal` is and-ed. With `null_safe`, two nulls are equal.
extern "C" __global__ void verify_values(const Stored* __restrict__ left, const u8* __restrict__ left_valid,
                                         const i32* __restrict__ left_row, const Stored* __restrict__ right,
                                         const u8* __restrict__ right_valid, const i32* __restrict__ right_row, u64 pairs,
                                         u32 null_safe, u8* __restrict__ equal)
{
    for (u64 pair = thread_index(); pair < pairs; pair += thread_count()) {
        const u64 one = left_row[pair];
        const u64 two = right_row[pair];
        const bool null_one = is_null(left_valid, one);
        const bool null_two = is_null(right_valid, two);
        bool agree = null_safe && null_one && null_two;
        if (!null_one && !null_two) {
            const Bits a = bits_of(left[one]);
            const Bits b = bits_of(right[two]);
            agree = a.low == b.low && a.high == b.high;
        }
        if (!agree)
            equal[pair] = 0;
    }
}

// The same for texts; the sides have `left_rows` and `right_rows` of them.
extern "C" __global__ void verify_texts(const Offset* __restrict__ left, const u8* __restrict__ left_bytes,
                                        const u8* __restrict__ left_valid, u64 left_rows, const i32* __restrict__ left_row,
                                        const Offset* __restrict__ right, const u8* __restrict__ right_bytes,
                                        const u8* __restrict__ right_valid, u64 right_rows,
                                        const i32* __restrict__ right_row, u64 pairs, u32 null_safe, u8* __restrict__ equal)
{
    const i64 left_limit = left[left_rows];
    const i64 right_limit = right[right_rows];
    for (u64 pair = thread_index(); pair < pairs; pair += thread_count()) {
        const u64 one = left_row[pair];
        const u64 two = right_row[pair];
        const bool null_one = is_null(left_valid, one);
        const bool null_two = is_null(right_valid, two);
        bool agree = null_safe && null_one && null_two;
        if (!null_one && !null_two) {
            const i64 from_left = left[one];
            const i64 from_right = right[two];
            const i64 length = left[one + 1] - from_left;
            agree = length == right[two + 1] - from_right;
            for (i64 i = 0; agree && i < length; i += 8) {
                const i64 end = i + 8 < length ? i + 8 : length;
                agree = text_word(left_bytes, from_left + i, from_left + end, left_limit) ==
                        text_word(right_bytes, from_right + i, from_right + end, right_limit);
            }
        }
        if (!agree)
            equal[pair] = 0;
    }
}
