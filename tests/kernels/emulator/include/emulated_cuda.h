// The CUDA C++ that gpujoin's kernels are written in, for g++ on a CPU. Put before a .cu file by -include; the .cu file
// itself is compiled unchanged. What is not declared here (cooperative groups, __activemask, warp functions without
// _sync, mutable device globals) does not compile, on purpose.
#pragma once

#if !defined(__SANITIZE_THREAD__)
#error "emulated kernels are compiled with -fsanitize=thread, whose callbacks check every access"
#endif

#if defined(EMU_LIST_KERNELS)
#define __global__ EMU_KERNEL
#define __launch_bounds__(...) EMU_BOUNDS(__VA_ARGS__)
#else
#define __global__ __attribute__((visibility("default")))
#define __launch_bounds__(...)
#define EMU_DYNAMIC_SHARED
#endif
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __constant__ static
// Used: g++ must not conclude from a missing write that the variable is zero.
#define __shared__ __attribute__((used)) static
#define __align__(n) alignas(n)
#define __builtin_assume(condition) ((void)0)
#define GPUJOIN_EMULATED 1

struct dim3 {
    unsigned x, y, z;
};

namespace emu {

typedef unsigned int u32;
typedef unsigned long long u64;

enum class WarpOp : u32 { sync, ballot, any, all, shfl, shfl_up, shfl_down, shfl_xor, match_any, match_all, add, min, max, min_signed, max_signed, and_, or_, xor_ };
enum class Rmw : u32 { add, exchange, compare_exchange, min, max, and_, or_, xor_, inc, dec };
enum class Kind : u32 { i32, u32, i64, u64, f32, f64 };
enum class Barrier : u32 { plain, count, and_, or_ };

}  // namespace emu

extern "C" {
__attribute__((const)) dim3 emu_thread_index();
__attribute__((const)) dim3 emu_block_index();
__attribute__((const)) dim3 emu_block_extent();
__attribute__((const)) dim3 emu_grid_extent();
int emu_barrier(emu::Barrier kind, int predicate, const char* file, int line);
emu::u64 emu_warp(emu::WarpOp op, unsigned mask, emu::u64 value, unsigned operand, unsigned width, const char* file, int line);
emu::u64 emu_atomic(void* address, emu::Rmw op, emu::Kind kind, emu::u64 operand, emu::u64 compare);
void emu_fence(int block_only);
void emu_yield();
void* emu_memcpy(void* to, const void* from, unsigned long bytes);
void* emu_memset(void* to, int value, unsigned long bytes);
[[noreturn]] void emu_trap(const char* what, const char* file, int line);
}

#define threadIdx (emu_thread_index())
#define blockIdx (emu_block_index())
#define blockDim (emu_block_extent())
#define gridDim (emu_grid_extent())
#define warpSize 32
#define memcpy emu_memcpy
#define memset emu_memset
#define assert(condition) ((condition) ? (void)0 : emu_trap("assertion failed: " #condition, __FILE__, __LINE__))
#define __trap() emu_trap("__trap()", __FILE__, __LINE__)

#define EMU_VECTOR2(name, scalar, alignment)                                                  \
    struct alignas(alignment) name {                                                          \
        scalar x, y;                                                                          \
    };                                                                                        \
    static __forceinline__ name make_##name(scalar x, scalar y) { return name{x, y}; }
#define EMU_VECTOR4(name, scalar, alignment)                                                  \
    struct alignas(alignment) name {                                                          \
        scalar x, y, z, w;                                                                    \
    };                                                                                        \
    static __forceinline__ name make_##name(scalar x, scalar y, scalar z, scalar w) { return name{x, y, z, w}; }

