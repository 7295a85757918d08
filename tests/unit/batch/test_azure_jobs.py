"""Jobs of scoring scripts: results, errors in a script, and kills."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.rigs.files.azure_scripts import ENDPOINT, Rig
from tests.rigs.machine.waiting import wait_until

QUICK = "settings: {mini_batch_size: 1, retry_settings: {max_retries: 1, timeout: 5}}"
# Each file is a command to run().
ACTING = """
    import ctypes, os, sys, time
    def init():
        pass
    def run(files):
        for file in files:
            action = open(file).read()
            if action == "raise":
                raise ValueError("this file")
            if action == "exit":
                sys.exit(3)
            if action == "crash":
                ctypes.string_at(0)
            if action == "hang":
                time.sleep(60)
            if action == "print":
                print('{"elements": 7}', flush=True)
                os.write(1, b"\\xff\\n")
            if action == "none":
                return None
            if action == "less":
                return []
        return [os.path.basename(file) for file in files]
"""


@pytest.fixture
def rig(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Rig:
    return Rig(tmp_path, capsys)


def output(job: dict[str, object]) -> list[str]:
    return (Path(str(job["output"])) / "predictions.csv").read_text(encoding="utf-8").splitlines()


def test_results_come_in_the_order_of_the_files_from_any_number_of_processes(rig: Rig) -> None:
    rig.deploy(
        """
        import os, time
        def init():
            pass
        def run(files):
            time.sleep(0.2 if files[0].endswith("00.txt") else 0)
            return [f"{os.path.basename(file)} {os.getpid()}" for file in files]
        """,
        yaml="resources: {instance_count: 2}\nsettings: {mini_batch_size: 2, max_concurrency_per_instance: 2}",
    )
    code, out, err = rig.hfx("invoke", ENDPOINT, "--input", rig.files(9), "--wait", "--json")
    assert code == 0, err
    lines = [line.split() for line in output(json.loads(out))]
    assert [name for name, _ in lines] == [f"{number:02d}.txt" for number in range(9)]
    assert 2 <= len({process for _, process in lines}) <= 4


def test_failing_mini_batches_are_tried_again_and_cost_no_other(rig: Rig) -> None:
    rig.deploy(ACTING, yaml=QUICK)
    actions = ("raise", "exit", "crash", "hang", "none", "less")  # between files that are answered
    files = rig.files(2 * len(actions) + 1)
    for place, action in enumerate(actions):
        (files / f"{2 * place + 1:02d}.txt").write_text(action, encoding="utf-8")
    job = rig.wait(rig.invoke("--input", files, "--timeout", "1")["name"])
    assert (job["status"], job["failed"]) == ("Completed", len(actions))
    assert output(job) == [f"{2 * place:02d}.txt" for place in range(len(actions) + 1)]
    tried_again = re.findall(r"Mini-batch (\d+), try 2 of 2", rig.log(job["name"]))
    assert sorted(map(int, tried_again)) == [2, 4, 6, 8, 10]  # what gives less is no failure of the mini-batch


def test_what_a_script_prints_is_in_the_log_and_no_result(rig: Rig) -> None:
    rig.deploy(ACTING)
    job = rig.wait(rig.invoke("--input", rig.files(2, "print"))["name"])
    assert (job["status"], output(job)) == ("Completed", ["00.txt", "01.txt"])
    log = rig.workspace / "jobs" / job["name"] / "logs" / "process000.txt"
    assert log.read_bytes().count(b'{"elements": 7}\n\xff\n') == 2


@pytest.mark.parametrize("body", ["raise OSError('no model')", "import sys; sys.exit(4)"])
def test_a_job_fails_at_once_when_init_does(body: str, rig: Rig) -> None:
    rig.deploy(f"def init():\n    {body}\ndef run(files):\n    return files\n")
    code, _, err = rig.hfx("invoke", ENDPOINT, "--input", rig.files(1), "--wait", "--job-name", "doomed")
    assert code == 2
    assert "init()" in err
    assert rig.show("doomed")["status"] == "Failed"
    assert "OSError: no model" in rig.log("doomed") or "exit code 4" in rig.log("doomed")


@pytest.mark.parametrize(("threshold", "code"), [("2", 0), ("1", 6)])
def test_more_failed_files_than_the_threshold_end_the_job(threshold: str, code: int, rig: Rig) -> None:
    rig.deploy(ACTING, yaml=QUICK)
    files = rig.files(4)
    for name in ("01.txt", "02.txt"):
        (files / name).write_text("raise", encoding="utf-8")
    words = ("--input", files, "--error-threshold", threshold, "--job-name", "counted", "--wait")
    assert rig.hfx("invoke", ENDPOINT, *words)[0] == code
    job = rig.show("counted")
    assert (job["status"], job["failed"]) == ("Failed" if code else "Completed", 2)
    assert (Path(job["output"]) / "predictions.csv").exists() == (code == 0)


def test_a_killed_job_is_paused_and_ends_in_the_same_bytes(rig: Rig) -> None:
    rig.deploy(
        """
        import os, time
        def init():
            pass
        def run(files):
            gate = os.path.join(os.path.dirname(files[0]), "..", "gate")
            while files[0].endswith("03.txt") and not os.path.exists(gate):
                time.sleep(0.02)
            with open(os.path.join(os.path.dirname(files[0]), "..", "runs"), "a") as log:
                print(os.path.basename(files[0]), os.getpid(), file=log)
            return [os.path.basename(file) for file in files]
        """,
        yaml="settings: {mini_batch_size: 1}",
    )
    files = rig.files(5)
    job = rig.invoke("--input", files)["name"]
    wait_until(lambda: rig.show(job)["done"] == 3, "three mini-batches")
    rig.kill(job)
    assert rig.show(job)["status"] == "Paused"
    assert rig.hfx("job", "stream", job)[0] == 2
    runs = [line.split() for line in (rig.folder / "runs").read_text(encoding="utf-8").splitlines()]
    wait_until(lambda: not Path(f"/proc/{runs[0][1]}").exists(), "the end of the script's process")
    (rig.folder / "gate").touch()
    rig.done("job", "resume", job)
    ended = rig.wait(job)
    assert (ended["status"], output(ended)) == ("Completed", [f"{number:02d}.txt" for number in range(5)])
    runs = [line.split() for line in (rig.folder / "runs").read_text(encoding="utf-8").splitlines()]
    assert [name for name, _ in runs] == [f"{number:02d}.txt" for number in range(5)]


def test_a_paused_job_refuses_inputs_that_have_changed(rig: Rig) -> None:
    rig.deploy("import time\ndef init():\n    time.sleep(60)\ndef run(files):\n    return files\n")
    files = rig.files(1)
    job = rig.invoke("--input", files)["name"]
    rig.kill(job)
    (files / "00.txt").write_text("other", encoding="utf-8")
    code, _, err = rig.hfx("job", "resume", job)
    assert code == 2
    assert "00.txt is not" in err


def test_a_job_that_hangs_in_init_can_be_cancelled_and_resumed(rig: Rig) -> None:
    rig.deploy(
        """
        import os, time
        def init():
            time.sleep(0 if os.path.exists("../resumed") else 60)
        def run(files):
            return [1]
        """
    )
    job = rig.invoke("--input", rig.files(1))["name"]
    assert rig.done("job", "cancel", job)["status"] == "Cancelled"
    assert rig.hfx("job", "cancel", job)[0] == 2
    assert rig.hfx("job", "stream", job)[0] == 130
    (rig.workspace / "jobs" / job / "resumed").touch()
    rig.done("job", "resume", job)
    assert output(rig.wait(job)) == ["1"]


def test_a_part_that_can_not_be_written_pauses_the_job(rig: Rig) -> None:
    rig.deploy(
        """
        import os, resource
        def init():
            if not os.path.exists(os.path.join(os.path.dirname(os.getcwd()), "..", "..", "..", "room")):
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        def run(files):
            return ["x" * 5000]
        """
    )
    job = rig.wait(rig.invoke("--input", rig.files(1))["name"])
    assert (job["status"], job["done"], job["failed"]) == ("Paused", 0, 0)
    assert "Free some space" in rig.log(job["name"])
    (rig.folder / "room").touch()
    rig.done("job", "resume", job["name"])
    assert (rig.wait(job["name"])["status"], output(job)) == ("Completed", ["x" * 5000])


def test_a_failed_job_goes_on_with_a_higher_threshold(rig: Rig) -> None:
    rig.deploy(ACTING, yaml=QUICK)
    files = rig.files(3)
    (files / "01.txt").write_text("raise", encoding="utf-8")
    job = rig.wait(rig.invoke("--input", files, "--error-threshold", "0")["name"])
    assert job["status"] == "Failed"
    rig.done("job", "resume", job["name"], "--error-threshold", "1")
    assert (rig.wait(job["name"])["status"], output(job)) == ("Completed", ["00.txt", "02.txt"])


def test_a_result_that_was_changed_is_not_published(rig: Rig) -> None:
    rig.deploy(ACTING, yaml=QUICK)
    files = rig.files(3)
    (files / "02.txt").write_text("raise", encoding="utf-8")
    name = rig.wait(rig.invoke("--input", files, "--error-threshold", "0")["name"])["name"]
    part = rig.workspace / "jobs" / name / "parts" / "000001.0"
    part.write_text("11.txt\n", encoding="utf-8")
    rig.done("job", "resume", name, "--error-threshold", "1")
    job = rig.wait(name)
    assert job["status"] == "Failed" and "000001.0 is damaged: its SHA-256" in str(job["error"])
    part.unlink()
    rig.done("job", "resume", name)
    assert (rig.wait(name)["status"], output(job)) == ("Completed", ["00.txt", "01.txt"])


def test_deployments_of_one_endpoint_do_not_disturb_each_other(rig: Rig) -> None:
    script = """
        import os, time
        NAME = "%s"
        def init():
            with open("name.txt", "w") as file:
                file.write(NAME)
        def run(files):
            time.sleep(0.1)
            if NAME == "worse":
                os.abort()
            return [open("name.txt").read() + " " + os.path.basename(file) for file in files]
        """
    for name in ("first", "second", "worse"):
        rig.deploy(script % name, name=name, yaml=QUICK)
    files = rig.files(4)
    started = {name: rig.invoke("--input", files, "-d", name)["name"] for name in ("worse", "first", "second")}
    jobs = {name: rig.wait(job) for name, job in started.items()}
    assert {name: job["failed"] for name, job in jobs.items()} == {"worse": 4, "first": 0, "second": 0}
    for name in ("first", "second"):
        assert output(jobs[name]) == [f"{name} {number:02d}.txt" for number in range(4)]


def test_a_script_finds_what_azure_gives_it(rig: Rig) -> None:
    rig.deploy(
        """
        import argparse, json, os
        import helper
        def init():
            parser = argparse.ArgumentParser()
            parser.add_argument("--logging_level")
            global level
            level = parser.parse_known_args()[0].logging_level
        def run(files):
            model = os.path.join(os.environ["AZUREML_MODEL_DIR"], "weights", "a.txt")
            with open(os.path.join(os.environ["AZUREML_BI_OUTPUT_PATH"], "own.txt"), "w") as file:
                print(open(model).read(), level, os.environ["SIZE"], helper.VALUE, open("data.txt").read(), file=file)
            return files
        """,
        yaml="""
        environment_variables: {SIZE: 3}
        settings: {output_action: summary_only, logging_level: DEBUG}
        """,
    )
    for name, content in {"helper.py": "VALUE = 'helped'", "data.txt": "data"}.items():
        (rig.folder / "code-first" / name).write_text(content, encoding="utf-8")
    (rig.folder / "weights").mkdir()
    (rig.folder / "weights" / "a.txt").write_text("weights", encoding="utf-8")
    rig.done("deployment", "create", "-f", rig.folder / "first.yml", "--set", "model.path=weights")
    job = rig.wait(rig.invoke("--input", rig.files(1), "--output-path", rig.folder / "out")["name"])
    assert job["status"] == "Completed", rig.log(job["name"])
    assert {path.name: path.read_text(encoding="utf-8") for path in (rig.folder / "out").iterdir()} == {
        "own.txt": "weights debug 3 helped data\n"
    }


def test_an_output_that_exists_is_refused(rig: Rig) -> None:
    rig.deploy()
    (rig.folder / "out").mkdir()
    code, _, err = rig.hfx("invoke", ENDPOINT, "--input", rig.files(1), "--output-path", rig.folder / "out")
    assert code == 2
    assert "exists already" in err
    assert not list((rig.workspace / "jobs").glob("[!.]*"))
