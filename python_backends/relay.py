"""Triton adapter of NAME: plain infer calls, handed on to the engine NAME_stream.

A decoupled model refuses plain calls, so this one takes them. It is not decoupled, yet returns at once and answers each
request when its text is there: callers never wait for one another. Owns nothing but this.
"""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton_python_backend_utils as pb

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """The relay's instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Note the engine's name; the configuration's parameter `callers` bounds the calls that are under way."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        self.engine = parameters["engine"]
        self.inputs = [tensor["name"] for tensor in config["input"] if tensor["name"] != "stream"]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self.loop = asyncio.new_event_loop()
        # async_exec runs in the loop's executor, whose default has a handful of threads.
        self.callers = ThreadPoolExecutor(int(parameters["callers"]))
        self.loop.set_default_executor(self.callers)
        self.thread = threading.Thread(target=self.loop.run_forever, name="relay")
        self.thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Take the requests; their responses come later."""
        for request in requests:
            asyncio.run_coroutine_threadsafe(self._relay(request, request.get_response_sender()), self.loop)

    def finalize(self) -> None:
        """Stop the loop; Triton has seen every request answered by now."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.callers.shutdown()

    async def _relay(self, request: Any, sender: Any) -> None:
        try:
            response = await self._ask(request)
        except Exception as error:  # of any kind: the caller must not wait for ever
            response = pb.InferenceResponse(error=pb.TritonError(f"{self.engine} can't be asked: {error}"))
        sender.send(response, flags=FINAL)

    async def _ask(self, request: Any) -> Any:
        given = (pb.get_input_tensor_by_name(request, name) for name in self.inputs)
        wanted = [name for name in self.outputs if name in request.requested_output_names()] or self.outputs
        call = pb.InferenceRequest(
            model_name=self.engine,
            inputs=[tensor for tensor in given if tensor is not None],
            requested_output_names=wanted,
            request_id=request.request_id(),
        )
        for response in await call.async_exec(decoupled=True):
            if response.has_error():
                return pb.InferenceResponse(error=response.error())
            if response.output_tensors():
                return pb.InferenceResponse(response.output_tensors())
        return pb.InferenceResponse(error=pb.TritonError(f"{self.engine} did not answer"))
