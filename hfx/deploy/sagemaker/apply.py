"""Creates, updates, awaits and deletes the endpoint of a written folder, with boto3.

The bodies of the calls are sent as they are in the folder. The names of a model and an endpoint configuration contain
the version, so a repeated call finds what it created before, and an update changes only the endpoint. boto3 finds the
credentials itself (environment, profile, instance role).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hfx.deploy.sagemaker.aws import ECR_PATTERN
from hfx.deploy.sagemaker.requests import containers, read_bodies
from hfx.errors import HfxError, ServerError, UsageError
from hfx.extras import install_command

POLL_SECONDS = 15
LONGEST_SECONDS = 3600
EXISTS = ("Cannot create already existing", "already exist")  # ValidationException has no separate code for this case
MISSING = ("Could not find", "does not exist", "No scalable target", "not found")

Report = Callable[[str], None]


def apply(folder: Path, report: Report) -> str:
    """Upload the archives, and create or update the endpoint. Returns its name. Archives in S3 are not replaced.

    Raises UsageError if boto3 is missing or the folder is not one of `hfx deploy sagemaker`, and ServerError with AWS's
    reason.
    """
    made = read_bodies(folder)
    sagemaker = _client("sagemaker", made)
    name: str = made["create-endpoint.json"]["EndpointName"]
    with _reasons():
        _upload(folder, made, report)
        _create(sagemaker.create_model, made["create-model.json"], report)
        _create(sagemaker.create_endpoint_config, made["create-endpoint-config.json"], report)
        current = _current(sagemaker, name)
        if current == made["create-endpoint.json"]["EndpointConfigName"]:
            report(f"The endpoint {name} is as written.")
        elif current:
            sagemaker.update_endpoint(**made["create-endpoint.json"])
            report(f"Updating the endpoint {name}.")
        else:
            sagemaker.create_endpoint(**made["create-endpoint.json"])
            report(f"Creating the endpoint {name}.")
    return name


def scale(folder: Path, report: Report) -> None:
    """Register the folder's autoscaling, if it has any. AWS accepts it only when the endpoint is in service."""
    made = read_bodies(folder)
    if "register-scalable-target.json" not in made:
        return
    scaling = _client("application-autoscaling", made)
    with _reasons():
        scaling.register_scalable_target(**made["register-scalable-target.json"])
        scaling.put_scaling_policy(**made["put-scaling-policy.json"])
    report(f"Up to {made['register-scalable-target.json']['MaxCapacity']} instances.")


def wait(folder: Path, poll_seconds: int = POLL_SECONDS) -> None:
    """Wait until the endpoint is in service. Raises ServerError with AWS's reason if it fails or takes an hour."""
    made = read_bodies(folder)
    sagemaker, name = _client("sagemaker", made), made["create-endpoint.json"]["EndpointName"]
    from botocore.exceptions import WaiterError

    attempts = max(1, LONGEST_SECONDS // max(poll_seconds, 1))
    with _reasons():
        try:
            sagemaker.get_waiter("endpoint_in_service").wait(
                EndpointName=name, WaiterConfig={"Delay": poll_seconds, "MaxAttempts": attempts}
            )
        except WaiterError as error:
            reason = error.last_response.get("FailureReason", str(error))
            raise ServerError(
                f"The endpoint {name} is not in service: {reason}",
                f"Its log: CloudWatch, group /aws/sagemaker/Endpoints/{name}.",
            ) from error


def delete(folder: Path, report: Report) -> None:
    """Delete the endpoint, its configuration and its model if they exist. The archives in S3 remain."""
    made = read_bodies(folder)
    sagemaker, scaling = _client("sagemaker", made), _client("application-autoscaling", made)
    target = made.get("register-scalable-target.json")
    with _reasons():
        if target:
            keys = ("ResourceId", "ServiceNamespace", "ScalableDimension")
            _delete(scaling.deregister_scalable_target, target, keys, report)
        _delete(sagemaker.delete_endpoint, made["create-endpoint.json"], ["EndpointName"], report)
        configuration = made["create-endpoint-config.json"]
        _delete(sagemaker.delete_endpoint_config, configuration, ["EndpointConfigName"], report)
        _delete(sagemaker.delete_model, made["create-model.json"], ["ModelName"], report)


def _client(service: str, made: dict[str, Any]) -> Any:
    """Return boto3's client of a service, in the region of the image."""
    try:
        import boto3
    except ModuleNotFoundError as error:
        raise UsageError(
            "--apply, --wait and --delete need boto3, which is not installed.", f"Run: {install_command('deploy-aws')}"
        ) from error
    image = ECR_PATTERN.fullmatch(containers(made["create-model.json"])[0]["Image"])
    if image is None:
        raise UsageError("The image in create-model.json is not in Amazon ECR.", "Write the folder again with --force.")
    with _reasons():
        return boto3.client(service, region_name=image["region"])


def _upload(folder: Path, made: dict[str, Any], report: Report) -> None:
    s3 = _client("s3", made)
    for container in containers(made["create-model.json"]):
        uri = container["ModelDataUrl"]
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if _is_stored(s3, bucket, key):
            report(f"{uri} is there already.")
            continue
        archive = folder / Path(uri).name
        if not archive.is_file():
            raise UsageError(f"The archive {archive} is missing.", "Write the folder again with --force.")
        report(f"Uploading {uri}.")
        s3.upload_file(str(archive), bucket, key)


def _is_stored(s3: Any, bucket: str, key: str) -> bool:
    from botocore.exceptions import ClientError

    try:
        s3.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
            return False
        raise
    return True  # the same file, because the key contains its hash


def _current(sagemaker: Any, name: str) -> str:
    """Return the name of the endpoint's configuration; empty if there is no such endpoint."""
    from botocore.exceptions import ClientError

    try:
        return str(sagemaker.describe_endpoint(EndpointName=name)["EndpointConfigName"])
    except ClientError as error:
        if _says(error, MISSING):
            return ""
        raise


def _create(call: Callable[..., Any], body: dict[str, Any], report: Report) -> None:
    if not _takes(call, body, EXISTS):
        report(f"{next(iter(body.values()))} is there already.")


def _delete(call: Callable[..., Any], body: dict[str, Any], keys: Sequence[str], report: Report) -> None:
    """Make a deleting call with the entries `keys` of `body`.

    The first entry is the deleted object's name in the report.
    """
    done = _takes(call, {key: body[key] for key in keys}, MISSING)
    report(f"Deleted {body[keys[0]]}." if done else f"{body[keys[0]]} was not there.")


def _takes(call: Callable[..., Any], body: dict[str, Any], reasons: tuple[str, ...]) -> bool:
    """Make a call. Return false if AWS refuses it with one of the texts `reasons`."""
    from botocore.exceptions import ClientError

    try:
        call(**body)
    except ClientError as error:
        if _says(error, reasons):
            return False
        raise
    return True


def _says(error: Any, texts: tuple[str, ...]) -> bool:
    return any(text.lower() in error.response["Error"].get("Message", "").lower() for text in texts)


@contextmanager
def _reasons() -> Iterator[None]:
    """Raise boto3's errors as ServerError with AWS's reason."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except HfxError:
        raise
    except (BotoCoreError, Boto3Error, ClientError) as error:
        raise ServerError(
            f"AWS refused or could not be reached: {error}", "Check the credentials, the region and the role."
        ) from error
