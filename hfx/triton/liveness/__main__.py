"""The container's health check: `python3 -m liveness http://HOST:PORT [METRICS_URL]`, exit code 0 or 1, one line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from .calls import NO_ANSWER, answer
from .probe import Target, probes, send


def main(arguments: Sequence[str]) -> int:
    """Print one line about the server whose URLs are `arguments`, and return 0 if all of its models can answer."""
    parser = argparse.ArgumentParser(description="Whether the models of a Triton server can answer.")
    parser.add_argument("http_url", help="http://HOST:PORT; https is tried, too, where that is an `hfx serve`")
    parser.add_argument("metrics_url", nargs="?", default="", help="http://HOST:PORT/metrics")
    target = Target(**vars(parser.parse_args(arguments)))
    is_healthy, line = _verdict_of_serve(target.http_url) or _verdict_of_probes(target)
    print(line)
    return 0 if is_healthy else 1


def _verdict_of_serve(http_url: str) -> tuple[bool, str] | None:
    """Return the verdict of `hfx serve` from its /health, which needs no key; None if only Triton answers."""
    for url in (http_url, http_url.replace("http://", "https://", 1)):
        try:
            status, content = answer(f"{url}/health")
            if status == HTTPStatus.OK:
                return True, "healthy: by hfx serve"
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                return False, f"unhealthy: {json.loads(content)['error']}"
            return None
        except NO_ANSWER:
            continue
    return None


def _verdict_of_probes(target: Target) -> tuple[bool, str]:
    try:
        requests = probes(target)
    except NO_ANSWER as error:
        return False, f"unhealthy: no Triton server answers at {target.http_url} ({type(error).__name__}: {error})"
    with ThreadPoolExecutor(len(requests) or 1) as threads:
        deaths = list(filter(None, threads.map(lambda probe: send(target, probe), requests)))
    if deaths:
        return False, f"unhealthy: {'; '.join(death.reason for death in deaths)}"
    return True, f"healthy: {', '.join(probe.model for probe in requests) or 'no model takes a probe'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
