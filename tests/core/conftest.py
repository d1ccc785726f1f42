"""One object store for all tests of this folder: its server takes seconds to start."""

from collections.abc import Iterator

import pytest

from tests.object_store import s3_server


@pytest.fixture(scope="package")
def s3() -> Iterator[str]:
    """The address of an S3 server with an empty bucket `bucket`."""
    with s3_server() as address:
        yield address
