"""Every store of statelog does what the contract says."""

import os
from pathlib import Path

import boto3
import obstore
import pytest
from obstore.store import AzureStore
from tests.support.servers.real_stores import AzureServer
from tests.support.servers.server_process import KEY, SECRET, S3Server

from statelog.store import EncryptedStore, ObjectStore, ObstoreStore, open_store
from statelog.store.encryption import EncryptionKeys
from statelog.store.location import AZURE, LOCAL, MEMORY, NOT_TRIED, S3, SCHEMES, Scheme
from statelog.testing.store_contract import StoreContract

MEMORY_STORES = iter(range(10**9))


class LocalContract(StoreContract):
    SCHEME = LOCAL

    def raw_objects(self, store: ObjectStore) -> dict[str, bytes]:
        assert isinstance(store, ObstoreStore)
        assert store.local_root is not None
        root = Path(store.local_root)
        files = [path for path in root.rglob("*") if path.is_file()]
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


class TestLocalDisk(LocalContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObstoreStore:
        return open_store(str(tmp_path / "new folder" / "100%25"))


class TestLocalDiskWithoutFsync(LocalContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObstoreStore:
        return open_store(f"file://{tmp_path}/location", storage_options={"fsync": False})


class TestEncrypted(LocalContract):
    """The store encrypts; what another program reads are the objects as they are stored."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> EncryptedStore:
        return EncryptedStore(
            open_store(str(tmp_path / "location")), EncryptionKeys({"k": bytes(32)})
        )

    def raw_objects(self, store: ObjectStore) -> dict[str, bytes]:
        return {info.path: bytes(store.get(info.path)) for info in store.list()}


class TestMemory(StoreContract):
    SCHEME = MEMORY

    @pytest.fixture
    def store(self) -> ObstoreStore:
        return open_store(f"memory://contract-{os.getpid()}-{next(MEMORY_STORES)}")


class S3Contract(StoreContract):
    SCHEME = S3
    PREFIX = ""

    @pytest.fixture(autouse=True)
    def raw_access(self, s3_server: S3Server, s3_bucket: str) -> None:
        self.bucket = boto3.resource(
            "s3",
            endpoint_url=s3_server.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        ).Bucket(s3_bucket)

    def raw_objects(self, store: ObjectStore) -> dict[str, bytes]:
        objects = {each.key: each.get()["Body"].read() for each in self.bucket.objects.all()}
        assert all(key.startswith(self.PREFIX) for key in objects)
        return {key.removeprefix(self.PREFIX): content for key, content in objects.items()}


class TestS3(S3Contract):
    """Opened by options, below a folder of the bucket."""

    PREFIX = "team a/jobs/"

    @pytest.fixture
    def store(self, s3_server: S3Server, s3_bucket: str) -> ObstoreStore:
        return open_store(f"s3://{s3_bucket}/team a/jobs/", storage_options=s3_server.options)


class TestS3ByEnvironment(S3Contract):
    """Opened by a URL in Hadoop's spelling alone, at the root of the bucket."""

    @pytest.fixture
    def store(self, s3_environment: S3Server, s3_bucket: str) -> ObstoreStore:
        return open_store(f"s3a://{s3_bucket}")


class TestSeaweedFS(TestS3):
    """A real server of S3, opened by options; it deletes empty folders some time later."""

    LISTS_EMPTY_FOLDERS = True

    @pytest.fixture
    def s3_server(self, seaweedfs: S3Server) -> S3Server:
        return seaweedfs


class TestAzure(StoreContract):
    """Azurite, opened by options, below a folder of the container."""

    SCHEME = AZURE

    @pytest.fixture
    def store(self, azurite: AzureServer, azure_container: str) -> ObstoreStore:
        options = azurite.options
        client = {name: options[name] for name in ("account_name", "account_key", "endpoint")}
        self.container = AzureStore(azure_container, client_options={"allow_http": True}, **client)
        return open_store(f"az://{azure_container}/team a/jobs/", storage_options=options)

    def raw_objects(self, store: ObjectStore) -> dict[str, bytes]:
        pages = list(obstore.list(self.container))
        names = [info["path"] for page in pages for info in page]
        assert all(name.startswith("team a/jobs/") for name in names)
        return {
            name.removeprefix("team a/jobs/"): bytes(obstore.get(self.container, name).bytes())
            for name in names
        }


def _is_tried(scheme: Scheme) -> bool:
    texts = (scheme.tried.emulator, scheme.tried.server, scheme.tried.cloud)
    return any(text != "-" and not text.startswith(NOT_TRIED) for text in texts)


def test_every_scheme_that_was_tried_runs_the_contract() -> None:
    contracts = (LocalContract, TestMemory, S3Contract, TestAzure)
    covered = {contract.SCHEME.name for contract in contracts}
    assert {scheme.name for scheme in SCHEMES if _is_tried(scheme)} == covered
