#include "device_runner.h"
#include <errno.h>
#include <unistd.h>
#include "model.h"

namespace hfx {
namespace {

constexpr const char *THREAD = "hfx-gpu";  // at most 15 characters
constexpr const char *LOST = "[hfx:ENGINE_UNREACHABLE] The GPU has failed, and the server is started again. Try again in a minute.";
constexpr const char *FULL = "[hfx:QUEUE_FULL] The GPU has no memory left for this request. Send fewer texts at a time, or try again later.";
constexpr const char *FULL_WORDS[] = {"out of memory", "Failed to allocate memory"};
// A process that has lost its GPU can't use it again. It ends after the time in which its requests are refused; what
// has started it starts it again: `hfx serve`, a container's runtime.
constexpr int EXIT_CODE = 86;
constexpr unsigned SECONDS_TO_END = 1;

bool is_full(const Text &reason) {
    bool full = false;
    for (const char *words : FULL_WORDS) full = full || (!reason.empty() && memmem(reason.data(), reason.size(), words, strlen(words)));
    return full;
}

void *end_process(void *) {
    sleep(SECONDS_TO_END);
    _exit(EXIT_CODE);
}

}  // namespace

// What the thread needs to open the net, until it has done so.
struct DeviceRunner::Opening {
    DeviceRunner *runner;
    const Json *config;
    const char *folder, *output;
    int number;
    Text *error;
    bool opened = false;
    sem_t done = {};
};

bool DeviceRunner::open(const Json &config, const char *folder, const char *output, int number, const Settings &settings, Text &error) {
    settings_ = &settings;
    for (Flight &each : flights_)
        if (!each.slices.reserve(Shapes::MOST_SEQUENCES + 1)) return false;
    Opening opening = {this, &config, folder, output, number, &error};
    if (sem_init(&waiting_, 0, 0) || sem_init(&opening.done, 0, 0) || pthread_create(&thread_, nullptr, serve, &opening))
        return refuse(error, "the system has no thread for the net");
    has_thread_ = true;
    pthread_setname_np(thread_, THREAD);
    while (sem_wait(&opening.done) && errno == EINTR) {}
    sem_destroy(&opening.done);
    return opening.opened;
}

DeviceRunner::~DeviceRunner() {
    if (!has_thread_) return;
    __atomic_store_n(&ends_, true, __ATOMIC_RELEASE);
    wake();
    pthread_join(thread_, nullptr);
    sem_destroy(&waiting_);
}

void *DeviceRunner::serve(void *argument) {
    Opening &opening = *static_cast<Opening *>(argument);
    DeviceRunner &own = *opening.runner;
    opening.opened = own.net_.open(*opening.config, opening.folder, opening.output, opening.number, own.settings_->widths, *opening.error);
    sem_post(&opening.done);
    for (;;) {
        while (sem_wait(&own.waiting_) && errno == EINTR) {}
        if (__atomic_load_n(&own.ends_, __ATOMIC_ACQUIRE)) return nullptr;
        own.lead();
    }
}

// Runs the requests of the queue. While a run computes, the next one begins if so much waits that it pays; else it begins
// when the run is done, before that run's requests are answered, so that it has more requests.
void DeviceRunner::lead() {
    for (size_t place = 0;; place = !place) {
        Flight &other = flights_[!place];
        bool begun = launch(place);
        if (!other.taken && !begun) return;
        if (!other.taken) continue;
        arrive(!place);
        if (!begun) launch(place);
        if (other.taken) answer(other);
    }
}

// Begins the next run in a place. Returns false if too little waits; then this thread leads no more, unless the requests
// in the other place are still to be answered.
bool DeviceRunner::launch(size_t place) {
    Flight &flight = flights_[place], &other = flights_[!place];
    size_t width = 0;
    while (next_run(flight, width, other)) {
        const Slice *slices = flight.slices.data();
        const size_t count = flight.slices.size();
        flight.began = now(), flight.taken = true, flight.computes = false;
        for (size_t at = 0; at < count; at++) {
            flight.computes = flight.computes || slices[at].count;
            if (!slices[at].job->began) slices[at].job->began = flight.began;
        }
        if (!was_lost_ && (!flight.computes || begin(slices, count, width, place))) return true;
        flight.computes = false;
        if (other.taken) arrive(!place), answer(other);  // it may have an earlier part of a request
        run_again(slices, count, place);
        answer(flight);
    }
    return false;
}

// Finds the slices of the next run. Runs of large requests take turns, also with small requests.
bool DeviceRunner::next_run(Flight &flight, size_t &width, const Flight &other) {
    const size_t least = other.computes ? Shapes::FEW_TOKENS : 0;
    for (;;) {
        if (small_.next(flight.slices, width)) return true;
        size_t in_turns = 0;
        for (const DevicePlan &each : large_) in_turns += !each.empty();
        Job *between = in_turns && large_was_last_ ? queue.next_small() : nullptr;
        large_was_last_ = !between;
        if (between) {
            take(small_, between);
            continue;
        }
        for (size_t at = 0; in_turns && at < TURNS; at++) {
            turn_ = (turn_ + 1) % TURNS;
            Job *job = large_[turn_].empty() ? queue.next_large() : nullptr;
            if (job) take(large_[turn_], job);
            if (large_[turn_].next(flight.slices, width)) return true;
        }
        if (Job *batch = queue.next(other.taken, least)) take(batch->work > queue.bound.large ? large_[turn_] : small_, batch);
        else return false;
    }
}

void DeviceRunner::take(DevicePlan &plan, Job *batch) {
    for (Job *job = plan.take(batch), *next; job; job = next) {
        next = job->next;
        job->fail(triton::UNAVAILABLE);
        if (job->work > queue.bound.large) queue.finish(*job);
        job->model->finish(job);
    }
}

// Begins a run of slices, which have sequences of at most `width` tokens.
bool DeviceRunner::begin(const Slice *slices, size_t count, size_t width, size_t place) {
    size_t sequences = 0;
    for (size_t at = 0; at < count; at++) sequences += slices[at].count;
    Shape shape = net_.shapes().of(sequences, width);
    fill(slices, count, place, shape);
    return net_.begin(place, shape, reason_);
}

void DeviceRunner::fill(const Slice *slices, size_t count, size_t place, Shape shape) const {
    const size_t inputs = net_.has_types() ? 3 : 2;
    for (size_t which = 0; which < inputs; which++) {
        int32_t *to = net_.input(place, shape, which), pad = which == 0 ? settings_->pad_id : which == 1 ? 0 : settings_->pad_type_id;
        size_t left = shape.sequences;
        for (size_t at = 0; at < count; at++) {
            const Tokens &tokens = slices[at].job->tokens;
            const Array<int32_t> &from = which == 0 ? tokens.ids : which == 1 ? tokens.mask : tokens.types;
            for (size_t each = 0; each < slices[at].count; each++, to += shape.width, left--) {
                memcpy(to, from.data() + (slices[at].first + each) * tokens.width, tokens.width * sizeof(int32_t));
                for (size_t token = tokens.width; token < shape.width; token++) to[token] = pad;
            }
        }
        // Sequences that fill the shape have one token, because an operator may not take a sequence of none.
        for (; left; left--, to += shape.width)
            for (size_t token = 0; token < shape.width; token++) to[token] = which == 1 ? !token : pad;
    }
}

// Waits for the run in a place if it computes, and gives its requests their outputs.
void DeviceRunner::arrive(size_t place) {
    Flight &flight = flights_[place];
    const float *output = nullptr;
    if (!flight.computes) return;
    if (was_lost_ || !net_.wait(place, output, reason_)) run_again(flight.slices.data(), flight.slices.size(), place);
    else collect(flight.slices.data(), flight.slices.size(), output);
    flight.computes = false, flight.ended = now();
}

// Gives each request its part of an output. A request for which there is no memory fails.
void DeviceRunner::collect(const Slice *slices, size_t count, const float *output) {
    for (size_t at = 0; at < count; at++) {
        Job &job = *slices[at].job;
        size_t numbers = slices[at].count * net_.classes();
        if (!job.failed() && !job.made.data.append(output, numbers)) job.fail(triton::UNAVAILABLE);
        output += numbers;
    }
}

// Runs slices whose run has failed in halves, so that each request that can be answered is answered: memory may suffice
// for fewer sequences, and a single request may be the reason. Waits for the results.
void DeviceRunner::run_again(const Slice *slices, size_t count, size_t place) {
    if (net_.lost()) lose(reason_);
    if (was_lost_) return give_up(slices, count, reason_);
    Slice parts[2] = {slices[0], slices[0]};
    if (count == 1) {
        if (slices[0].count < 2 || !is_full(reason_)) return give_up(slices, count, reason_);
        parts[0].count /= 2, parts[0].last = false;
        parts[1].first += parts[0].count, parts[1].count -= parts[0].count;
    }
    for (size_t half = 0; half < 2; half++) {
        const Slice *own = count == 1 ? parts + half : slices + half * (count / 2);
        size_t size = count == 1 ? 1 : half ? count - count / 2 : count / 2, width = 0;
        bool wanted = false;
        for (size_t at = 0; at < size; at++) {
            size_t each = own[at].job->tokens.width;
            width = each > width ? each : width, wanted = wanted || !own[at].job->failed();
        }
        const float *output = nullptr;
        if (!wanted) continue;
        if (begin(own, size, width, place) && net_.wait(place, output, reason_)) collect(own, size, output);
        else run_again(own, size, place);
    }
}

void DeviceRunner::give_up(const Slice *slices, size_t count, const Text &reason) {
    for (size_t at = 0; at < count; at++) {
        Job &job = *slices[at].job;
        if (job.failed()) continue;
        if (was_lost_ || is_full(reason)) {
            job.fail(triton::UNAVAILABLE, was_lost_ ? LOST : FULL);
            continue;
        }
        Text words;
        if (!reason.empty() && append(words, "the model could not be run: ") && append(words, {reason.data(), reason.size()}))
            job.reason = static_cast<Text &&>(words);
        job.fail(triton::INTERNAL);
    }
}

// Answers the requests whose last slice has run, and reports the run.
void DeviceRunner::answer(Flight &flight) {
    const Array<Slice> &slices = flight.slices;
    const uint64_t began = flight.began, ended = flight.ended > began ? flight.ended : now();
    size_t rows = 0, tokens = 0;
    bool single = false;
    TRITONBACKEND_ModelInstance *instance = nullptr;
    for (const Slice &each : slices) {
        Job &job = *each.job;
        tokens += each.count * job.tokens.width;
        single = job.work > queue.bound.large;
        if (single) queue.computed(job, each.count * job.tokens.width);
        job.ended = ended;
        if (!each.last) continue;
        Array<int64_t> &shape = job.made.shape;
        bool shaped = shape.push(int64_t(job.tokens.rows)) && (settings_->task != Task::ZERO_SHOT_CLASSIFICATION || shape.push(int64_t(job.tokens.sequences))) &&
                      shape.push(int64_t(net_.classes()));
        if (!job.failed() && (!shaped || !job.model->answer(job))) job.fail(job.reason.empty() ? triton::UNAVAILABLE : triton::INVALID_ARGUMENT);
        if (job.code != triton::CANCELLED) rows += job.inputs.rows, instance = job.instance;
        else job.began = job.ended = 0;  // its time is not the net's
    }
    if (rows) triton::done(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, rows, began, began, ended, now()));
    for (const Slice &each : slices) {
        if (!each.last) continue;
        if (single) queue.finish(*each.job);
        each.job->model->finish(each.job);
    }
    queue.ran(single ? 0 : rows, tokens, ended - (landed_ > began ? landed_ : began));
    landed_ = ended;
    flight.taken = false;
}

void DeviceRunner::lose(const Text &reason) {
    if (was_lost_) return;
    was_lost_ = true;
    Text line;
    pthread_t thread;
    if (append(line, "The GPU has failed (") && append(line, {reason.data(), reason.size()}) && append(line, "). This process refuses requests and ends.") && line.push('\0'))
        triton::log(triton::ERROR, line.data());
    if (pthread_create(&thread, nullptr, end_process, nullptr)) _exit(EXIT_CODE);
    pthread_detach(thread);
}

}  // namespace hfx
