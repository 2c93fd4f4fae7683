// Checks of memory accesses: the callbacks that g++ emits for -fsanitize=thread, answered by gpujoin's emulator.

#include <algorithm>
#include <cstring>

#include "block.h"

namespace emu {

namespace {

constexpr u64 kSpread = 0x0101010101010101ull;

u64 offset_of_site(void* site) { return reinterpret_cast<u64>(site) - launch.image; }

const char* name_of(Act act) {
    switch (act) {
        case Act::read: return "read";
        case Act::write: return "write";
        case Act::update: return "atomic update";
        case Act::atomic_read: return "volatile read";
        default: return "volatile write";
    }
}

bool writes(Act act) { return act == Act::write || act == Act::update || act == Act::atomic_write; }
bool reads(Act act) { return act == Act::read || act == Act::update || act == Act::atomic_read; }

const Extent* extent_at(u64 address, u32 bytes, bool to_write) {
    const Request& request = *launch.request;
    u32& hint = launch.extent_hint[(address >> 8) & 255u];
    const Extent* found = nullptr;
    auto holds = [&](const Extent& e) { return address >= e.address && address + bytes <= e.address + e.bytes; };
    if (hint < request.extent_count && holds(request.extents[hint]) && !(to_write && request.extents[hint].read_only))
        return &request.extents[hint];
    for (u32 i = 0; i < request.extent_count; ++i) {
        if (!holds(request.extents[i])) continue;
        found = &request.extents[i];
        if (to_write && found->read_only) continue;
        hint = i;
        return found;
    }
    return found;
}

// The array that an access outside of all arrays is nearest to.
void fail_outside(u64 address, u32 bytes, Act act, void* site) {
    const Request& request = *launch.request;
    u64 best = ~u64(0), low = 0, size = 0;
    for (u32 i = 0; i < request.extent_count; ++i) {
        const Extent& e = request.extents[i];
        const u64 away = address < e.address ? e.address - address : address - std::min(address, e.address + e.bytes);
        if (away < best) best = away, low = e.address, size = e.bytes;
    }
    if (best == ~u64(0)) fail("out of bounds", offset_of_site(site), 0, "%s of %u bytes, and no array was passed", name_of(act), bytes);
    fail("out of bounds", offset_of_site(site), 0, "%s of %u bytes at byte %lld of an array of %llu bytes", name_of(act), bytes,
         (long long)(address - low), (unsigned long long)size);
}

// Whether the host has written what no kernel has: then it differs from the poison it was filled with.
bool host_wrote(u64 address, u32 bytes, const Extent& extent) {
    const u64 item = extent.item_bytes ? extent.item_bytes : 1;
    const u64 first = (address - extent.address) / item, last = (address + bytes - 1 - extent.address) / item;
    for (u64 i = first; i <= last; ++i) {
        const u64 low = extent.address + i * item, high = std::min(low + item, extent.address + extent.bytes);
        uint8_t* state = shadow.state + (low - reinterpret_cast<u64>(shadow.arena));
        bool written = false;
        for (u64 a = low; a < high; ++a) written |= state[a - low] == kUnwritten && *reinterpret_cast<uint8_t*>(a) != poison(a);
        for (u64 a = low; a < high; ++a) {
            if (written) state[a - low] = kWritten;
            if (a >= address && a < address + bytes && state[a - low] != kWritten) return false;
        }
    }
    return true;
}

bool all_in_state(const uint8_t* state, u32 bytes, ByteState wanted) {
    if (bytes == 8) {
        u64 eight;
        memcpy(&eight, state, 8);
        return eight == kSpread * wanted;
    }
    for (u32 i = 0; i < bytes; ++i)
        if (state[i] != wanted) return false;
    return true;
}

bool covered(const Snapshot& s, u32 epoch, bool exact, u32 who) {
    if (epoch >= s.first_epoch && epoch < s.epoch) return true;
    if (!exact || epoch != s.epoch || thread_of(who) / 32 != s.warp) return false;
    return s.known[thread_of(who) % 32] >= clock_of(who);
}

// Whether fences and atomics have ordered an access before the current thread.
bool acquired(u32 epoch, bool exact, u32 who) {
    for (const Snapshot* s : launch.acquired)
        if (covered(*s, epoch, exact, who)) return true;
    for (const Snapshot* s : launch.current->acquired)
        if (covered(*s, epoch, exact, who)) return true;
    return false;
}

bool ordered_in_epoch(u32 who) {
    const Thread& t = *launch.current;
    if (thread_of(who) == t.number) return true;
    if (thread_of(who) / 32 == t.warp && launch.warps[t.warp].known_to(t.lane, thread_of(who) % 32) >= clock_of(who)) return true;
    return acquired(launch.epoch, true, who);
}

bool ordered(const Access& a, bool shared) {
    if (a.epoch < (shared ? launch.block_epoch : launch.launch_epoch)) return true;
    if (a.epoch < launch.block_epoch) return acquired(a.epoch, true, a.who);
    return a.epoch < launch.epoch || ordered_in_epoch(a.who);
}

bool ordered(const AccessSet& s, bool shared) {
    const u32 oldest = shared ? launch.block_epoch : launch.launch_epoch;
    if (s.foreign >= oldest && !acquired(s.foreign, false, 0)) return false;
    if (s.epoch < oldest) return true;
    if (s.epoch < launch.block_epoch) return acquired(s.epoch, s.form == u32(SetForm::one), s.who);
    if (s.epoch < launch.epoch) return true;
    switch (SetForm(s.form)) {
        case SetForm::one: return ordered_in_epoch(s.who);
        case SetForm::warps: return false;
        case SetForm::lanes: {
            const LaneClocks& lanes = launch.lane_clocks[s.who];
            for (u32 i = 0; i < 32; ++i)
                if (lanes.clock[i] && !ordered_in_epoch(pack_who(lanes.warp * 32 + i, lanes.clock[i]))) return false;
            return true;
        }
    }
    return false;
}

void add(AccessSet& s, u32 who) {
    const Thread& t = *launch.current;
    if (s.epoch != launch.epoch) {
        if (s.epoch >= launch.launch_epoch && s.epoch < launch.block_epoch) s.foreign = s.epoch;
        s.epoch = launch.epoch;
        s.form = u32(SetForm::one);
        s.who = who;
        return;
    }
    switch (SetForm(s.form)) {
        case SetForm::one:
            if (thread_of(s.who) == t.number) {
                s.who = who;
            } else if (thread_of(s.who) / 32 == t.warp) {
                LaneClocks lanes{t.warp, {}};
                lanes.clock[thread_of(s.who) % 32] = clock_of(s.who);
                lanes.clock[t.lane] = clock_of(who);
                s.form = u32(SetForm::lanes);
                s.who = u32(launch.lane_clocks.size());
                launch.lane_clocks.push_back(lanes);
            } else {
                s.form = u32(SetForm::warps);
            }
            break;
        case SetForm::lanes:
            if (launch.lane_clocks[s.who].warp == t.warp)
                launch.lane_clocks[s.who].clock[t.lane] = clock_of(who);
            else
                s.form = u32(SetForm::warps);
            break;
        case SetForm::warps: break;
    }
}

[[noreturn]] void fail_race(u64 address, u32 bytes, Act act, const char* other, u32 other_site, void* site, bool shared) {
    fail("race", offset_of_site(site), other_site, "%s of %u bytes of %s memory (address %#llx), not ordered after a %s by another thread", name_of(act),
         bytes, shared ? "shared" : "global", (unsigned long long)address, other);
}

void visit(Cell& cell, u32 who, u64 address, u32 bytes, Act act, void* site, bool shared) {
    const u32 here = u32(offset_of_site(site));
    if (cell.write.epoch && !ordered(cell.write, shared)) fail_race(address, bytes, act, "write", cell.write_site, site, shared);
    if (act != Act::atomic_read && act != Act::read && !ordered(cell.reads, shared)) fail_race(address, bytes, act, "read", cell.other_site, site, shared);
    if ((act == Act::read || act == Act::write) && !ordered(cell.updates, shared))
        fail_race(address, bytes, act, "atomic update or volatile write", cell.other_site, site, shared);
    if (act == Act::write && !ordered(cell.atomic_reads, shared)) fail_race(address, bytes, act, "volatile read", cell.other_site, site, shared);
    switch (act) {
        case Act::write:
            cell.write = Access{launch.epoch, who};
            cell.write_site = here;
            cell.reads = cell.updates = cell.atomic_reads = AccessSet{};
            return;
        case Act::read: add(cell.reads, who); break;
        case Act::atomic_read: add(cell.atomic_reads, who); break;
        default: add(cell.updates, who);
    }
    cell.other_site = here;
}

AccessSet copied(const AccessSet& s) {
    AccessSet copy = s;
    if (s.epoch == launch.epoch && SetForm(s.form) == SetForm::lanes) {
        copy.who = u32(launch.lane_clocks.size());
        launch.lane_clocks.push_back(LaneClocks(launch.lane_clocks[s.who]));
    }
    return copy;
}

void split_word(u64 word) {
    Cell& cell = shadow.words[word];
    for (u32 i = 0; i < 4; ++i) {
        Cell& byte = shadow.bytes[word * 4 + i];
        byte = cell;
        byte.reads = copied(cell.reads);
        byte.updates = copied(cell.updates);
        byte.atomic_reads = copied(cell.atomic_reads);
    }
    cell.by_byte = 1;
}

u64 mixed(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

void note_touch(u64 address, u32 bytes, Act act, void* site) {
    const Thread& t = *launch.current;
    const u64 place = offset_of_site(site);
    const u32 turn = trace.turns[u64(t.number) << 40 | place]++;
    u64 request = mixed(launch.block_number + 0x9E3779B97F4A7C15ull);
    for (u64 part : {u64(t.warp), place, u64(turn)}) request = mixed(request ^ (part + 0x9E3779B97F4A7C15ull));
    trace.touches.push_back(Touch{address, request, launch.block_number * launch.count + t.number, bytes, u32(act), turn});
}

}  // namespace

void access(u64 address, u32 bytes, Act act, void* site, bool aligned) {
    Thread* t = launch.current;
    if (t == nullptr || bytes == 0) return;
    const u64 in_arena = address - reinterpret_cast<u64>(shadow.arena);
    const u64 in_shared = address - launch.request->shared_address;
    const bool shared = in_shared < launch.request->shared_bytes;
    if (!shared && in_arena >= kArenaBytes) {
        if (launch.stacks.contains(address)) {
            const u64 low = reinterpret_cast<u64>(launch.stacks.low(t->number));
            if (address - low >= kStackBytes) fail("foreign local", offset_of_site(site), 0, "%s of another thread's local variable", name_of(act));
            return;
        }
        if (!writes(act) && address >= launch.image && address + bytes <= launch.image_end) return;
        fail_outside(address, bytes, act, site);
    }
    if (++launch.steps > launch.request->step_limit)
        fail("endless", offset_of_site(site), 0, "more than %llu memory accesses in one launch", (unsigned long long)launch.request->step_limit);
    if (aligned && address % bytes != 0) fail("misaligned", offset_of_site(site), 0, "%s of %u bytes at address %#llx", name_of(act), bytes, (unsigned long long)address);
    const u64 offset = shared ? kArenaBytes + in_shared : in_arena;
    uint8_t* state = shadow.state + offset;
    const Extent* extent = nullptr;
    if (!shared) {
        extent = extent_at(address, bytes, writes(act));
        if (extent == nullptr) fail_outside(address, bytes, act, site);
        if (trace.on) note_touch(address, bytes, act, site);
        if (writes(act) && extent->read_only) fail("const", offset_of_site(site), 0, "%s to an array that was passed as pointer to const", name_of(act));
    }
    if (!all_in_state(state, bytes, kWritten)) {
        for (u32 i = 0; i < bytes; ++i)
            if (state[i] == kForbidden)
                fail("out of bounds", offset_of_site(site), 0, "%s of %u bytes %s", name_of(act), bytes,
                     shared ? "of shared memory that belongs to no variable of this block" : "of freed memory");
        if (reads(act) && (shared || !host_wrote(address, bytes, *extent)))
            fail("unwritten", offset_of_site(site), 0, "%s of %u bytes of %s memory that nothing has written%s", name_of(act), bytes, shared ? "shared" : "global",
                 shared ? " in this block" : "");
        if (writes(act)) memset(state, kWritten, bytes);
    }
    const Warp& warp = launch.warps[t->warp];
    const u32 who = pack_who(t->number, warp.clock_of_lane(t->lane));
    for (u64 word = offset >> 2; word <= (offset + bytes - 1) >> 2; ++word) {
        const u64 low = std::max(offset, word * 4), high = std::min(offset + bytes, word * 4 + 4);
        if (high - low == 4 && !shadow.words[word].by_byte) {
            visit(shadow.words[word], who, address, bytes, act, site, shared);
            continue;
        }
        if (!shadow.words[word].by_byte) split_word(word);
        for (u64 byte = low; byte < high; ++byte) visit(shadow.bytes[byte], who, address, bytes, act, site, shared);
    }
}

void note_atomic(u64 address, bool reads_it, bool writes_it, bool replaces) {
    Thread& t = *launch.current;
    if (writes_it && t.fence != nullptr) {
        SyncVariable& variable = launch.variables[address];
        if (variable.released.empty() || variable.released.back() != t.fence) variable.released.push_back(t.fence);
    } else if (replaces) {
        const auto found = launch.variables.find(address);
        if (found != launch.variables.end() && !found->second.released.empty()) found->second.released.push_back(nullptr);
    }
    if (reads_it) {
        const auto found = launch.variables.find(address);
        if (found != launch.variables.end()) t.seen.emplace_back(&found->second, found->second.released.size());
    }
}

}  // namespace emu

using emu::Act;

namespace {

inline void plain(void* address, unsigned bytes, Act act, void* site, bool aligned) {
    emu::access(reinterpret_cast<emu::u64>(address), bytes, act, site, aligned);
}

inline void volatile_(void* address, unsigned bytes, Act act, void* site) {
    if (emu::launch.current == nullptr) return;
    // A wide volatile access is several accesses on a device, so it orders nothing.
    if (bytes > 8) return plain(address, bytes, act == Act::atomic_read ? Act::read : Act::write, site, true);
    if (!emu::launch.stacks.contains(reinterpret_cast<emu::u64>(address))) emu::maybe_yield();
    plain(address, bytes, act, site, true);
    emu::note_atomic(reinterpret_cast<emu::u64>(address), act == Act::atomic_read, act == Act::atomic_write, act == Act::atomic_write);
}

}  // namespace

#define HERE __builtin_return_address(0)
#define CALLBACKS(n)                                                                                        \
    void __tsan_read##n(void* a) { plain(a, n, Act::read, HERE, true); }                                    \
    void __tsan_write##n(void* a) { plain(a, n, Act::write, HERE, true); }                                  \
    void __tsan_unaligned_read##n(void* a) { plain(a, n, Act::read, HERE, false); }                         \
    void __tsan_unaligned_write##n(void* a) { plain(a, n, Act::write, HERE, false); }                       \
    void __tsan_volatile_read##n(void* a) { volatile_(a, n, Act::atomic_read, HERE); }                      \
    void __tsan_volatile_write##n(void* a) { volatile_(a, n, Act::atomic_write, HERE); }                    \
    void __tsan_unaligned_volatile_read##n(void* a) { volatile_(a, n, Act::atomic_read, HERE); }            \
    void __tsan_unaligned_volatile_write##n(void* a) { volatile_(a, n, Act::atomic_write, HERE); }

extern "C" {
CALLBACKS(1)
CALLBACKS(2)
CALLBACKS(4)
CALLBACKS(8)
CALLBACKS(16)
void __tsan_read_range(void* a, unsigned long bytes) { plain(a, unsigned(bytes), Act::read, HERE, false); }
void __tsan_write_range(void* a, unsigned long bytes) { plain(a, unsigned(bytes), Act::write, HERE, false); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void* emu_memcpy(void* to, const void* from, unsigned long bytes) {
    plain(const_cast<void*>(from), unsigned(bytes), Act::read, HERE, false);
    plain(to, unsigned(bytes), Act::write, HERE, false);
    return memmove(to, from, bytes);
}
void* emu_memset(void* to, int value, unsigned long bytes) {
    plain(to, unsigned(bytes), Act::write, HERE, false);
    return memset(to, value, bytes);
}
}
