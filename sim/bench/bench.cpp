// The bench's traffic sources, memory and log. Called once a cycle with the design's outputs as they were at the rising edge;
// returns the design's inputs for the next cycle. Everything it drives is registered, so it adds no combinational path.
//
// Configuration: a text file named by the environment variable PAGETIDE_BENCH, one "key value" a line (see `Config`).
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "layout.h"
#include "svdpi.h"

namespace {

using namespace layout;

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "bench: %s\n", message.c_str());
    std::fflush(stderr);
    std::_Exit(3);
}

uint64_t get(const uint32_t* vector, int offset, int bits) {
    uint64_t value = 0;
    for (int done = 0; done < bits;) {
        const int at = offset + done, shift = at & 31;
        const int take = std::min(32 - shift, bits - done);
        const uint64_t part = (vector[at >> 5] >> shift) & (take == 32 ? 0xffffffffu : (1u << take) - 1u);
        value |= part << done;
        done += take;
    }
    return value;
}

void put(uint32_t* vector, int offset, int bits, uint64_t value) {
    for (int done = 0; done < bits;) {
        const int at = offset + done, shift = at & 31;
        const int take = std::min(32 - shift, bits - done);
        const uint32_t mask = take == 32 ? 0xffffffffu : (1u << take) - 1u;
        vector[at >> 5] = (vector[at >> 5] & ~(mask << shift)) | ((uint32_t(value >> done) & mask) << shift);
        done += take;
    }
}

struct Config {
    std::string trace;        // requests: port by port, see `read_trace`
    std::string image;        // table pages: count, bases, contents
    std::string log;          // written at the end: one `Record` a request, in trace order
    std::string summary;      // written at the end: "key value" lines
    uint64_t root = 0, root_aperture = 1;
    uint64_t latency = 100;      // cycles from a read's handshake to its answer's, without jitter
    uint64_t jitter = 0;         // up to this many cycles more, at random: answers come out of order
    uint64_t outstanding = 256;  // reads the memory holds
    uint64_t read_interval = 1;  // cycles from one read's handshake to the next at the earliest: bandwidth
    uint64_t error_ppm = 0;      // reads in a million that end with SLVERR
    uint64_t hold_requests = 0;  // percent of cycles in which a port offers nothing
    uint64_t hold_responses = 0; // percent of cycles in which a port takes nothing
    uint64_t hold_memory = 0;    // percent of cycles in which the memory takes nothing
    uint64_t invalidate_every = 0;  // cycles between invalidations of everything; 0: none
    uint64_t watchdog = 200000;  // cycles without any progress after which the run is given up
    uint64_t seed = 1;
};

Config read_config() {
    const char* path = std::getenv("PAGETIDE_BENCH");
    if (!path) fail("the environment variable PAGETIDE_BENCH names no configuration file");
    std::ifstream file(path);
    if (!file) fail(std::string("cannot read ") + path);
    Config c;
    std::unordered_map<std::string, std::string*> texts = {
        {"trace", &c.trace}, {"image", &c.image}, {"log", &c.log}, {"summary", &c.summary}};
    std::unordered_map<std::string, uint64_t*> numbers = {
        {"root", &c.root}, {"root_aperture", &c.root_aperture}, {"latency", &c.latency}, {"jitter", &c.jitter},
        {"outstanding", &c.outstanding}, {"read_interval", &c.read_interval}, {"error_ppm", &c.error_ppm}, {"hold_requests", &c.hold_requests},
        {"hold_responses", &c.hold_responses}, {"hold_memory", &c.hold_memory},
        {"invalidate_every", &c.invalidate_every}, {"watchdog", &c.watchdog}, {"seed", &c.seed}};
    std::string key;
    while (file >> key) {
        std::string value;
        std::getline(file >> std::ws, value);
        if (texts.count(key)) *texts[key] = value;
        else if (numbers.count(key)) *numbers[key] = std::strtoull(value.c_str(), nullptr, 0);
        else fail("unknown configuration key " + key);
    }
    return c;
}

std::vector<uint64_t> read_words(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) fail("cannot read " + path);
    std::vector<uint64_t> words(size_t(file.tellg()) / 8);
    file.seekg(0);
    file.read(reinterpret_cast<char*>(words.data()), std::streamsize(words.size() * 8));
    return words;
}

