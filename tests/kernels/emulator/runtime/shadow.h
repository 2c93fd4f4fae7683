// What the emulator knows of every byte: whether it may be touched, whether it was written, and who touched it when.
//
// Time within a launch is an epoch, a number that grows with each barrier of each block and is never used twice, and
// within an epoch a thread's clock, which grows with each __syncwarp or fence it takes part in. So an access is dated by
// (epoch, thread, clock), and one access happens before another of
//   - an earlier launch: always;
//   - the same block: if its epoch is smaller, or the other thread has learnt of its clock by __syncwarp;
//   - another block, or another warp of the same epoch: only by way of fences and atomics.
// Of each word the last plain write is kept, and the sets of plain reads, atomic updates and atomic reads that no later
// access has replaced. A set is exact up to one epoch: one access, or the clocks of the lanes of one warp, or "several warps";
// of accesses by earlier blocks, the latest epoch.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace emu {

typedef uint32_t u32;
typedef uint64_t u64;

enum ByteState : uint8_t { kForbidden = 0, kUnwritten = 1, kWritten = 2 };

constexpr size_t kArenaBytes = size_t(1) << 29;
constexpr size_t kSharedBytes = size_t(1) << 20;  // of all shared variables of a module, with dynamic memory and gaps
constexpr size_t kShadowedBytes = kArenaBytes + kSharedBytes;

enum class SetForm : u32 { one = 0, lanes = 1, warps = 2 };

struct Access {
    u32 epoch = 0;
    u32 who = 0;  // thread << 20 | clock
};

constexpr u32 kClockBits = 20;
constexpr u32 kMaxClock = (1u << kClockBits) - 1;

inline u32 pack_who(u32 thread, u32 clock) { return thread << kClockBits | clock; }
inline u32 thread_of(u32 who) { return who >> kClockBits; }
inline u32 clock_of(u32 who) { return who & kMaxClock; }

struct AccessSet {
    u32 epoch = 0;
    u32 foreign = 0;  // latest epoch of another block, if later than anything it was ordered after
    u32 form = 0;     // SetForm
    u32 who = 0;      // one: as in Access; lanes: index of a LaneClocks
};

struct LaneClocks {
    u32 warp;
    u32 clock[32];  // 0: no access
};

struct Cell {
    Access write;
    AccessSet reads, updates, atomic_reads;
    u32 write_site = 0, other_site = 0;
    u32 by_byte = 0;  // this word is looked after byte by byte
};

inline char* reserve(size_t bytes, const char* what) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "emulator: cannot reserve %zu bytes of address space for %s\n", bytes, what);
        abort();
    }
    return static_cast<char*>(mapped);
}

// A value no kernel is likely to write, different from byte to byte and never 0, 1 or 255.
inline uint8_t poison(u64 address) {
    u64 x = address * 0x9E3779B97F4A7C15ull;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ull;
    return uint8_t(2 + (x >> 40) % 253);
}

struct Shadow {
    char* arena = reserve(kArenaBytes, "device memory");
    uint8_t* state = reinterpret_cast<uint8_t*>(reserve(kShadowedBytes, "states"));
    Cell* words = reinterpret_cast<Cell*>(reserve(kShadowedBytes / 4 * sizeof(Cell), "words"));
    Cell* bytes = reinterpret_cast<Cell*>(reserve(kShadowedBytes * sizeof(Cell), "bytes"));
};

}  // namespace emu
