"""The search with real Optuna on a made-up server: what it finds, gives up, records, and how it goes on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from hfx.errors import ServerError, UsageError
from hfx.perf.tuning.pace import Clock
from hfx.perf.tuning.score import score
from hfx.perf.tuning.search import Measure, first, search
from hfx.perf.tuning.space import Settings, Space
from hfx.perf.tuning.study import PUBLISHED, Study, Trial, opened
from tests.unit.perf_tuning_runs import PACE, SPACE, MadeUp, capacity, made_space, run

TREE = Path(__file__).parents[2]
IDENTITY = {"model": "m"}
SMALL = made_space(instances=(1, 2), threads=(8, 2), delay=(0,), batch=(64,))


def begin(study: Study, server: MadeUp) -> Trial:
    with server.opened(PUBLISHED, study.space.old) as measure:
        return first(study, server.clock, measure)


def searched(path: Path, count: int, *, space: Space = SPACE, seed: int = 0, again: bool = True) -> list[Trial]:
    """The trials of the study in PATH after COUNT more."""
    server = MadeUp()
    with opened(path, IDENTITY, space, seed, again) as study:
        if study.old is None:
            begin(study, server)
            count -= 1
        list(islice(search(study, server.clock, server.opened), count))
        return study.trials


def test_what_is_published_is_measured_first_and_in_full(tmp_path: Path) -> None:
    server = MadeUp()
    with opened(tmp_path / "s.db", IDENTITY, SPACE, 0, again=False) as study:
        trial = begin(study, server)
    assert (trial.label, trial.settings, trial.state) == (PUBLISHED, SPACE.old, "complete")
    assert [seconds for _, _, seconds in server.measured] == [1.0, 3.0, 9.0]


def test_the_search_comes_close_to_the_best_settings(tmp_path: Path) -> None:
    trials = searched(tmp_path / "s.db", 45)
    full = [trial for trial in trials if trial.state == "complete"]
    best = max(full, key=lambda trial: score(trial.runs).value)
    assert capacity(best.settings) >= 0.97 * 404
    assert len({str(trial.settings) for trial in trials}) == 45, "no settings are measured twice"


def test_the_same_seed_searches_the_same(tmp_path: Path) -> None:
    one, two, other = (searched(tmp_path / name, 8, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert [trial.settings for trial in one] == [trial.settings for trial in two]
    assert [trial.settings for trial in one] != [trial.settings for trial in other]


def test_poor_settings_are_given_up_after_a_short_measurement(tmp_path: Path) -> None:
    server = MadeUp()
    with opened(tmp_path / "s.db", IDENTITY, SPACE, 0, again=False) as study:
        begin(study, server)
        trials = list(islice(search(study, server.clock, server.opened), 30))
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert len(pruned) > 15
    spent = sum(seconds for _, _, seconds in server.measured)
    assert spent < 0.6 * 13 * 31, "with all in full length it would be 13 s a trial"
    lengths = {trial.label: [s for label, _, s in server.measured if label == trial.label] for trial in pruned}
    assert all(seconds in ([1.0], [1.0, 3.0]) for seconds in lengths.values())


def test_a_search_ends_when_everything_was_tried(tmp_path: Path) -> None:
    trials = searched(tmp_path / "s.db", 100, space=SMALL)
    assert len(trials) == SMALL.size == 4


def test_a_search_ends_after_so_many_trials(tmp_path: Path) -> None:
    server = MadeUp()
    with opened(tmp_path / "s.db", IDENTITY, SPACE, 0, again=False) as study:
        begin(study, server)
        assert len(list(search(study, server.clock, server.opened, most=3))) == 2
        assert list(search(study, server.clock, server.opened, most=3)) == []


def test_a_trial_that_does_not_start_is_recorded_with_words_and_the_search_goes_on(tmp_path: Path) -> None:
    server = MadeUp(broken={"instances": 2})
    with opened(tmp_path / "s.db", IDENTITY, SMALL, 0, again=False) as study:
        begin(study, server)
        trials = list(search(study, server.clock, server.opened))
    failed = [trial for trial in trials if trial.state == "failed"]
    assert [trial.settings["instances"] for trial in failed] == [2, 2]
    assert {trial.reason for trial in failed} == {"the model does not load:\nno room"}
    assert len(trials) == 3


def test_what_is_published_must_be_measurable(tmp_path: Path) -> None:
    server = MadeUp(broken={"instances": 1})
    with opened(tmp_path / "s.db", IDENTITY, SMALL, 0, again=False) as study:
        with pytest.raises(ServerError, match="does not load"):
            begin(study, server)
        assert study.trials == []


def test_trials_end_with_the_time(tmp_path: Path) -> None:
    server = MadeUp()
    with opened(tmp_path / "s.db", IDENTITY, SPACE, 0, again=False) as study:
        begin(study, server)
        shortest = PACE.overhead + PACE.measurement(0)
        assert list(search(study, Clock(PACE, time.monotonic() + shortest - 0.2), server.opened)) == []
        one = list(islice(search(study, Clock(PACE, time.monotonic() + shortest + 0.5), server.opened), 1))
    assert [trial.state for trial in one] == ["pruned"], "there was no time for its longer measurements"


def test_an_interrupted_measurement_is_no_trial_and_comes_first_next_time(tmp_path: Path) -> None:
    server, path = MadeUp(), tmp_path / "s.db"
    with opened(path, IDENTITY, SMALL, 0, again=False) as study:
        begin(study, server)
        with pytest.raises(KeyboardInterrupt):
            next(search(study, server.clock, lambda label, settings: interrupted(server, label, settings)))
        assert len(study.trials) == 1
    with opened(path, IDENTITY, SMALL, 0, again=False) as study:
        trial = next(search(study, server.clock, server.opened))
    assert trial.settings == server.measured[3][1]


def interrupted(server: MadeUp, label: str, settings: Settings) -> AbstractContextManager[Measure]:
    server.measured.append((label, settings, 0.0))
    return nullcontext(lambda seconds: (replace(run(label), interrupted=True),))


# The file


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s.db"
    before = searched(path, 6)
    after = searched(path, 4)
    assert after[:6] == before
    assert [trial.label for trial in after] == [PUBLISHED, *(f"trial {n}" for n in range(1, 10))]
    assert len({str(trial.settings) for trial in after}) == 10


@pytest.mark.parametrize(("again", "known"), [(False, 0), (True, 4)])
def test_a_finished_search_begins_anew_unless_its_file_was_named(tmp_path: Path, again: bool, known: int) -> None:
    path = tmp_path / "s.db"
    searched(path, 4)
    with opened(path, IDENTITY, SPACE, 0, again=False) as study:
        assert len(study.trials) == 4
        study.note("done", True)
    with opened(path, IDENTITY, SPACE, 0, again) as study:
        assert len(study.trials) == known


def test_other_models_loads_and_choices_are_other_searches_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    searched(path, 3)
    for identity, space in (({"model": "n"}, SPACE), (IDENTITY, SMALL)):
        with opened(path, identity, space, 0, again=True) as study:
            assert study.trials == []
    assert len(searched(path, 0)) == 3


def test_two_processes_do_not_search_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db", IDENTITY, SPACE, 0, again=True):
        code = (
            "from pathlib import Path\nfrom hfx.errors import UsageError\n"
            "from tests.unit.test_perf_tuning_search import IDENTITY, SPACE, opened\n"
            f"try:\n    opened(Path({str(tmp_path / 's.db')!r}), IDENTITY, SPACE, 0, True).__enter__()\n"
            "except UsageError as error:\n    print(error.message)"
        )
        said = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True, check=False)
    assert said.stdout.startswith("Another hfx tune is at work"), said.stderr


def test_a_file_that_is_no_study_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_text("something else, that is long enough to be looked at as a database " * 100)
    with pytest.raises(UsageError, match="no study that can be used"), opened(path, IDENTITY, SPACE, 0, again=True):
        pass


def test_a_place_that_can_t_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "s.db"
    with pytest.raises(UsageError, match="can't be written"), opened(path, IDENTITY, SPACE, 0, again=True):
        pass


KILLED = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    from tests.unit import test_perf_tuning_search as tests

    class Mortal(tests.MadeUp):
        def opened(self, label, settings):
            if label == "trial 3":
                print(dict(settings), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return super().opened(label, settings)

    tests.MadeUp = Mortal
    tests.searched(Path(sys.argv[1]), 10)
""")


def test_a_killed_search_goes_on_with_the_trial_that_it_was_killed_in(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    command = [sys.executable, "-c", KILLED, str(path)]
    killed = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -9, killed.stderr
    server = MadeUp()
    with opened(path, IDENTITY, SPACE, 0, again=False) as study:
        assert [trial.label for trial in study.trials] == [PUBLISHED, "trial 1", "trial 2"]
        assert all(trial.runs for trial in study.trials)
        trial = next(search(study, server.clock, server.opened))
    assert str(dict(trial.settings)) == killed.stdout.strip()
