"""A load on a SageMaker endpoint, with boto3's signatures, by locust:

    ENDPOINT=sentiment locust -f examples/sagemaker_load.py --headless --users 32 --spawn-rate 4 --run-time 5m

Texts come from the file TEXTS, one a line. GENERATE=1 is for endpoints of generators.
Needs pip install locust boto3, and credentials as boto3 takes them.
"""

from __future__ import annotations

import json
import os
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import boto3
from locust import User, task

PATH = os.environ.get("TEXTS")
TEXTS = cycle(Path(PATH).read_text(encoding="utf-8").splitlines() if PATH else ["A lovely garden, and kind people."])


def request(text: str) -> dict[str, Any]:
    """What /invocations takes: the body of Triton's /generate, or of its /infer."""
    if os.environ.get("GENERATE"):
        return {"text_input": text}
    return {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]}


class Caller(User):
    """Sends its next request when the answer is there."""

    def on_start(self) -> None:
        """Open a connection."""
        self.client = boto3.client("sagemaker-runtime")

    @task
    def invoke(self) -> None:
        """Time one request."""
        body, begun, content, failure = json.dumps(request(next(TEXTS))), time.perf_counter(), b"", None
        try:
            answer = self.client.invoke_endpoint(
                EndpointName=os.environ["ENDPOINT"], ContentType="application/json", Body=body
            )
            content = answer["Body"].read()
        except Exception as error:
            failure = error
        self.environment.events.request.fire(
            request_type="invoke",
            name=os.environ["ENDPOINT"],
            response_time=1000 * (time.perf_counter() - begun),
            response_length=len(content),
            exception=failure,
        )
