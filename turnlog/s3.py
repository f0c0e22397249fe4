"""The S3 client that everything here uses: boto3's, set up once."""

from typing import Any

from turnlog.config import Config

CONNECT_TIMEOUT_S = 5


def s3_client(config: Config, *, read_timeout_s: float = 60, attempts: int = 4) -> Any:
    """Return a client of the config's S3; making one takes 150 ms.

    Checksum headers that botocore adds on its own are left out, because objects carry digests and
    not every S3 server knows trailers.

    Args:
        config: address, key and region.
        read_timeout_s: how long an answer is waited for.
        attempts: of a call in all, botocore's own retries included.

    Raises:
        UsageError: S3 has no address.
        ImportError: boto3 is not installed, as at a gateway without the extra `large`.
    """
    # Here, because most commands touch no object and boto3 takes 0.2 s to import.
    import boto3
    from botocore.config import Config as Settings

    address = config.need("s3")
    # A proxy of the user's must not be asked for what is on this machine.
    proxies: dict[str, str] | None = {} if "//127.0.0.1" in address else None
    return boto3.client(
        "s3",
        endpoint_url=address,
        aws_access_key_id=config.s3_access_key,
        aws_secret_access_key=config.s3_secret_key.get_secret_value(),
        region_name=config.s3_region,
        config=Settings(
            retries={"mode": "standard", "max_attempts": attempts},
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=read_timeout_s,
            proxies=proxies,
        ),
    )
