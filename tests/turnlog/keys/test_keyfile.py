import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from turnlog.errors import KeyUnavailable, Unavailable, UsageError
from turnlog.keys.keyfile import create_key_file, load_key_file, write_secret
from turnlog.keys.kms import AwsKms, LocalKms, unwrapped
from turnlog.keys.orgkeys import ORG_KEY_SECONDS, OrgKeys, check_keys
from turnlog.keys.rows import WrappedKey, wrapping_row


def test_a_new_key_file_is_read_back_and_only_its_owner_may(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "local.key"
    made = create_key_file(path)
    found = load_key_file(path)
    assert found.master_key == made.master_key and found.public_hex == made.public_hex
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["local.key"]


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "local.key"
    made = create_key_file(path)
    with pytest.raises(UsageError, match="there already"):
        create_key_file(path)
    assert load_key_file(path).master_key == made.master_key


def test_of_many_who_create_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "local.key"
    won: list[bytes] = []

    def work() -> None:
        with contextlib.suppress(UsageError):
            won.append(create_key_file(path).master_key)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [load_key_file(path).master_key]


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "local.key"
    create_key_file(path)
    path.chmod(0o640)
    with pytest.raises(UsageError, match=f"{path}.*chmod 600"):
        load_key_file(path)


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "{}", '{"version": 2}', '{"version": 1, "master_key": "00", "keeper_seed": 3}'],
)
def test_what_is_not_a_key_file_is_refused_by_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "local.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=str(path)):
        load_key_file(path)


def test_a_broken_key_file_does_not_show_what_it_holds(tmp_path: Path) -> None:
    secret = os.urandom(31).hex()
    path = tmp_path / "local.key"
    write_secret(path, {"version": 1, "master_key": secret, "keeper_seed": secret})
    with pytest.raises(UsageError) as caught:
        load_key_file(path)
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_key_file(tmp_path / "none.key")


def test_a_key_file_shows_no_key(tmp_path: Path) -> None:
    made = create_key_file(tmp_path / "local.key")
    assert made.master_key.hex() not in repr(made)
    assert repr(made.master_key) not in repr(made)


def local_kms(tmp_path: Path, name: str = "local.key") -> LocalKms:
    return LocalKms(create_key_file(tmp_path / name))


def test_an_orgs_key_unwraps_for_its_org_and_version_alone(tmp_path: Path) -> None:
    kms, key = local_kms(tmp_path), os.urandom(32)
    blob = kms.wrap("acme", 1, key)
    assert kms.unwrap("acme", 1, blob) == key
    assert kms.wrap("acme", 1, key) != blob
    for org, version, wrapped in (
        ("other", 1, blob),
        ("acme", 2, blob),
        ("acme", 1, blob[:-1]),
        ("acme", 1, b""),
    ):
        with pytest.raises(KeyUnavailable):
            kms.unwrap(org, version, wrapped)


def test_the_wrong_key_file_is_named_with_both_names(tmp_path: Path) -> None:
    right, wrong = local_kms(tmp_path), local_kms(tmp_path, "wrong.key")
    wrapped = WrappedKey(1, right.name, right.wrap("acme", 1, bytes(32)))
    with pytest.raises(UsageError, match=f"wrong.key.*{right.name}.*{wrong.name}"):
        unwrapped(wrong, "acme", wrapped)


def test_org_keys_are_kept_for_five_minutes_and_then_forgotten(tmp_path: Path) -> None:
    file = create_key_file(tmp_path / "local.key")
    kms, at = LocalKms(file), [0.0]
    row_key, value = wrapping_row(
        "acme", WrappedKey(1, kms.name, kms.wrap("acme", 1, b"k" * 32)), file.signer
    )
    assert value is not None
    rows = {row_key: value}
    keys = OrgKeys(rows, kms, file.signer.public_key(), lambda: at[0])
    assert keys.get("acme", 1) == b"k" * 32
    del rows[row_key]
    at[0] = ORG_KEY_SECONDS - 1
    assert keys.get("acme", 1) == b"k" * 32
    at[0] = ORG_KEY_SECONDS
    with pytest.raises(KeyUnavailable, match="missing"):
        keys.get("acme", 1)
    assert b"k" * 32 not in [key for _, key in keys._keys.values()]


def test_keys_that_are_not_those_of_the_rows_are_told_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    right = create_key_file(tmp_path / "local.key")
    wrong = create_key_file(tmp_path / "wrong.key")
    kms = LocalKms(right)
    row_key, value = wrapping_row(
        "acme", WrappedKey(1, kms.name, kms.wrap("acme", 1, bytes(32))), right.signer
    )
    assert value is not None
    rows = {row_key: value, b"heartbeat": b"x"}
    check_keys(rows, kms, right.signer.public_key(), "here")
    check_keys({}, LocalKms(wrong), wrong.signer.public_key(), "here")
    with pytest.raises(UsageError, match="wrong.key"):
        check_keys(rows, LocalKms(wrong), right.signer.public_key(), "here")
    with pytest.raises(UsageError, match="here is not the public key"):
        check_keys(rows, kms, wrong.signer.public_key(), "here")


ARN = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
CONTEXT = {"turnlog": "kek-v1", "org": "acme", "version": "3"}


class Aws:
    """A KMS client whose requests and answers botocore checks against the service's model."""

    def __init__(self) -> None:
        import boto3
        from botocore.stub import Stubber

        client = boto3.client(
            "kms", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="x"
        )
        self.stub: Any = Stubber(client)
        self.stub.activate()
        self.kms = AwsKms(ARN, client)


def test_aws_kms_is_asked_with_the_orgs_context() -> None:
    aws = Aws()
    asked = {"KeyId": ARN, "EncryptionContext": CONTEXT}
    aws.stub.add_response(
        "encrypt", {"CiphertextBlob": b"blob", "KeyId": ARN}, {**asked, "Plaintext": b"k" * 32}
    )
    aws.stub.add_response(
        "decrypt", {"Plaintext": b"k" * 32, "KeyId": ARN}, {**asked, "CiphertextBlob": b"blob"}
    )
    blob = aws.kms.wrap("acme", 3, b"k" * 32)
    assert unwrapped(aws.kms, "acme", WrappedKey(3, aws.kms.name, blob)) == b"k" * 32
    aws.stub.assert_no_pending_responses()


def test_a_refusal_of_aws_kms_names_its_code_and_no_key() -> None:
    aws = Aws()
    aws.stub.add_client_error("decrypt", "InvalidCiphertextException", "secret detail")
    with pytest.raises(KeyUnavailable, match="InvalidCiphertextException") as caught:
        aws.kms.unwrap("acme", 3, b"blob")
    assert "secret detail" not in str(caught.value)


def test_aws_kms_that_does_not_answer_is_unavailable() -> None:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "kms",
        region_name="eu-central-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        endpoint_url="http://127.0.0.1:9",
        config=Config(retries={"max_attempts": 0}, connect_timeout=1),
    )
    with pytest.raises(Unavailable, match=ARN):
        AwsKms(ARN, client).wrap("acme", 1, bytes(32))


def test_secrets_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_secret(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(UsageError, match="cannot be written"):
        write_secret(blocked / "a.json", {})
