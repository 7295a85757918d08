// Decides which requests share a run of the net: requests of one shape, or of similar widths if padding costs nearly
// nothing, so that each has the answer, to the bit, that it has alone. The rules are those of
// python_backends/onnxruntime/ragged.py.
#pragma once
#include "checks.h"
#include "job.h"

namespace hfx {

// Runs of the net for jobs that share them. An item has `item_rank` sizes: 1 for a row of tokens, 2 for several
// sequences.
class Run {
public:
    void open(const Net &net, size_t item_rank) { net_ = &net, feed_.rank = part_.rank = item_rank; }

    // Runs the net once for the rows of `jobs`, and gives each job its part of the output. If that fails, each job is run
    // alone.
    void whole(Job **jobs, size_t count);
    // Does the same for jobs of one shape, in runs of the numbers of rows in RUN_ROWS.
    void parts(Job **jobs, size_t count);

    // The same as `parts`, for a caller that does something else between the runs. Parts are whole rows, or a row's
    // sequences if a row has too many elements.
    void begin(Job **jobs, size_t count);
    // Runs the next part, and returns the number of its tokens. Returns 0 if a run has failed.
    size_t next();
    // Runs one of the jobs of a run again, alone. Fails all of them if that gives another output.
    bool agrees(Job **jobs, size_t count, Job *one);
    bool has_ended() const { return failed_ || line_ == lines_; }
    void finish(Job **jobs, size_t count);

private:
    void alone(Job **jobs, size_t count, bool parted = false);
    bool fed(Job **jobs, size_t count);
    bool part(size_t from, size_t count, size_t rows, size_t sequences);
    bool next_of(size_t size);
    bool split(Job **jobs, size_t count);

    const Net *net_ = nullptr;
    Feed feed_, part_;
    Values values_, all_;
    Text reason_;
    bool failed_ = false, cut_ = false;
    // A part has at most `most_` units: rows, or sequences of a row that is cut. `lines_` rows of `units_` units are cut;
    // otherwise, all rows are one line. The next part begins at the unit `from_` of `line_`.
    size_t sequences_ = 1, width_ = 0, unit_ = 0, units_ = 0, lines_ = 0, most_ = 1, line_ = 0, from_ = 0;
};

class Runs {
public:
    // Divides `jobs`, whose order changes, into runs.
    Runs(const Net &net, bool skips_padding, size_t item_rank, Array<Job *> &jobs, Checks &checks);

    // Runs the net for the next jobs, and returns them, or null if all jobs have run. Jobs for which the net fails, or
    // which are cancelled by now, have failed; the others have the net's output.
    Job **next(size_t &count);

private:
    const Net &net_;
    const bool skips_padding_;
    const size_t item_rank_;
    Array<Job *> &jobs_;
    Checks &checks_;
    size_t at_ = 0;
};

}  // namespace hfx
