"""The container's health check: `python3 -m liveness http://HOST:PORT [METRICS_URL]`, exit code 0 or 1, one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .calls import NO_ANSWER
from .probe import Target, probes
from .verdicts import send


def main(arguments: Sequence[str]) -> int:
    """Print one line about the server whose URLs are `arguments`; returns 0 when all of its models can answer."""
    parser = argparse.ArgumentParser(description="Whether the models of a Triton server can answer.")
    parser.add_argument("http_url", help="http://HOST:PORT")
    parser.add_argument("metrics_url", nargs="?", default="", help="http://HOST:PORT/metrics")
    target = Target(**vars(parser.parse_args(arguments)))
    try:
        requests = probes(target)
    except NO_ANSWER as error:
        print(f"unhealthy: no Triton server answers at {target.http_url} ({type(error).__name__}: {error})")
        return 1
    names = ", ".join(probe.model for probe in requests) or "no model takes a probe"
    with ThreadPoolExecutor(len(requests) or 1) as threads:
        deaths = list(filter(None, threads.map(lambda probe: send(target, probe), requests)))
    print(f"unhealthy: {'; '.join(death.reason for death in deaths)}" if deaths else f"healthy: {names}")
    return 1 if deaths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