// What became of one request; the layout is that of `pagetide.sim.scoreboard.RECORD`.
struct Record {
    uint64_t pa;
    uint64_t flash_page;
    uint64_t request_cycle;
    uint64_t response_cycle;
    uint8_t status, page_size, aperture, hit;
    uint32_t answers;
};
static_assert(sizeof(Record) == 40, "Record must match the reader");

struct Random {
    uint64_t state;
    uint64_t next() {  // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545f4914f6cdd1dull;
    }
    bool percent(uint64_t p) { return p && (next() >> 32) % 100 < p; }
};

struct Port {
    size_t first = 0, last = 0, next = 0;  // requests of this port in the trace
    bool offered = false;
    uint32_t offered_id = 0;
    std::vector<uint32_t> free_ids;
    std::vector<size_t> owner;   // request of each id in flight
    std::vector<uint8_t> in_flight;
};

struct Read {
    uint64_t due, order, id, address;
    bool operator>(const Read& other) const { return due != other.due ? due > other.due : order > other.order; }
};

class Bench {
public:
    Bench() : config_(read_config()), random_{config_.seed * 0x9e3779b97f4a7c15ull | 1} {
        read_trace();
        read_image();
        std::memset(ins_, 0, sizeof ins_);
        put(ins_, 0, 1, 1);
        put(ins_, ROOT + layout::ROOT_ADDRESS, layout::ROOT_ADDRESS_BITS, config_.root);
        put(ins_, ROOT + layout::ROOT_APERTURE, layout::ROOT_APERTURE_BITS, config_.root_aperture);
        histogram_.assign(HISTOGRAM, 0);
        last_due_.assign(size_t(1) << MEMORY_AR_ID_BITS, 0);
    }

    bool step(const uint32_t* outs, uint32_t* ins) {
        const uint64_t now = cycle_++;
        if (now < RESET_CYCLES) {
            put(ins_, 0, 1, now + 1 < RESET_CYCLES);
        } else {
            stream_rule(outs, now);
            walks(outs, now);
            responses(outs, now);
            requests(outs, now);
            memory(outs, now);
            invalidations(outs, now);
        }
        std::memcpy(ins, ins_, sizeof ins_);
        if (answered_ < records_.size()) {
            end_ = cycle_;
            hung_ = now - progress_ > config_.watchdog;
        }
        // Some cycles more: an answer too many, after the last one, must be seen.
        const bool done = hung_ || (answered_ == records_.size() && cycle_ - end_ > DRAIN_CYCLES);
        if (done) finish(outs);
        return done;
    }

    uint64_t answered() const { return answered_; }

private:
    static constexpr uint64_t RESET_CYCLES = 4;
    static constexpr uint64_t DRAIN_CYCLES = 64;
    static constexpr size_t HISTOGRAM = 1 << 16;

    Config config_;
    Random random_;
    uint32_t ins_[IN_WORDS];
    uint64_t cycle_ = 0, answered_ = 0, progress_ = 0, stray_ = 0, walks_ = 0, walk_cycles_ = 0, reads_ = 0, errors_ = 0;
    uint64_t invalidations_ = 0, order_ = 0, end_ = 0, next_read_ = 0, open_walks_ = 0;
    bool hung_ = false, invalidating_ = false, written_ = false;
    // Output streams whose item was not taken at the last edge, and the outputs at that edge.
    bool held_[PORTS + 1] = {};
    uint32_t held_outs_[OUT_WORDS];
    uint64_t rule_breaks_ = 0, first_break_cycle_ = 0, first_break_stream_ = 0;
    std::vector<uint64_t> trace_;
    std::vector<uint32_t> kernel_;
    std::vector<uint64_t> left_in_kernel_;
    size_t current_kernel_ = 0;
    std::vector<Record> records_;
    std::vector<Port> ports_{size_t(PORTS)};
    std::unordered_map<uint64_t, size_t> rows_;
    std::vector<uint64_t> image_;
    size_t contents_ = 0;
    std::priority_queue<Read, std::vector<Read>, std::greater<Read>> pending_;
    std::vector<uint64_t> last_due_;
    bool r_valid_ = false;
    uint64_t walk_start_[CONTEXTS] = {};
    std::vector<uint64_t> histogram_;

