"""An object store on loopback: moto's S3 server, in another process."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import pytest


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of an S3 server with an empty bucket `bucket`. This process and its children use it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    settings = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("AWS_PROFILE", raising=False)  # never use a real account
            for key, value in settings.items():
                patch.setenv(key, value)
            _wait_for(f"{address}/moto-api/", server)
            boto3.client("s3").create_bucket(Bucket="bucket")
            yield address
    finally:
        server.kill()
        server.wait()


def _wait_for(address: str, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urlopen(address, timeout=5).close()
            return
        except (URLError, OSError):
            assert server.poll() is None and time.monotonic() < deadline, "the S3 server did not start"
            time.sleep(0.1)


def keys(prefix: str = "") -> list[str]:
    listed = boto3.client("s3").list_objects_v2(Bucket="bucket", Prefix=prefix)
    return [entry["Key"] for entry in listed.get("Contents", []) if not entry["Key"].endswith("/")]


def unfinished_uploads() -> list[str]:
    return [upload["Key"] for upload in boto3.client("s3").list_multipart_uploads(Bucket="bucket").get("Uploads", [])]