EMU_VECTOR2(char2, signed char, 2)
EMU_VECTOR2(uchar2, unsigned char, 2)
EMU_VECTOR2(short2, short, 4)
EMU_VECTOR2(ushort2, unsigned short, 4)
EMU_VECTOR2(int2, int, 8)
EMU_VECTOR2(uint2, unsigned int, 8)
EMU_VECTOR2(longlong2, long long, 16)
EMU_VECTOR2(ulonglong2, unsigned long long, 16)
EMU_VECTOR2(float2, float, 8)
EMU_VECTOR2(double2, double, 16)
EMU_VECTOR4(char4, signed char, 4)
EMU_VECTOR4(uchar4, unsigned char, 4)
EMU_VECTOR4(short4, short, 8)
EMU_VECTOR4(ushort4, unsigned short, 8)
EMU_VECTOR4(int4, int, 16)
EMU_VECTOR4(uint4, unsigned int, 16)
EMU_VECTOR4(float4, float, 16)

#define EMU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// Barriers and fences. As on a device, only these order plain memory accesses.

static __forceinline__ void __syncthreads(EMU_SITE) { emu_barrier(emu::Barrier::plain, 0, file, line); }
static __forceinline__ int __syncthreads_count(int predicate, EMU_SITE) { return emu_barrier(emu::Barrier::count, predicate, file, line); }
static __forceinline__ int __syncthreads_and(int predicate, EMU_SITE) { return emu_barrier(emu::Barrier::and_, predicate, file, line); }
static __forceinline__ int __syncthreads_or(int predicate, EMU_SITE) { return emu_barrier(emu::Barrier::or_, predicate, file, line); }
static __forceinline__ void __syncwarp(unsigned mask = 0xffffffffu, EMU_SITE) { emu_warp(emu::WarpOp::sync, mask, 0, 0, 32, file, line); }
static __forceinline__ void __threadfence() { emu_fence(0); }
static __forceinline__ void __threadfence_system() { emu_fence(0); }
static __forceinline__ void __threadfence_block() { emu_fence(1); }
static __forceinline__ void __nanosleep(unsigned) { emu_yield(); }

// Votes, shuffles, matches, reductions.

static __forceinline__ unsigned __ballot_sync(unsigned mask, int predicate, EMU_SITE) { return (unsigned)emu_warp(emu::WarpOp::ballot, mask, predicate != 0, 0, 32, file, line); }
static __forceinline__ int __any_sync(unsigned mask, int predicate, EMU_SITE) { return (int)emu_warp(emu::WarpOp::any, mask, predicate != 0, 0, 32, file, line); }
static __forceinline__ int __all_sync(unsigned mask, int predicate, EMU_SITE) { return (int)emu_warp(emu::WarpOp::all, mask, predicate != 0, 0, 32, file, line); }

#define EMU_SHUFFLE_TYPE(type)                                                                                              \
    static __forceinline__ emu::u64 emu_bits(type value) { emu::u64 bits = 0; __builtin_memcpy(&bits, &value, sizeof value); return bits; } \
    static __forceinline__ type emu_value(emu::u64 bits, type) { type value; __builtin_memcpy(&value, &bits, sizeof value); return value; } \
    static __forceinline__ type __shfl_sync(unsigned mask, type v, int lane, int width = 32, EMU_SITE) { return emu_value(emu_warp(emu::WarpOp::shfl, mask, emu_bits(v), (unsigned)lane, (unsigned)width, file, line), v); } \
    static __forceinline__ type __shfl_up_sync(unsigned mask, type v, unsigned delta, int width = 32, EMU_SITE) { return emu_value(emu_warp(emu::WarpOp::shfl_up, mask, emu_bits(v), delta, (unsigned)width, file, line), v); } \
    static __forceinline__ type __shfl_down_sync(unsigned mask, type v, unsigned delta, int width = 32, EMU_SITE) { return emu_value(emu_warp(emu::WarpOp::shfl_down, mask, emu_bits(v), delta, (unsigned)width, file, line), v); } \
    static __forceinline__ type __shfl_xor_sync(unsigned mask, type v, int lanes, int width = 32, EMU_SITE) { return emu_value(emu_warp(emu::WarpOp::shfl_xor, mask, emu_bits(v), (unsigned)lanes, (unsigned)width, file, line), v); } \
    static __forceinline__ unsigned __match_any_sync(unsigned mask, type v, EMU_SITE) { return (unsigned)emu_warp(emu::WarpOp::match_any, mask, emu_bits(v), 0, 32, file, line); } \
    static __forceinline__ unsigned __match_all_sync(unsigned mask, type v, int* same, EMU_SITE) { unsigned found = (unsigned)emu_warp(emu::WarpOp::match_all, mask, emu_bits(v), 0, 32, file, line); *same = found != 0; return found; }
