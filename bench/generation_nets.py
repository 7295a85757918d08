"""The peers' nets on the cases of this benchmark: token ids in, so that nobody's tokenizer is measured.

Opened in a process of its own. How a net computes stands in bench.peers.
"""

from __future__ import annotations

from bench.arrivals import Served
from bench.generation_cases import THREADS, Batch, Load, Model
from bench.peers.cases import Wanted
from bench.peers.loads import Line, Prompt
from bench.peers.nets import Attending, OpenNet
from bench.peers.resident import Prepare, Run


def open_ids(opener: OpenNet, model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """Answers a Batch with the number of new tokens of each row, a Load with Served."""
    net = opener(model, folder, fetched, precision, THREADS)

    def prepare(case: Batch | Load) -> Run:
        if isinstance(case, Load):
            return lambda: _served(net, case)
        prompts, wanted = case.prompts(), Wanted(case.new, case.beams, case.ngram)
        return lambda: tuple(len(row) for row in net.generate(prompts, wanted))

    return prepare


def _served(net: Attending, load: Load) -> Served:
    arrivals = load.arrivals()
    line = Line([each.at for each in arrivals])
    net.attend(line, lambda number: Prompt(arrivals[number].prompt, arrivals[number].new), load.batch, load.unlike)
    return Served.of(load, [each.end for each in line.times])
