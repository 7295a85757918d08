"""A kill leaves a workspace in its old or its new state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hfx.batch.azure.jobs import jobs
from hfx.batch.azure.workspace import Workspace
from tests.rigs.machine.faults import Killer

WORK = """
from pathlib import Path
from hfx.batch.azure.deployment import parse_deployment
from hfx.batch.azure.documents import read_document
from hfx.batch.azure.jobs import create_job
from hfx.batch.azure.workspace import Endpoint, Workspace

def work(arm, action, folder):
    folder = Path(folder)
    workspace = Workspace(folder / ".hfx")
    arm()
    if action == "create":
        workspace.write_endpoint(Endpoint("texts-batch", None, {}))
        deployment = parse_deployment(read_document(folder / "d.yml"), folder, folder)
        deployment = workspace.write_deployment(deployment, set_default=True)
        create_job(workspace, deployment, [str(folder / "code")], None, "job")
    else:
        workspace.delete_endpoint("texts-batch")
"""
DEPLOYMENT = "name: first\nendpoint_name: texts-batch\ncode_configuration: {code: code, scoring_script: score.py}\n"


def state(folder: Path) -> tuple[list[str], ...]:
    """Return the files of a workspace; each one that is found can be read."""
    workspace = Workspace(folder / ".hfx")
    endpoints = workspace.endpoints()
    deployments = [each for endpoint in endpoints for each in workspace.deployments(endpoint.name)]
    defaults = [endpoint.default for endpoint in endpoints if endpoint.default]
    return [each.name for each in endpoints], [each.name for each in deployments], defaults, [
        job.deployment.name for job in jobs(workspace) if job.invocation.files
    ]  # fmt: skip


@pytest.mark.slow
def test_a_kill_at_any_change_leaves_a_workspace_that_can_be_read_and_written_again(tmp_path: Path) -> None:
    new, created = tmp_path / "new", tmp_path / "created"
    (new / "code").mkdir(parents=True)
    (new / "code" / "score.py").write_text("def init(): ...\n", encoding="utf-8")
    (new / "d.yml").write_text(DEPLOYMENT, encoding="utf-8")
    shutil.copytree(new, created)
    nothing, whole = ([], [], [], []), (["texts-batch"], ["first"], ["first"], ["first"])
    with Killer(WORK) as killer:
        assert killer.kill(0, "create", str(created))
        for action, origin, before, after in (
            ("create", new, nothing, whole),
            ("delete", created, whole, ([], [], [], ["first"])),
        ):
            at, changes, seen = 0, None, []
            while changes is None:
                at += 1
                folder = tmp_path / f"{action}-{at}"
                shutil.copytree(origin, folder)
                changes = killer.kill(at, action, str(folder))
                seen.append(state(folder))
                if changes is None and action == "create" and seen[-1] != whole:
                    assert killer.kill(0, action, str(folder))
                    assert state(folder) == whole
            assert at > 5
            assert (seen[0], seen[-1]) == (before, after)