EMU_SHUFFLE_TYPE(int)
EMU_SHUFFLE_TYPE(unsigned int)
EMU_SHUFFLE_TYPE(long)
EMU_SHUFFLE_TYPE(unsigned long)
EMU_SHUFFLE_TYPE(long long)
EMU_SHUFFLE_TYPE(unsigned long long)
EMU_SHUFFLE_TYPE(float)
EMU_SHUFFLE_TYPE(double)

#define EMU_REDUCE(name, type, op) \
    static __forceinline__ type name(unsigned mask, type v, EMU_SITE) { return (type)emu_warp(emu::WarpOp::op, mask, (unsigned)v, 0, 32, file, line); }
EMU_REDUCE(__reduce_add_sync, unsigned, add)
EMU_REDUCE(__reduce_add_sync, int, add)
EMU_REDUCE(__reduce_min_sync, unsigned, min)
EMU_REDUCE(__reduce_min_sync, int, min_signed)
EMU_REDUCE(__reduce_max_sync, unsigned, max)
EMU_REDUCE(__reduce_max_sync, int, max_signed)
EMU_REDUCE(__reduce_and_sync, unsigned, and_)
EMU_REDUCE(__reduce_or_sync, unsigned, or_)
EMU_REDUCE(__reduce_xor_sync, unsigned, xor_)

// Atomics.

#define EMU_ATOMIC(name, op, type, kind) \
    static __forceinline__ type name(type* p, type v) { return emu_value(emu_atomic(p, emu::Rmw::op, emu::Kind::kind, emu_bits(v), 0), v); }
#define EMU_ATOMIC_INTEGERS(name, op)          \
    EMU_ATOMIC(name, op, int, i32)             \
    EMU_ATOMIC(name, op, unsigned, u32)        \
    EMU_ATOMIC(name, op, unsigned long long, u64)
EMU_ATOMIC_INTEGERS(atomicAdd, add)
EMU_ATOMIC(atomicAdd, add, float, f32)
EMU_ATOMIC(atomicAdd, add, double, f64)
EMU_ATOMIC_INTEGERS(atomicExch, exchange)
EMU_ATOMIC(atomicExch, exchange, float, f32)
EMU_ATOMIC_INTEGERS(atomicMin, min)
EMU_ATOMIC(atomicMin, min, long long, i64)
EMU_ATOMIC_INTEGERS(atomicMax, max)
EMU_ATOMIC(atomicMax, max, long long, i64)
EMU_ATOMIC_INTEGERS(atomicAnd, and_)
EMU_ATOMIC_INTEGERS(atomicOr, or_)
EMU_ATOMIC_INTEGERS(atomicXor, xor_)
EMU_ATOMIC(atomicInc, inc, unsigned, u32)
EMU_ATOMIC(atomicDec, dec, unsigned, u32)
static __forceinline__ int atomicSub(int* p, int v) { return atomicAdd(p, (int)(0u - (unsigned)v)); }
static __forceinline__ unsigned atomicSub(unsigned* p, unsigned v) { return atomicAdd(p, 0u - v); }
#define EMU_CAS(type, kind) \
    static __forceinline__ type atomicCAS(type* p, type compare, type v) { return emu_value(emu_atomic(p, emu::Rmw::compare_exchange, emu::Kind::kind, emu_bits(v), emu_bits(compare)), v); }
