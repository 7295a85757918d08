#include "runs.h"

namespace hfx {
namespace {

// The numbers of rows, or of sequences of a row, of a run if padding is computed: each new shape costs a runtime some
// milliseconds once. A run has at most MOST_ELEMENTS elements, unless one sequence has more, so that the data between
// layers stays in the caches; 1,000 sequences of 20 tokens in one run took 0.8 GB, which the runtime kept (bart-large).
constexpr size_t RUN_ROWS[] = {64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1};
// PART_ELEMENTS is the same of a run for some sequences of a row: requests that are not large wait for one such run at most.
constexpr size_t MOST_ELEMENTS = 1024, PART_ELEMENTS = 512, FEW_ELEMENTS = 256, NEAR = 2;

size_t per_row(const Job &job) { return job.tokens.sequences * job.tokens.width; }

// The order of jobs: by their number of sequences, then the widest first. sort() leaves equal jobs in their order.
bool comes_before(const Job &one, const Job &other) {
    if (one.tokens.sequences != other.tokens.sequences) return one.tokens.sequences > other.tokens.sequences;
    return one.tokens.width > other.tokens.width;
}

void sort(Array<Job *> &jobs) {
    for (size_t at = 1; at < jobs.size(); at++) {
        Job *job = jobs[at];
        size_t to = at;
        for (; to && comes_before(*job, *jobs[to - 1]); to--) jobs[to] = jobs[to - 1];
        jobs[to] = job;
    }
}

}  // namespace

void Run::whole(Job **jobs, size_t count) {
    if (fed(jobs, count) && net_->run(feed_, values_, reason_) && split(jobs, count)) return;
    alone(jobs, count);
}

void Run::parts(Job **jobs, size_t count) {
    begin(jobs, count);
    while (!has_ended()) next();
    finish(jobs, count);
}

void Run::alone(Job **jobs, size_t count, bool parted) {
    if (count > 1) {
        for (size_t at = 0; at < count; at++) parted ? parts(jobs + at, 1) : whole(jobs + at, 1);
        return;
    }
    jobs[0]->fail_run(reason_);
}

bool Run::fed(Job **jobs, size_t count) {
    feed_.clear();
    for (size_t at = 0; at < count; at++) {
        const Tokens &tokens = jobs[at]->tokens;
        if (!feed_.ids.append(tokens.ids.data(), tokens.ids.size()) || !feed_.mask.append(tokens.mask.data(), tokens.mask.size()) ||
            !feed_.types.append(tokens.types.data(), tokens.types.size()))
            return false;
        if (jobs[at]->slot >= 0 && !feed_.slots.resize(feed_.slots.size() + tokens.rows * tokens.sequences, jobs[at]->slot)) return false;
        if (!feed_.add_rows(tokens.rows, tokens.sequences, tokens.width)) return false;
    }
    return true;
}

void Run::begin(Job **jobs, size_t count) {
    all_.data.clear(), all_.shape.clear(), reason_.clear();
    failed_ = !fed(jobs, count);
    sequences_ = jobs[0]->tokens.sequences, width_ = jobs[0]->tokens.width;
    cut_ = feed_.rank == 2 && sequences_ * width_ > MOST_ELEMENTS;
    unit_ = cut_ ? width_ : sequences_ * width_;
    units_ = cut_ ? sequences_ : feed_.rows, lines_ = cut_ ? feed_.rows : 1;
    const size_t most = cut_ ? PART_ELEMENTS : MOST_ELEMENTS;
    most_ = most / unit_ ? most / unit_ : 1;
    line_ = from_ = 0;
}

size_t Run::next() {
    size_t size = units_ - from_ < most_ ? units_ - from_ : most_;
    for (size_t each : RUN_ROWS)
        if (each <= size) {
            size = each;
            break;
        }
    failed_ = !next_of(size);
    from_ += size;
    if (from_ == units_) line_++, from_ = 0;
    return failed_ ? 0 : size * unit_;
}

// Runs the next `size` units, and adds their output to `all_`.
bool Run::next_of(size_t size) {
    if (!part((line_ * units_ + from_) * unit_, size * unit_, cut_ ? 1 : size, cut_ ? size : sequences_)) return false;
    if (!net_->run(part_, values_, reason_)) return false;
    if (all_.shape.empty() && !all_.shape.append(values_.shape.data(), values_.shape.size())) return false;
    return all_.data.append(values_.data.data(), values_.data.size());
}

// Copies `count` elements of the whole feed, from `from` on, to `part_`, as `rows` rows of `sequences` sequences.
bool Run::part(size_t from, size_t count, size_t rows, size_t sequences) {
    part_.clear();
    if (!part_.add_rows(rows, sequences, width_)) return false;
    if (!feed_.slots.empty() && !part_.slots.append(feed_.slots.data() + from / width_, rows * sequences)) return false;
    return part_.ids.append(feed_.ids.data() + from, count) && part_.mask.append(feed_.mask.data() + from, count) &&
           (feed_.types.empty() || part_.types.append(feed_.types.data() + from, count));
}

void Run::finish(Job **jobs, size_t count) {
    if (cut_ && all_.shape.size() > 1) all_.shape[1] = int64_t(sequences_);
    if (!failed_) values_ = static_cast<Values &&>(all_);
    if (failed_ || !split(jobs, count)) alone(jobs, count, true);
}

bool Run::split(Job **jobs, size_t count) {
    if (!feed_.rows || values_.data.size() % feed_.rows) return refuse(reason_, "the net's output has another number of rows");
    size_t each = values_.data.size() / feed_.rows, from = 0;
    for (size_t at = 0; at < count; at++) {
        Values &made = jobs[at]->made;
        made.data.clear(), made.shape.clear();
        size_t rows = jobs[at]->tokens.rows;
        if (!made.shape.append(values_.shape.data(), values_.shape.size()) || !made.data.append(values_.data.data() + from, rows * each)) {
            reason_.clear();
            return false;
        }
        made.shape[0] = int64_t(rows);
        from += rows * each;
    }
    return true;
}

bool Run::agrees(Job **jobs, size_t count, Job *one) {
    if (one->failed()) return true;
    const Values together = static_cast<Values &&>(one->made);
    whole(&one, 1);
    if (one->failed() || agree(together, one->made)) return true;
    for (size_t at = 0; at < count; at++) jobs[at]->fail(triton::INTERNAL, "the answers of several requests may have been mixed, so none is given");
    return false;
}

namespace {

// Returns how many of the sorted jobs, from `from` on, share a run.
size_t near_widths(const Array<Job *> &jobs, size_t from, size_t &elements) {
    const Job &widest = *jobs[from];
    size_t rows = widest.tokens.rows, end = from + 1;
    elements = rows * per_row(widest);
    for (; end < jobs.size() && jobs[end]->tokens.sequences == widest.tokens.sequences; end++) {
        size_t more = (rows + jobs[end]->tokens.rows) * per_row(widest);
        bool near = widest.tokens.width <= NEAR * jobs[end]->tokens.width || more <= FEW_ELEMENTS;
        if (!near || more > MOST_ELEMENTS) break;
        rows += jobs[end]->tokens.rows, elements = more;
    }
    return end - from;
}

size_t same_shapes(const Array<Job *> &jobs, size_t from) {
    size_t end = from + 1, rows = jobs[from]->tokens.rows;
    for (; end < jobs.size() && !comes_before(*jobs[from], *jobs[end]); end++) {
        rows += jobs[end]->tokens.rows;
        if (rows * per_row(*jobs[from]) > MOST_ELEMENTS) break;
    }
    return end - from;
}

// Moves the jobs that are not cancelled to the front, and returns their number.
size_t still_wanted(Job **jobs, size_t count) {
    size_t wanted = 0;
    for (size_t at = 0; at < count; at++) {
        Job *job = jobs[at];
        if (is_cancelled(*job)) {
            job->fail(triton::CANCELLED, CANCELLED);
            continue;
        }
        jobs[at] = jobs[wanted], jobs[wanted++] = job;
    }
    return wanted;
}

}  // namespace

Runs::Runs(const Net &net, bool skips_padding, size_t item_rank, Array<Job *> &jobs, Checks &checks)
    : net_(net), skips_padding_(skips_padding), item_rank_(item_rank), jobs_(jobs), checks_(checks) {
    sort(jobs);
}

Job **Runs::next(size_t &count) {
    if (at_ == jobs_.size()) return nullptr;
    Job **jobs = jobs_.data() + at_;
    size_t elements = 0;
    count = skips_padding_ ? near_widths(jobs_, at_, elements) : same_shapes(jobs_, at_);
    at_ += count;
    size_t wanted = still_wanted(jobs, count);
    if (!wanted) return jobs;
    Run run;
    run.open(net_, item_rank_);
    if (skips_padding_ && elements <= MOST_ELEMENTS) run.whole(jobs, wanted);
    else run.parts(jobs, wanted);
    size_t one = 0;
    if (skips_padding_ && checks_.is_due(wanted, one)) checks_.count(run.agrees(jobs, wanted, jobs[one]));
    return jobs;
}

}  // namespace hfx