    // Trace file: requests of each port (PORTS words), then for each request a word: address in [48:0], access in [57:56];
    // then for each request its kernel. A port does not begin a kernel before all ports have ended those before it.
    void read_trace() {
        const auto words = read_words(config_.trace);
        if (words.size() < size_t(PORTS)) fail("the trace is cut short");
        size_t total = 0;
        for (int p = 0; p < PORTS; ++p) {
            ports_[p].first = ports_[p].next = total;
            total += words[p];
            ports_[p].last = total;
            for (uint32_t id = 0; id < (1u << ID_BITS); ++id) ports_[p].free_ids.push_back((1u << ID_BITS) - 1 - id);
            ports_[p].owner.assign(size_t(1) << ID_BITS, 0);
            ports_[p].in_flight.assign(size_t(1) << ID_BITS, 0);
        }
        if (words.size() != size_t(PORTS) + 2 * total) fail("the trace is cut short");
        trace_.assign(words.begin() + PORTS, words.begin() + PORTS + long(total));
        for (size_t n = 0; n < total; ++n) {
            kernel_.push_back(uint32_t(words[PORTS + total + n]));
            if (kernel_.back() >= left_in_kernel_.size()) left_in_kernel_.resize(kernel_.back() + 1, 0);
            ++left_in_kernel_[kernel_.back()];
        }
        records_.assign(total, Record{});
    }

    void read_image() {
        image_ = read_words(config_.image);
        if (image_.empty() || image_.size() != 1 + image_[0] * 513) fail("the table image is cut short");
        for (size_t row = 0; row < image_[0]; ++row) rows_[image_[1 + row]] = row;
        contents_ = 1 + image_[0];
    }

    bool read_word(uint64_t address, uint64_t& word) const {
        const auto found = rows_.find(address & ~uint64_t(4095));
        if (found == rows_.end()) return false;
        word = image_[contents_ + found->second * 512 + ((address & 4095) >> 3)];
        return true;
    }

    void walks(const uint32_t* outs, uint64_t now) {
        if (get(outs, WALK_DONE, 1)) {
            const uint64_t took = now - walk_start_[get(outs, WALK_DONE_CONTEXT, CONTEXT_BITS)];
            ++walks_;
            --open_walks_;
            walk_cycles_ += took;
            ++histogram_[std::min<size_t>(took, HISTOGRAM - 1)];
        }
        if (get(outs, WALK_START, 1)) {
            walk_start_[get(outs, WALK_START_CONTEXT, CONTEXT_BITS)] = now;
            ++open_walks_;
        }
    }

    // What is offered stays, unchanged, until it is taken: on each response stream and on the read address channel.
    void stream_rule(const uint32_t* outs, uint64_t now) {
        bool any = false;
        for (int n = 0; n <= PORTS; ++n) {
            const bool read = n == PORTS;
            const int valid = read ? AR_VALID : RESPONSE_VALID[n];
            if (held_[n] && !(get(outs, valid, 1) && same(outs, read ? AR_PAYLOAD : RESPONSE_PAYLOAD[n],
                                                          read ? AR_BITS : RESPONSE_BITS))) {
                if (!rule_breaks_++) {
                    first_break_cycle_ = now;
                    first_break_stream_ = uint64_t(n);
                }
            }
            held_[n] = get(outs, valid, 1) && !get(ins_, read ? AR_READY : RESPONSE_READY[n], 1);
            any = any || held_[n];
        }
        if (any) std::memcpy(held_outs_, outs, sizeof held_outs_);
    }

    bool same(const uint32_t* outs, int offset, int bits) const {
        for (int done = 0; done < bits; done += 64) {
            const int take = std::min(64, bits - done);
            if (get(outs, offset + done, take) != get(held_outs_, offset + done, take)) return false;
        }
        return true;
    }

