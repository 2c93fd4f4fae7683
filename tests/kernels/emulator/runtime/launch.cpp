// Runs the blocks of a launch one after another, each thread as a fiber, in an order drawn from the seed.

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <list>
#include <numeric>
#include <string>

#include "block.h"

namespace emu {

Launch launch;
Shadow shadow;
Trace trace;

void leave_to_scheduler() {
    Thread& t = *launch.current;
    switch_context(t.context, launch.scheduler);
}

namespace {

void record(const char* kind, u64 site, u64 other, const char* format, va_list arguments) {
    Report& report = *launch.report;
    snprintf(report.kind, sizeof report.kind, "%s", kind);
    int used = 0;
    if (launch.current != nullptr) {
        const Thread& t = *launch.current;
        used = snprintf(report.message, sizeof report.message, "block (%u, %u, %u), thread (%u, %u, %u): ", launch.block_index.x, launch.block_index.y,
                        launch.block_index.z, t.index.x, t.index.y, t.index.z);
    }
    vsnprintf(report.message + used, sizeof report.message - size_t(used), format, arguments);
    report.site = site;
    report.other_site = other;
    launch.failed = true;
}

// Told by the scheduler, about a thread that waits.
void fail_waiting(const Thread& t, const char* kind, const char* format, ...) __attribute__((format(printf, 3, 4)));
void fail_waiting(const Thread& t, const char* kind, const char* format, ...) {
    launch.current = const_cast<Thread*>(&t);
    va_list arguments;
    va_start(arguments, format);
    record(kind, 0, 0, format, arguments);
    va_end(arguments);
}

}  // namespace

void fail(const char* kind, u64 site, u64 other, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record(kind, site, other, format, arguments);
    va_end(arguments);
    // The fiber is never resumed: kernels own nothing that would have to be given back.
    leave_to_scheduler();
    __builtin_unreachable();
}

void maybe_yield() {
    if (launch.random.next() & 3u) return;
    launch.ready.push_back(launch.current->number);
    leave_to_scheduler();
}

namespace {

void thread_main() {
    launch.request->entry(launch.request->arguments);
    Thread& t = *launch.current;
    t.status = Status::done;
    launch.warps[t.warp].finished |= 1u << t.lane;
    ++launch.done;
    leave_to_scheduler();
}

void next_epoch() {
    ++launch.epoch;
    launch.lane_clocks.clear();
    for (Warp& w : launch.warps) w.restart();
}

void note(std::vector<const Snapshot*>& all, const Snapshot* s) {
    if (s != nullptr && std::find(all.begin(), all.end(), s) == all.end()) all.push_back(s);
}

void poison_shared() {
    const Request& request = *launch.request;
    auto fill = [&](u64 address, u64 bytes) {
        for (u64 i = 0; i < bytes; ++i) reinterpret_cast<uint8_t*>(address)[i] = poison(address + i + request.seed * 977);
        memset(shadow.state + kArenaBytes + (address - request.shared_address), kUnwritten, bytes);
    };
    for (u32 i = 0; i < request.shared_count; ++i) fill(request.shared[i].address, request.shared[i].bytes);
    if (request.dynamic_address) fill(request.dynamic_address, request.dynamic_bytes);
}

void start_block(u64 number) {
    const Request& request = *launch.request;
    launch.block_index = dim3{u32(number % request.grid[0]), u32(number / request.grid[0] % request.grid[1]), u32(number / request.grid[0] / request.grid[1])};
    launch.block_number = number;
    launch.done = 0;
    trace.turns.clear();
    launch.acquired.clear();
    for (Warp& w : launch.warps) {
        w.finished = 0;
        w.groups.clear();
    }
    launch.ready.resize(launch.count);
    std::iota(launch.ready.begin(), launch.ready.end(), 0u);
    for (Thread& t : launch.threads) {
        t.status = Status::ready;
        t.fence = nullptr;
        t.acquired.clear();
        t.seen.clear();
        start_context(t.context, launch.stacks.low(t.number), kStackBytes, thread_main);
    }
    next_epoch();
    launch.block_epoch = launch.epoch;
    poison_shared();
}

// Loops need not touch memory to be endless.
void count_step() {
    if (++launch.steps > launch.request->step_limit)
        fail("endless", 0, 0, "more than %llu memory accesses, barriers and warp functions in one launch", (unsigned long long)launch.request->step_limit);
}

bool same_place(const Thread& a, const Thread& b) { return a.line == b.line && strcmp(a.file, b.file) == 0; }

void release_barrier() {
    Thread& first = launch.threads[0];
    int count = 0;
    for (Thread& t : launch.threads) {
        if (t.barrier != first.barrier || !same_place(t, first))
            return fail_waiting(t, "divergent barrier", "waits at the barrier of %s:%d, thread 0 of its block at %s:%d", t.file, t.line, first.file, first.line);
        count += t.predicate != 0;
    }
    switch (first.barrier) {
        case Barrier::plain: launch.barrier_result = 0; break;
        case Barrier::count: launch.barrier_result = count; break;
        case Barrier::and_: launch.barrier_result = count == int(launch.count); break;
        case Barrier::or_: launch.barrier_result = count != 0; break;
    }
    for (Thread& t : launch.threads) {
        for (const Snapshot* s : t.acquired) note(launch.acquired, s);
        t.acquired.clear();
        t.status = Status::ready;
        launch.ready.push_back(t.number);
    }
    next_epoch();
}

void fail_stuck() {
    u32 at_barrier = 0;
    const Thread* barrier = nullptr;
    const Thread* warp = nullptr;
    for (const Thread& t : launch.threads) {
        if (t.status == Status::at_barrier) ++at_barrier, barrier = &t;
        if (t.status == Status::in_warp) warp = &t;
    }
    if (warp == nullptr)
        return fail_waiting(*barrier, "divergent barrier", "waits at the barrier of %s:%d with %u others, but %u threads of the block have returned", barrier->file, barrier->line,
             at_barrier - 1, launch.done);
    const Warp& w = launch.warps[warp->warp];
    u32 mask = 0, arrived = 0;
    for (const Group& g : w.groups)
        if (g.arrived >> warp->lane & 1u) mask = g.mask, arrived = g.arrived;
    fail_waiting(*warp, "divergent warp", "waits at %s:%d for lanes %#x of its warp; %#x came; lanes %#x have returned; %u threads of the block wait at a barrier", warp->file,
         warp->line, mask, arrived, w.finished, at_barrier);
}

bool run_block(u64 number) {
    start_block(number);
    for (;;) {
        while (!launch.ready.empty()) {
            const u32 pick = launch.random.below(u32(launch.ready.size()));
            std::swap(launch.ready[pick], launch.ready.back());
            launch.current = &launch.threads[launch.ready.back()];
            launch.ready.pop_back();
            switch_context(launch.scheduler, launch.current->context);
            if (launch.failed) return false;
        }
        launch.current = nullptr;
        if (launch.done == launch.count) return true;
        u32 waiting = 0;
        for (const Thread& t : launch.threads) waiting += t.status == Status::at_barrier;
        if (waiting == launch.count)
            release_barrier();
        else
            fail_stuck();
        if (launch.failed) return false;
    }
}

void lay_out_threads() {
    const Request& request = *launch.request;
    launch.block_extent = dim3{request.block[0], request.block[1], request.block[2]};
    launch.grid_extent = dim3{request.grid[0], request.grid[1], request.grid[2]};
    launch.count = request.block[0] * request.block[1] * request.block[2];
    launch.threads.resize(launch.count);
    launch.warps.assign((launch.count + 31) / 32, Warp{});
    for (u32 i = 0; i < launch.count; ++i) {
        Thread& t = launch.threads[i];
        t.number = i;
        t.warp = i / 32;
        t.lane = i % 32;
        t.index = dim3{i % request.block[0], i / request.block[0] % request.block[1], i / request.block[0] / request.block[1]};
        launch.warps[t.warp].lanes |= 1u << t.lane;
    }
}

int find_image(dl_phdr_info* info, size_t, void* base) {
    if (info->dlpi_addr != *static_cast<u64*>(base)) return 0;
    u64 end = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i)
        if (info->dlpi_phdr[i].p_type == PT_LOAD) end = std::max(end, u64(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz));
    launch.image_end = end;
    return 1;
}

u64 distinct(std::vector<std::pair<u64, u64>>& pairs) {
    std::sort(pairs.begin(), pairs.end());
    return u64(std::unique(pairs.begin(), pairs.end()) - pairs.begin());
}

Counts counted(u64 address, u64 bytes, std::initializer_list<Act> acts) {
    Counts counts{};
    std::vector<std::pair<u64, u64>> requests, sectors, thread_sectors;
    for (const Touch& touch : trace.touches) {
        if (touch.address < address || touch.address >= address + bytes) continue;
        if (std::find(acts.begin(), acts.end(), Act(touch.act)) == acts.end()) continue;
        ++counts.accesses;
        counts.bytes += touch.bytes;
        requests.emplace_back(touch.request, 0);
        for (u64 sector = touch.address / 32; sector <= (touch.address + touch.bytes - 1) / 32; ++sector) {
            sectors.emplace_back(touch.request, sector);
            thread_sectors.emplace_back(touch.thread, sector);
        }
    }
    counts.requests = distinct(requests);
    counts.sectors = distinct(sectors);
    counts.thread_sectors = distinct(thread_sectors);
    return counts;
}

// Sectors of some memory that a cache of so many sectors has to fetch, the least recently used giving way. All threads of
// the grid are taken to advance together, as those of resident blocks do: by turns of their loops.
u64 misses(u64 address, u64 bytes, u64 capacity) {
    std::vector<u32> order(trace.touches.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [](u32 a, u32 b) {
        const Touch &one = trace.touches[a], &two = trace.touches[b];
        return one.turn != two.turn ? one.turn < two.turn : one.thread < two.thread;
    });
    std::list<u64> recent;
    std::unordered_map<u64, std::list<u64>::iterator> cached;
    u64 missed = 0;
    for (u32 i : order) {
        const Touch& touch = trace.touches[i];
        for (u64 sector = touch.address / 32; sector <= (touch.address + touch.bytes - 1) / 32; ++sector) {
            const auto found = cached.find(sector);
            if (found != cached.end()) {
                recent.splice(recent.begin(), recent, found->second);
                continue;
            }
            missed += touch.address >= address && touch.address < address + bytes;
            recent.push_front(sector);
            cached[sector] = recent.begin();
            if (recent.size() <= capacity) continue;
            cached.erase(recent.back());
            recent.pop_back();
        }
    }
    return missed;
}

u64 compute(const Warp& w, WarpOp op, u32 mask, u32 lane) {
    auto each = [&](auto fold, u64 start) {
        for (u32 i = 0; i < 32; ++i)
            if (mask >> i & 1u) start = fold(start, w.value[i], i);
        return start;
    };
    const u32 width = w.width[lane], by = w.operand[lane], first = lane & ~(width - 1), last = first + width - 1;
    auto from = [&](u32 source) -> u64 {
        // What an inactive lane would give is undefined.
        return mask >> source & 1u ? w.value[source] : 0xBADBADBADBADBADBull;
    };
    switch (op) {
        case WarpOp::sync: return 0;
        case WarpOp::ballot: return each([](u64 a, u64 v, u32 i) { return a | v << i; }, 0);
        case WarpOp::any: return each([](u64 a, u64 v, u32) { return a | v; }, 0);
        case WarpOp::all: return each([](u64 a, u64 v, u32) { return a & v; }, 1);
        case WarpOp::shfl: return from(first | (by & (width - 1)));
        case WarpOp::shfl_up: return by > lane - first ? w.value[lane] : from(lane - by);
        case WarpOp::shfl_down: return by > last - lane ? w.value[lane] : from(lane + by);
        case WarpOp::shfl_xor: return (lane ^ by) > last ? w.value[lane] : from(lane ^ by);
        case WarpOp::match_any: return each([&](u64 a, u64 v, u32 i) { return v == w.value[lane] ? a | 1ull << i : a; }, 0);
        case WarpOp::match_all: return each([&](u64 a, u64 v, u32) { return v == w.value[lane] ? a : 0; }, mask);
        case WarpOp::add: return each([](u64 a, u64 v, u32) { return u64(u32(a + v)); }, 0);
        case WarpOp::min: return each([](u64 a, u64 v, u32) { return std::min(a, v); }, ~0u);
        case WarpOp::max: return each([](u64 a, u64 v, u32) { return std::max(a, v); }, 0);
        case WarpOp::min_signed: return each([](u64 a, u64 v, u32) { return u64(u32(std::min(int(a), int(v)))); }, 0x7fffffffu);
        case WarpOp::max_signed: return each([](u64 a, u64 v, u32) { return u64(u32(std::max(int(a), int(v)))); }, 0x80000000u);
        case WarpOp::and_: return each([](u64 a, u64 v, u32) { return a & v; }, ~0u);
        case WarpOp::or_: return each([](u64 a, u64 v, u32) { return a | v; }, 0);
        case WarpOp::xor_: return each([](u64 a, u64 v, u32) { return a ^ v; }, 0);
    }
    return 0;
}

void complete(Warp& w, u32 warp, const Group& g) {
    for (u32 i = 0; i < 32; ++i)
        if (g.mask >> i & 1u) w.result[i] = compute(w, g.op, g.mask, i);
    if (g.op == WarpOp::sync) {
        // Memory is ordered by __syncwarp alone: votes and shuffles exchange their operands and nothing else.
        if (w.join(g.mask) >= kMaxClock) fail("endless", 0, 0, "more than %u __syncwarp between two barriers", kMaxClock);
        std::vector<const Snapshot*> together;
        for (u32 i = 0; i < 32; ++i)
            if (g.mask >> i & 1u)
                for (const Snapshot* s : launch.threads[warp * 32 + i].acquired) note(together, s);
        if (!together.empty())
            for (u32 i = 0; i < 32; ++i)
                if (g.mask >> i & 1u) launch.threads[warp * 32 + i].acquired = together;
    }
    for (u32 i = 0; i < 32; ++i) {
        if (!(g.mask >> i & 1u)) continue;
        launch.threads[warp * 32 + i].status = Status::ready;
        launch.ready.push_back(warp * 32 + i);
    }
}

template <class T> u64 update(void* address, Rmw op, u64 operand, u64 compare) {
    T old, value, expected;
    memcpy(&old, address, sizeof old);
    memcpy(&value, &operand, sizeof value);
    memcpy(&expected, &compare, sizeof expected);
    T fresh = old;
    bool stores = true;
    switch (op) {
        case Rmw::add: fresh = T(old + value); break;
        case Rmw::exchange: fresh = value; break;
        case Rmw::compare_exchange: stores = memcmp(&old, &expected, sizeof old) == 0; fresh = value; break;
        case Rmw::min: fresh = std::min(old, value); break;
        case Rmw::max: fresh = std::max(old, value); break;
        case Rmw::inc: fresh = old >= value ? T(0) : T(old + 1); break;
        case Rmw::dec: fresh = old == T(0) || old > value ? value : T(old - 1); break;
        case Rmw::and_: case Rmw::or_: case Rmw::xor_: {
            u64 a = 0, b = 0;
            memcpy(&a, &old, sizeof old);
            memcpy(&b, &value, sizeof value);
            a = op == Rmw::and_ ? a & b : op == Rmw::or_ ? a | b : a ^ b;
            memcpy(&fresh, &a, sizeof fresh);
        }
    }
    if (stores) memcpy(address, &fresh, sizeof fresh);
    u64 result = 0;
    memcpy(&result, &old, sizeof old);
    return result;
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

dim3 emu_thread_index() { return launch.current->index; }
dim3 emu_block_index() { return launch.block_index; }
dim3 emu_block_extent() { return launch.block_extent; }
dim3 emu_grid_extent() { return launch.grid_extent; }

int emu_barrier(Barrier kind, int predicate, const char* file, int line) {
    count_step();
    Thread& t = *launch.current;
    t.status = Status::at_barrier;
    t.barrier = kind;
    t.predicate = predicate;
    t.file = file;
    t.line = line;
    leave_to_scheduler();
    return launch.barrier_result;
}

u64 emu_warp(WarpOp op, unsigned mask, u64 value, unsigned operand, unsigned width, const char* file, int line) {
    count_step();
    Thread& t = *launch.current;
    Warp& w = launch.warps[t.warp];
    if (!(mask >> t.lane & 1u)) fail("divergent warp", 0, 0, "lane %u calls at %s:%d with mask %#x, which leaves it out", t.lane, file, line, mask);
    if (mask & ~w.lanes) fail("divergent warp", 0, 0, "mask %#x at %s:%d names lanes the block does not have", mask, file, line);
    if (mask & w.finished) fail("divergent warp", 0, 0, "mask %#x at %s:%d names lanes %#x, which have returned", mask, file, line, mask & w.finished);
    if (width == 0 || width > 32 || (width & (width - 1))) fail("divergent warp", 0, 0, "shuffle width %u at %s:%d", width, file, line);
    t.file = file;
    t.line = line;
    w.value[t.lane] = value;
    w.operand[t.lane] = operand;
    w.width[t.lane] = width;
    Group* group = nullptr;
    for (Group& g : w.groups)
        if (g.op == op && g.mask == mask && g.line == line && strcmp(g.file, file) == 0) group = &g;
    if (group == nullptr) {
        w.groups.push_back(Group{op, mask, 0, file, line});
        group = &w.groups.back();
    }
    group->arrived |= 1u << t.lane;
    t.status = Status::in_warp;
    if (group->arrived == mask) {
        const Group complete_group = *group;
        *group = w.groups.back();
        w.groups.pop_back();
        complete(w, t.warp, complete_group);
    }
    leave_to_scheduler();
    return w.result[t.lane];
}

u64 emu_atomic(void* address, Rmw op, Kind kind, u64 operand, u64 compare) {
    maybe_yield();
    const u32 bytes = kind == Kind::i32 || kind == Kind::u32 || kind == Kind::f32 ? 4 : 8;
    access(reinterpret_cast<u64>(address), bytes, Act::update, __builtin_return_address(0), true);
    note_atomic(reinterpret_cast<u64>(address), true, true, false);
    switch (kind) {
        case Kind::i32:
            // Signed atomics wrap.
            if (op == Rmw::add) return update<u32>(address, op, operand, compare);
            return update<int32_t>(address, op, operand, compare);
        case Kind::u32: return update<u32>(address, op, operand, compare);
        case Kind::i64: return update<int64_t>(address, op, operand, compare);
        case Kind::u64: return update<u64>(address, op, operand, compare);
        case Kind::f32: return update<float>(address, op, operand, compare);
        case Kind::f64: return update<double>(address, op, operand, compare);
    }
    return 0;
}

void emu_fence(int) {
    Thread& t = *launch.current;
    for (const auto& [variable, count] : t.seen) {
        size_t from = 0;
        for (size_t i = 0; i < count; ++i)
            if (variable->released[i] == nullptr) from = i + 1;
        for (size_t i = from; i < count; ++i) {
            note(t.acquired, variable->released[i]);
            for (const Snapshot* s : variable->released[i]->before) note(t.acquired, s);
        }
    }
    t.seen.clear();
    Warp& w = launch.warps[t.warp];
    w.to_matrix();
    Snapshot s{launch.block_epoch, launch.epoch, t.warp, {}, t.acquired};
    for (const Snapshot* a : launch.acquired) note(s.before, a);
    for (u32 i = 0; i < 32; ++i) s.known[i] = w.known[t.lane][i];
    s.known[t.lane] = w.clock[t.lane]++;
    launch.snapshots.push_back(s);
    t.fence = &launch.snapshots.back();
}

void emu_yield() {
    launch.ready.push_back(launch.current->number);
    leave_to_scheduler();
}

void emu_trap(const char* what, const char* file, int line) { fail("trap", 0, 0, "%s at %s:%d", what, file, line); }

int emu_launch(const Request* request, Report* report) {
    memset(report, 0, sizeof *report);
    launch.request = request;
    launch.report = report;
    launch.random = Random{request->seed};
    launch.failed = false;
    launch.steps = 0;
    trace.touches.clear();
    launch.current = nullptr;
    launch.snapshots.clear();
    launch.variables.clear();
    memset(launch.extent_hint, 0, sizeof launch.extent_hint);
    Dl_info image;
    dladdr(reinterpret_cast<void*>(request->entry), &image);
    launch.image = reinterpret_cast<u64>(image.dli_fbase);
    dl_iterate_phdr(find_image, &launch.image);
    memset(shadow.state + kArenaBytes, kForbidden, std::min<u64>(request->shared_bytes, kSharedBytes));
    lay_out_threads();
    launch.launch_epoch = launch.epoch + 1;
    const u64 blocks = u64(request->grid[0]) * request->grid[1] * request->grid[2];
    std::vector<u32> order(blocks);
    std::iota(order.begin(), order.end(), 0u);
    for (u64 i = blocks; i > 1; --i) std::swap(order[i - 1], order[launch.random.below(u32(i))]);
    for (u32 number : order)
        if (!run_block(number)) break;
    report->steps = launch.steps;
    launch.current = nullptr;
    launch.request = nullptr;
    return launch.failed;
}

void emu_trace(int on) { trace.on = on != 0; }

// What the last launch asked of the memory from `address` on.
void emu_traffic(u64 address, u64 bytes, Traffic* traffic) {
    traffic->reads = counted(address, bytes, {Act::read, Act::atomic_read});
    traffic->writes = counted(address, bytes, {Act::write, Act::atomic_write});
    traffic->atomics = counted(address, bytes, {Act::update});
    std::vector<std::pair<u64, u64>> sectors;
    for (const Touch& touch : trace.touches)
        if (touch.address >= address && touch.address < address + bytes) sectors.emplace_back(touch.address / 32, 0);
    traffic->distinct_sectors = distinct(sectors);
}

// Sectors of the memory from `address` on that a cache of `capacity` sectors fetches in the last launch.
u64 emu_misses(u64 address, u64 bytes, u64 capacity) { return misses(address, bytes, capacity); }

char* emu_arena() { return shadow.arena; }
u64 emu_arena_bytes() { return kArenaBytes; }
u64 emu_shared_bytes() { return kSharedBytes; }
u64 emu_image_base(void* inside) {
    Dl_info image;
    return dladdr(inside, &image) ? reinterpret_cast<u64>(image.dli_fbase) : 0;
}

// Device memory as a kernel finds it: forbidden, poisoned and unwritten, or written.
void emu_mark(u64 offset, u64 bytes, int state) {
    memset(shadow.state + offset, state, bytes);
    if (state == kWritten) return;
    for (u64 i = 0; i < bytes; ++i) shadow.arena[offset + i] = char(poison(reinterpret_cast<u64>(shadow.arena) + offset + i));
}

// Items of an array that neither a kernel nor the host has written; gives how many, and the first.
u64 emu_unwritten(u64 offset, u64 items, u64 item_bytes, u64* first) {
    u64 count = 0;
    for (u64 i = 0; i < items; ++i) {
        bool written = false;
        for (u64 b = i * item_bytes; b < (i + 1) * item_bytes; ++b) {
            const u64 at = offset + b;
            written |= shadow.state[at] == kWritten || uint8_t(shadow.arena[at]) != poison(reinterpret_cast<u64>(shadow.arena) + at);
        }
        if (!written && count++ == 0) *first = i;
    }
    return count;
}

// Undefined behaviour that g++ finds by -fsanitize=undefined. All data start with where in the source it happened.

struct UndefinedAt {
    const char* file;
    u32 line, column;
};

[[noreturn]] static void undefined(const UndefinedAt* at, const char* what) { fail("undefined", 0, 0, "%s at %s:%u", what, at->file ? at->file : "?", at->line); }

#define UNDEFINED(name, what)                                                                     \
    void __ubsan_handle_##name(UndefinedAt* at, ...) { undefined(at, what); }                     \
    void __ubsan_handle_##name##_abort(UndefinedAt* at, ...) { undefined(at, what); }
UNDEFINED(out_of_bounds, "index outside of its array")
UNDEFINED(shift_out_of_bounds, "shift by a negative or too large amount")
UNDEFINED(add_overflow, "signed addition overflows")
UNDEFINED(sub_overflow, "signed subtraction overflows")
UNDEFINED(mul_overflow, "signed multiplication overflows")
UNDEFINED(negate_overflow, "signed negation overflows")
UNDEFINED(divrem_overflow, "division by zero, or quotient overflows")
UNDEFINED(type_mismatch_v1, "access through a null or misaligned pointer")
UNDEFINED(pointer_overflow, "pointer arithmetic overflows")
UNDEFINED(load_invalid_value, "a value that its type does not have")
UNDEFINED(vla_bound_not_positive, "array of no positive size")
UNDEFINED(float_cast_overflow, "floating-point value outside of the integer type")
void __ubsan_handle_builtin_unreachable(UndefinedAt* at) { undefined(at, "unreachable code reached"); }
void __ubsan_handle_missing_return(UndefinedAt* at) { undefined(at, "end of a function that returns a value"); }
}