EMU_CAS(int, i32)
EMU_CAS(unsigned, u32)
EMU_CAS(unsigned long long, u64)
#define EMU_SCOPED(name)                                                                                    \
    template <class T> static __forceinline__ T name##_block(T* p, T v) { return name(p, v); }              \
    template <class T> static __forceinline__ T name##_system(T* p, T v) { return name(p, v); }
EMU_SCOPED(atomicAdd)
EMU_SCOPED(atomicExch)
EMU_SCOPED(atomicMin)
EMU_SCOPED(atomicMax)
EMU_SCOPED(atomicOr)
EMU_SCOPED(atomicAnd)

// Bits and integers.

static __forceinline__ int __popc(unsigned v) { return __builtin_popcount(v); }
static __forceinline__ int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static __forceinline__ int __ffs(int v) { return __builtin_ffs(v); }
static __forceinline__ int __ffsll(long long v) { return __builtin_ffsll(v); }
static __forceinline__ int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
static __forceinline__ int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
static __forceinline__ unsigned long long __brevll(unsigned long long v) {
    unsigned long long r = 0;
    for (int i = 0; i < 64; ++i) r |= ((v >> i) & 1ull) << (63 - i);
    return r;
}
static __forceinline__ unsigned __brev(unsigned v) { return (unsigned)(__brevll(v) >> 32); }
static __forceinline__ unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = ((unsigned long long)y << 32) | x;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned s = (selector >> (4 * i)) & 0xfu;
        unsigned b = (unsigned)(bytes >> (8 * (s & 7u))) & 0xffu;
        if (s & 8u) b = (b & 0x80u) ? 0xffu : 0u;
        r |= b << (8 * i);
    }
    return r;
}
static __forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) { return (unsigned)(((((unsigned long long)high << 32) | low) << (by & 31u)) >> 32); }
static __forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return (unsigned)((((unsigned long long)high << 32) | low) >> (by & 31u)); }
static __forceinline__ unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static __forceinline__ int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
static __forceinline__ unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)(((unsigned __int128)a * b) >> 64); }
static __forceinline__ long long __mul64hi(long long a, long long b) { return (long long)(((__int128)a * b) >> 64); }