    void responses(const uint32_t* outs, uint64_t now) {
        for (int p = 0; p < PORTS; ++p) {
            if (get(outs, RESPONSE_VALID[p], 1) && get(ins_, RESPONSE_READY[p], 1)) {
                const int base = RESPONSE_PAYLOAD[p];
                const uint64_t id = get(outs, base + RESPONSES_ID, RESPONSES_ID_BITS);
                Port& port = ports_[p];
                progress_ = now;
                if (!port.in_flight[id]) {
                    ++stray_;
                } else {
                    Record& record = records_[port.owner[id]];
                    record.status = uint8_t(get(outs, base + RESPONSES_STATUS, RESPONSES_STATUS_BITS));
                    record.page_size = uint8_t(get(outs, base + RESPONSES_PAGE_SIZE, RESPONSES_PAGE_SIZE_BITS));
                    record.aperture = uint8_t(get(outs, base + RESPONSES_APERTURE, RESPONSES_APERTURE_BITS));
                    record.hit = uint8_t(get(outs, base + RESPONSES_HIT, RESPONSES_HIT_BITS));
                    record.pa = get(outs, base + RESPONSES_PA, RESPONSES_PA_BITS);
                    record.flash_page = get(outs, base + RESPONSES_FLASH_PAGE, RESPONSES_FLASH_PAGE_BITS);
                    record.response_cycle = now;
                    ++record.answers;
                    port.in_flight[id] = 0;
                    port.free_ids.push_back(uint32_t(id));
                    ++answered_;
                    --left_in_kernel_[kernel_[port.owner[id]]];
                }
            }
            put(ins_, RESPONSE_READY[p], 1, !random_.percent(config_.hold_responses));
        }
        while (current_kernel_ + 1 < left_in_kernel_.size() && left_in_kernel_[current_kernel_] == 0) ++current_kernel_;
    }

    void requests(const uint32_t* outs, uint64_t now) {
        for (int p = 0; p < PORTS; ++p) {
            Port& port = ports_[p];
            if (port.offered && get(outs, REQUEST_READY[p], 1)) {
                records_[port.next].request_cycle = now;
                port.in_flight[port.offered_id] = 1;
                ++port.next;
                port.offered = false;
                progress_ = now;
            }
            if (!port.offered && port.next < port.last && !port.free_ids.empty() &&
                kernel_[port.next] <= current_kernel_ && !random_.percent(config_.hold_requests)) {
                const uint32_t id = port.free_ids.back();
                port.free_ids.pop_back();
                port.owner[id] = port.next;
                port.offered_id = id;
                const uint64_t word = trace_[port.next];
                const int base = REQUEST_PAYLOAD[p];
                put(ins_, base + REQUESTS_ID, REQUESTS_ID_BITS, id);
                put(ins_, base + REQUESTS_VA, REQUESTS_VA_BITS, word);
                put(ins_, base + REQUESTS_ACCESS, REQUESTS_ACCESS_BITS, word >> 56);
                port.offered = true;
            }
            put(ins_, REQUEST_VALID[p], 1, port.offered);
        }
    }

    void memory(const uint32_t* outs, uint64_t now) {
        if (get(ins_, AR_READY, 1) && get(outs, AR_VALID, 1)) {
            const uint64_t id = get(outs, AR_PAYLOAD + MEMORY_AR_ID, MEMORY_AR_ID_BITS);
            if (get(outs, AR_PAYLOAD + MEMORY_AR_LEN, MEMORY_AR_LEN_BITS)) fail("the memory takes single beats only");
            uint64_t due = now + config_.latency - 1;
            if (config_.jitter) due += (random_.next() >> 20) % (config_.jitter + 1);
            due = std::max(due, last_due_[id] + 1);  // answers to one id stay in order
            last_due_[id] = due;
            pending_.push({due, order_++, id, get(outs, AR_PAYLOAD + MEMORY_AR_ADDR, MEMORY_AR_ADDR_BITS)});
            ++reads_;
            next_read_ = now + config_.read_interval;
        }
        if (r_valid_ && get(outs, R_READY, 1)) r_valid_ = false;
        if (!r_valid_ && !pending_.empty() && pending_.top().due <= now) {
            answer(pending_.top());
            pending_.pop();
            r_valid_ = true;
        }
        put(ins_, R_VALID, 1, r_valid_);
        put(ins_, AR_READY, 1, pending_.size() + 1 < config_.outstanding && now + 1 >= next_read_ &&
                                   !random_.percent(config_.hold_memory));
    }

