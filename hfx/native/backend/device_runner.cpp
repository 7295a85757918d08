#include "device_runner.h"
#include <unistd.h>
#include "refusals.h"
#include "triton.h"

namespace hfx {
namespace {

constexpr const char *THREAD = "hfx-gpu";
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

bool DeviceRunner::open(const NetOptions &options, int32_t &, Text &error) {
    options_ = &options, settings_ = &options.settings;
    queue.bound = options.bound;
    // max_batch_size limits a request. On a GPU, a batch may have more rows.
    if (queue.bound.batch < Shapes::MOST_SEQUENCES) queue.bound.batch = Shapes::MOST_SEQUENCES;
    queue.bound.large = Shapes::MOST_TOKENS, queue.bound.tokens = queue.bound.batch * settings_->max_length;
    if (!plan_.open() || !done_.reserve(Shapes::MOST_SEQUENCES + 1)) return false;
    for (PendingRun &run : runs_)
        if (!run.slices.reserve(Shapes::MOST_SEQUENCES + 1)) return false;
    if (!thread_.start(*this, THREAD, error)) return false;
    if (!opened_) error = static_cast<Text &&>(reason_);
    return opened_;
}

void DeviceRunner::begin() {
    const NetOptions &options = *options_;
    opened_ = net_.open(options.config, options.folder, options.output, options.gpu, settings_->widths, reason_);
}

// While a run computes, the next one begins if so much waits that it pays; else it begins when the run is done, before
// that run's requests are answered, so that it has more requests.
void DeviceRunner::run() {
    for (size_t place = 0;; place = !place) {
        PendingRun &other = runs_[!place];
        bool begun = begin_run(place);
        if (!other.taken && !begun) return;
        if (!other.taken) continue;
        wait(!place);
        if (!begun) begin_run(place);
        if (other.taken) answer(other);
    }
}

// Begins the next run in a place. Returns false if too little waits; then the thread goes back to waiting, unless the
// requests in the other place are still to be answered.
bool DeviceRunner::begin_run(size_t place) {
    PendingRun &run = runs_[place], &other = runs_[!place];
    while (next_slices(run, other)) {
        const Slice *slices = run.slices.data();
        const size_t count = run.slices.size();
        run.began = now(), run.taken = true, run.computes = false;
        for (size_t at = 0; at < count; at++) {
            run.computes = run.computes || slices[at].count;
            if (!slices[at].job->began) slices[at].job->began = run.began;
        }
        if (!was_lost_ && (!run.computes || submit(slices, count, place))) return true;
        run.computes = false;
        if (other.taken) wait(!place), answer(other);  // it may have an earlier part of a request
        run_again(slices, count, place);
        answer(run);
    }
    return false;
}

// Finds the slices of the next run: of the batch that has begun, or else of what the queue has next.
bool DeviceRunner::next_slices(PendingRun &run, const PendingRun &other) {
    const size_t least = other.computes ? Shapes::FEW_TOKENS : 0;
    while (!plan_.next(run.slices)) {
        Job *batch = queue.next(other.taken, least);
        if (!batch) return false;
        plan_.take(batch);
    }
    const Slice &slice = run.slices[0];
    if (!queue.is_large(*slice.job)) return true;
    plan_.take(nullptr);  // its next part waits for its turn
    if (slice.last) queue.end_turns(*slice.job);
    return true;
}

// Has the net run slices in a place.
bool DeviceRunner::submit(const Slice *slices, size_t count, size_t place) {
    size_t sequences = 0, width = 0;
    for (size_t at = 0; at < count; at++) {
        const size_t own = slices[at].count ? slices[at].job->tokens.width : 0;
        sequences += slices[at].count, width = own > width ? own : width;
    }
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
void DeviceRunner::wait(size_t place) {
    PendingRun &run = runs_[place];
    const float *output = nullptr;
    if (!run.computes) return;
    if (was_lost_ || !net_.wait(place, output, reason_)) run_again(run.slices.data(), run.slices.size(), place);
    else collect(run.slices.data(), run.slices.size(), output);
    run.computes = false, run.ended = now();
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
    if (was_lost_) return give_up(slices, count);
    Slice parts[2] = {slices[0], slices[0]};
    if (count == 1) {
        if (slices[0].count < 2 || !is_full(reason_)) return give_up(slices, count);
        parts[0].count /= 2, parts[0].last = false;
        parts[1].first += parts[0].count, parts[1].count -= parts[0].count;
        slices = parts, count = 2;
    }
    for (size_t half = 0; half < 2; half++) {
        const Slice *own = slices + half * (count / 2);
        const size_t size = half ? count - count / 2 : count / 2;
        const float *output = nullptr;
        bool wanted = false;
        for (size_t at = 0; at < size; at++) wanted = wanted || !own[at].job->failed();
        if (!wanted) continue;
        if (submit(own, size, place) && net_.wait(place, output, reason_)) collect(own, size, output);
        else run_again(own, size, place);
    }
}

// Fails the requests of slices, because of the last error.
void DeviceRunner::give_up(const Slice *slices, size_t count) {
    for (size_t at = 0; at < count; at++) {
        Job &job = *slices[at].job;
        if (job.failed()) continue;
        if (was_lost_ || is_full(reason_)) job.fail(triton::UNAVAILABLE, was_lost_ ? LOST : FULL);
        else job.fail_run(reason_);
    }
}

// Answers the requests whose last slice has run.
void DeviceRunner::answer(PendingRun &run) {
    const uint64_t began = run.began, ended = run.ended > began ? run.ended : now();
    const bool large = queue.is_large(*run.slices[0].job);
    size_t tokens = 0;
    done_.clear();
    for (const Slice &slice : run.slices) {
        Job &job = *slice.job;
        const size_t computed = slice.count * job.tokens.width;
        tokens += computed;
        if (large) queue.computed(job, slice.last ? job.rest : computed);
        if (!slice.last) continue;
        Array<int64_t> &shape = job.made.shape;
        bool shaped = done_.push(&job) && shape.push(int64_t(job.tokens.rows)) &&
                      (!settings_->nested() || shape.push(int64_t(job.tokens.sequences))) && shape.push(int64_t(net_.classes()));
        if (!job.failed() && !shaped) job.fail(triton::UNAVAILABLE);
    }
    const size_t rows = answer_jobs(done_.data(), done_.size(), began, ended);
    queue.ran(large ? 0 : rows, tokens, ended - (last_ended_ > began ? last_ended_ : began));
    last_ended_ = ended;
    run.taken = false;
}

void DeviceRunner::lose(const Text &reason) {
    if (was_lost_) return;
    was_lost_ = true;
    Text line;
    pthread_t thread;
    refuse_with(line, "The GPU has failed (", reason, "). This process refuses requests and ends.");
    if (line.push('\0')) triton::log(triton::ERROR, line.data());
    if (pthread_create(&thread, nullptr, end_process, nullptr)) _exit(EXIT_CODE);
    pthread_detach(thread);
}

}  // namespace hfx