#define EMU_MIN_MAX(type)                                                                  \
    static __forceinline__ type min(type a, type b) { return b < a ? b : a; }              \
    static __forceinline__ type max(type a, type b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
EMU_MIN_MAX(float)
EMU_MIN_MAX(double)

static __forceinline__ int __float_as_int(float v) { int r; __builtin_memcpy(&r, &v, 4); return r; }
static __forceinline__ unsigned __float_as_uint(float v) { unsigned r; __builtin_memcpy(&r, &v, 4); return r; }
static __forceinline__ float __int_as_float(int v) { float r; __builtin_memcpy(&r, &v, 4); return r; }
static __forceinline__ float __uint_as_float(unsigned v) { float r; __builtin_memcpy(&r, &v, 4); return r; }
static __forceinline__ long long __double_as_longlong(double v) { long long r; __builtin_memcpy(&r, &v, 8); return r; }
static __forceinline__ double __longlong_as_double(long long v) { double r; __builtin_memcpy(&r, &v, 8); return r; }

// Loads and stores with cache hints are plain loads and stores.

template <class T> static __forceinline__ T __ldg(const T* p) { return *p; }
template <class T> static __forceinline__ T __ldcs(const T* p) { return *p; }
template <class T> static __forceinline__ T __ldcg(const T* p) { return *p; }
template <class T> static __forceinline__ T __ldca(const T* p) { return *p; }
template <class T> static __forceinline__ T __ldlu(const T* p) { return *p; }
template <class T> static __forceinline__ void __stcs(T* p, T v) { *p = v; }
template <class T> static __forceinline__ void __stcg(T* p, T v) { *p = v; }
template <class T> static __forceinline__ void __stwt(T* p, T v) { *p = v; }
template <class T> static __forceinline__ void __stwb(T* p, T v) { *p = v; }

// Entry points. Made for each kernel by text appended to the source; not instrumented, since they read host memory.

namespace emu {

template <class T> struct Pointee { static constexpr bool pointer = false; };
template <class T> struct Pointee<T*> { static constexpr bool pointer = true; typedef T type; };
template <class T> struct IsConst { static constexpr bool value = false; };
template <class T> struct IsConst<const T> { static constexpr bool value = true; };
template <class T> struct Bare { typedef T type; };
template <class T> struct Bare<const T> { typedef T type; };
template <class T> struct Bare<volatile T> { typedef T type; };
template <class T> struct Bare<const volatile T> { typedef T type; };
template <class T> struct Letter { static constexpr char value = __is_class(T) ? 's' : (T(0.5) != T(0) ? 'f' : (T(-1) < T(0) ? 'i' : 'u')); };
template <> struct Letter<void> { static constexpr char value = 'v'; };
template <> struct Letter<bool> { static constexpr char value = 'b'; };
template <class T, bool is_class> struct SafeLetter { static constexpr char value = Letter<T>::value; };
template <class T> struct SafeLetter<T, true> { static constexpr char value = 's'; };
template <class T, bool is_pointer> struct PointerLetter { static constexpr char value = SafeLetter<T, __is_class(T)>::value; };
template <class T> struct PointerLetter<T, true> { static constexpr char value = 'p'; };
template <class T> struct Size { static constexpr int value = sizeof(T); };
template <> struct Size<void> { static constexpr int value = 1; };

struct Parameter {
    int pointer;    // 1: T*, 0: scalar
    int constant;   // const T*
    int size;       // of the pointee or the scalar
    int letter;     // i, u, f, b, s(truct), p(ointer), v(oid) of the pointee or the scalar
};

template <class A> struct Describe {
    static constexpr Parameter value = {0, 0, sizeof(A), PointerLetter<A, false>::value};
};
template <class T> struct Describe<T*> {
    typedef typename Bare<T>::type bare;
    static constexpr Parameter value = {1, IsConst<T>::value, Size<bare>::value, PointerLetter<bare, Pointee<bare>::pointer>::value};
};

template <class... A> __attribute__((no_sanitize("thread", "undefined"), noinline)) void call(void (*kernel)(A...), void** arguments) {
    // Braces evaluate from left to right, which g++ 12 doubts.
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wsequence-point\"") int position = 0;
    struct Caller { __attribute__((no_sanitize("thread", "undefined"))) Caller(void (*k)(A...), A... a) { k(a...); } };
    Caller{kernel, *static_cast<A*>(arguments[position++])...};
    _Pragma("GCC diagnostic pop")
}

template <class... A> __attribute__((no_sanitize("thread", "undefined"))) int describe(void (*)(A...), Parameter* out, int room) {
    const Parameter all[] = {Describe<A>::value..., Parameter{}};
    const int count = sizeof...(A);
    for (int i = 0; i < count && i < room; ++i) out[i] = all[i];
    return count;
}

}  // namespace emu

#define EMU_ENTRY(kernel, bound)                                                                                              \
    extern "C" __attribute__((visibility("default"), no_sanitize("thread", "undefined"))) void emu_call_##kernel(void** arguments) { emu::call(kernel, arguments); } \
    extern "C" __attribute__((visibility("default"), no_sanitize("thread", "undefined"))) int emu_describe_##kernel(emu::Parameter* out, int room) { return emu::describe(kernel, out, room); } \
    extern "C" __attribute__((visibility("default"), no_sanitize("thread", "undefined"))) int emu_bound_##kernel() { return bound; }