    void answer(const Read& read) {
        enum { OKAY = 0, SLVERR = 2, DECERR = 3 };
        const uint64_t base = read.address & ~uint64_t(BEAT_BYTES - 1);
        int response = OKAY;
        for (int n = 0; n < BEAT_BYTES / 8; ++n) {
            uint64_t word = 0;
            if (!read_word(base + 8 * uint64_t(n), word)) response = DECERR;
            put(ins_, R_PAYLOAD + MEMORY_R_DATA + 64 * n, 64, word);
        }
        if (config_.error_ppm && (random_.next() >> 32) % 1000000 < config_.error_ppm) {
            response = SLVERR;
            ++errors_;
        }
        put(ins_, R_PAYLOAD + MEMORY_R_ID, MEMORY_R_ID_BITS, read.id);
        put(ins_, R_PAYLOAD + MEMORY_R_RESP, MEMORY_R_RESP_BITS, uint64_t(response));
        put(ins_, R_PAYLOAD + MEMORY_R_LAST, MEMORY_R_LAST_BITS, 1);
    }

    void invalidations(const uint32_t* outs, uint64_t now) {
        if (!config_.invalidate_every) return;
        if (invalidating_ && get(outs, INVALIDATE_READY, 1)) {
            invalidating_ = false;
            ++invalidations_;
        }
        if (!invalidating_ && now % config_.invalidate_every == 0) invalidating_ = true;
        put(ins_, INVALIDATE_VALID, 1, invalidating_);
    }

    // What waits for what when a run is given up.
    template <typename Line>
    void outstanding(const uint32_t* outs, const Line& line) const {
        for (int p = 0; p < PORTS; ++p) {
            const Port& port = ports_[p];
            const std::string name = "hang.port." + std::to_string(p);
            line((name + ".in_flight").c_str(), uint64_t(std::count(port.in_flight.begin(), port.in_flight.end(), 1)));
            line((name + ".not_taken").c_str(), port.offered);
            line((name + ".not_offered").c_str(), port.last - port.next - port.offered);
        }
        line("hang.walks", open_walks_);
        line("hang.reads", pending_.size() + r_valid_);
        line("hang.read_not_taken", get(outs, AR_VALID, 1) && !get(ins_, AR_READY, 1));
        line("hang.answer_not_taken", r_valid_ && !get(outs, R_READY, 1));
        line("hang.invalidating", invalidating_);
    }

    void finish(const uint32_t* outs) {
        if (written_) return;
        written_ = true;
        std::FILE* log = std::fopen(config_.log.c_str(), "wb");
        if (!log || std::fwrite(records_.data(), sizeof(Record), records_.size(), log) != records_.size() ||
            std::fclose(log))
            fail("cannot write " + config_.log);
        std::FILE* out = std::fopen(config_.summary.c_str(), "w");
        if (!out) fail("cannot write " + config_.summary);
        auto line = [out](const char* key, uint64_t value) { std::fprintf(out, "%s %" PRIu64 "\n", key, value); };
        line("hung", hung_);
        line("cycles", end_ + 1 - RESET_CYCLES);
        line("requests", records_.size());
        line("answered", answered_);
        line("stray", stray_);
        line("walks", walks_);
        line("walk_cycles", walk_cycles_);
        line("reads", reads_);
        line("injected_errors", errors_);
        line("invalidations", invalidations_);
        line("rule_breaks", rule_breaks_);
        line("first_break_cycle", first_break_cycle_);
        line("first_break_stream", first_break_stream_);
        for (size_t n = 0; n < HISTOGRAM; ++n)
            if (histogram_[n]) std::fprintf(out, "walk_latency.%zu %" PRIu64 "\n", n, histogram_[n]);
        for (const auto& counter : COUNTERS) line(counter.name, get(outs, counter.offset, counter.bits));
        if (hung_) outstanding(outs, line);
        if (std::fclose(out)) fail("cannot write " + config_.summary);
    }
};

}  // namespace

extern "C" void bench_step(const svBitVecVal* outs, svBitVecVal* ins, svBit* finished, long long* answered) {
    static Bench bench;
    static bool done = false;
    if (!done) done = bench.step(outs, ins);
    *finished = done;
    *answered = static_cast<long long>(bench.answered());
}
