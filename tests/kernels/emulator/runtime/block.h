// The threads of one block, and what is asked to run them.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "fiber.h"
#include "shadow.h"

struct dim3 {
    unsigned x, y, z;
};

namespace emu {

enum class WarpOp : u32 { sync, ballot, any, all, shfl, shfl_up, shfl_down, shfl_xor, match_any, match_all, add, min, max, min_signed, max_signed, and_, or_, xor_ };
enum class Rmw : u32 { add, exchange, compare_exchange, min, max, and_, or_, xor_, inc, dec };
enum class Kind : u32 { i32, u32, i64, u64, f32, f64 };
enum class Barrier : u32 { plain, count, and_, or_ };

// Memory that a launch may touch: exactly one array that was passed.
struct Extent {
    u64 address, bytes;
    u32 item_bytes, read_only;
};

struct Object {
    u64 address, bytes;
};

struct Request {
    void (*entry)(void**);
    void** arguments;
    u32 grid[3], block[3];
    u64 dynamic_bytes, dynamic_address;
    u64 shared_address, shared_bytes;
    const Object* shared;
    const Extent* extents;
    u32 shared_count, extent_count;
    u64 seed, step_limit;
};

struct Report {
    char kind[32];
    char message[1024];
    u64 site, other_site;  // offsets in the module; 0: unknown
    u64 steps;
};

enum class Status : u32 { ready, at_barrier, in_warp, done };

// What a thread had done and knew when it passed a fence.
struct Snapshot {
    u32 first_epoch, epoch, warp;
    u32 known[32];
    std::vector<const Snapshot*> before;
};

struct SyncVariable {
    std::vector<const Snapshot*> released;
};

struct Thread {
    Context context;
    u32 number, warp, lane;
    Status status;
    dim3 index;
    const char* file;
    int line;
    Barrier barrier;
    int predicate;
    const Snapshot* fence;
    std::vector<const Snapshot*> acquired;
    std::vector<std::pair<const SyncVariable*, size_t>> seen;
};

struct Group {
    WarpOp op;
    u32 mask, arrived;
    const char* file;
    int line;
};

struct Warp {
    u32 lanes;      // that exist
    u32 finished;   // that have returned
    u32 clock_all;  // clock of every lane, all before it known to all, unless ``matrix``
    bool matrix;
    u32 clock[32];
    u32 known[32][32];
    std::vector<Group> groups;
    u64 value[32], result[32];
    u32 operand[32], width[32];

    u32 clock_of_lane(u32 lane) const { return matrix ? clock[lane] : clock_all; }
    u32 known_to(u32 lane, u32 other) const { return matrix ? known[lane][other] : clock_all - 1; }
    void to_matrix() {
        if (matrix) return;
        matrix = true;
        for (u32 i = 0; i < 32; ++i) {
            clock[i] = clock_all;
            for (u32 j = 0; j < 32; ++j) known[i][j] = clock_all - 1;
        }
    }
    void restart() {
        matrix = false;
        clock_all = 1;
    }
    // The lanes of ``mask`` learn all that any of them has done or knows; gives the greatest clock.
    u32 join(u32 mask) {
        if (mask == lanes) {
            u32 latest = clock_all;
            if (matrix)
                for (u32 i = 0; i < 32; ++i) latest = clock[i] > latest ? clock[i] : latest;
            matrix = false;
            return clock_all = latest + 1;
        }
        to_matrix();
        u32 joined[32] = {}, latest = 0;
        for (u32 i = 0; i < 32; ++i) {
            if (!(mask >> i & 1u)) continue;
            for (u32 j = 0; j < 32; ++j) joined[j] = known[i][j] > joined[j] ? known[i][j] : joined[j];
            joined[i] = clock[i] > joined[i] ? clock[i] : joined[i];
        }
        for (u32 i = 0; i < 32; ++i) {
            if (!(mask >> i & 1u)) continue;
            for (u32 j = 0; j < 32; ++j) known[i][j] = joined[j];
            latest = ++clock[i] > latest ? clock[i] : latest;
        }
        return latest;
    }
};

struct Random {
    u64 state;
    u64 next() {
        u64 z = (state += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    u32 below(u32 n) { return u32((next() >> 32) * n >> 32); }
};

// What a launch asked of one array: accesses of threads, requests of warps, and sectors of 32 bytes. A request is what the
// lanes of a warp ask for by one instruction: the k-th time that each of them comes to it.
struct Counts {
    u64 accesses, bytes, requests;
    u64 sectors;         // distinct ones of each request
    u64 thread_sectors;  // distinct ones of each thread
};

struct Traffic {
    Counts reads, writes, atomics;
    u64 distinct_sectors;
};

struct Touch {
    u64 address;
    u64 request;  // a hash of block, warp, place in the code, and turn
    u64 thread;   // of the grid
    u32 bytes;
    u32 act;
    u32 turn;  // how often the thread has come to that place in the code
};

// Every access to global memory, where they are counted.
struct Trace {
    bool on = false;
    std::vector<Touch> touches;
    std::unordered_map<u64, u32> turns;  // of the block, by thread and place in the code
};

extern Trace trace;

// The launch in progress.
struct Launch {
    const Request* request = nullptr;
    Report* report = nullptr;
    Random random{0};
    Context scheduler;
    Stacks stacks;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<u32> ready;
    Thread* current = nullptr;
    dim3 block_index{}, block_extent{}, grid_extent{};
    u64 block_number = 0;
    u32 count = 0, done = 0, waiting = 0;
    u32 epoch = 0, launch_epoch = 0, block_epoch = 0;
    int barrier_result = 0;
    bool failed = false;
    u64 steps = 0;
    u64 image = 0, image_end = 0;
    std::vector<LaneClocks> lane_clocks;
    std::deque<Snapshot> snapshots;
    std::unordered_map<u64, SyncVariable> variables;
    std::vector<const Snapshot*> acquired;  // by every thread of the block
    u32 extent_hint[256];
};

extern Launch launch;
extern Shadow shadow;

[[noreturn]] void fail(const char* kind, u64 site, u64 other, const char* format, ...) __attribute__((format(printf, 4, 5)));
void leave_to_scheduler();
void maybe_yield();

enum class Act : u32 { read, write, update, atomic_read, atomic_write };
void access(u64 address, u32 bytes, Act act, void* site, bool aligned);
void note_atomic(u64 address, bool reads, bool writes, bool replaces);

}  // namespace emu
