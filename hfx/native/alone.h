// Whether the run of this thread keeps its operators to this thread: others then run beside it, each in its own.
#pragma once

namespace hfx {

inline thread_local bool runs_alone = false;

}  // namespace hfx
