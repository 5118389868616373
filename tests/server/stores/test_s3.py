"""A store in S3: registered, shown, verified and gone, with the credentials of the server and nobody else's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from rollbook.store.urls.remote import publish_store
from tests.portal.stores_world import StoresWorld, small_store, start_stores_world
from tests.server.blob_servers import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    Served,
    moto_server,
    rclone_server,
)
from tests.server.fixtures import StartServer

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": REGION,
}
ROOT = f"s3://{BUCKET}/stores"


def publish(s3: Served, store: Path, url: str) -> None:
    publish_store(
        store,
        url,
        storage_options={
            "key": ACCESS_KEY,
            "secret": SECRET_KEY,
            "client_kwargs": {"endpoint_url": s3.url, "region_name": REGION},
        },
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [rclone_server, moto_server], ids=["rclone", "moto"])
def test_a_store_in_s3_is_registered_shown_and_verified(
    running_server: StartServer, tmp_path: Path, kind: Callable[[Path], Served]
) -> None:
    with kind(tmp_path) as s3:
        client = boto3.client(
            "s3",
            endpoint_url=s3.url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        if kind is moto_server:
            where = {"LocationConstraint": REGION}
            client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration=where)
        client.close()
        publish(s3, small_store(tmp_path / "local.zarr", 6), f"{ROOT}/a.zarr")
        (tmp_path / "roots").mkdir()
        world = start_stores_world(
            running_server,
            tmp_path / "roots",
            more_roots=[ROOT],
            environment=ENVIRONMENT,
            s3_endpoint=s3.url,
        )
        _walk(world)
        assert world.refused(f"{ROOT}/nothing.zarr").json()["code"] == "not_a_store"
        assert world.refused(f"s3://{BUCKET}/elsewhere/a.zarr").status_code == 403
        assert world.refused(f"{ROOT}/a.zarr", world.other_owner).status_code == 403
        world.close()


def _walk(world: StoresWorld) -> None:
    made = world.register(f"{ROOT}/a.zarr")
    assert made["rollouts"] == 6
    path = f"/portal/stores/{made['id']}"
    page = world.owner.get(path)
    assert page.status_code == 200
    assert "From proposed to taken" in page.text
    assert world.owner.submit(f"{path}/verify").status_code == 303
    deadline = time.monotonic() + 60
    while "verifying," in (text := world.owner.get(path).text):
        assert time.monotonic() < deadline, "the verification does not end"
    assert "every byte checked" in text


@pytest.mark.slow
def test_errors_of_a_store_in_s3_name_its_url_and_no_folder_of_the_server(
    running_server: StartServer, tmp_path: Path
) -> None:
    with rclone_server(tmp_path) as s3:
        publish(s3, small_store(tmp_path / "local.zarr", 3), f"{ROOT}/a.zarr")
        (tmp_path / "roots").mkdir()
        world = start_stores_world(
            running_server,
            tmp_path / "roots",
            more_roots=[ROOT],
            environment=ENVIRONMENT,
            s3_endpoint=s3.url,
        )
        made = world.register(f"{ROOT}/a.zarr")
        column = tmp_path / "s3" / BUCKET / "stores" / "a.zarr" / "candidates" / "target_root_gain"
        for each in column.rglob("*"):
            if each.is_file():
                each.write_bytes(b"")
        answer = world.owner.get(f"/portal/stores/{made['id']}")
        assert answer.status_code == 409
        assert f"{ROOT}/a.zarr/candidates/target_root_gain" in answer.text
        assert str(world.server.data_dir) not in answer.text
        world.close()
