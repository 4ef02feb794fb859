"""An S3 server in memory with an empty bucket, to try what ``docs/remote.md`` says without an account.

    pip install 'moto[s3]' flask flask-cors
    python examples/remote/serve_bucket.py models > bucket.env &

It prints the variables that lead to it, as a shell reads them, and serves until it is ended. What was put there is gone
then. It listens on the loopback only, and checks no signatures.
"""

from __future__ import annotations

import argparse
import logging
import signal

from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

ACCOUNT = "123456789012"
"""Of everyone whose key moto does not know."""
REGION = "us-east-1"


def main() -> None:
    parser = argparse.ArgumentParser(description="Serves an empty bucket of S3 from memory, on this machine only.")
    parser.add_argument("bucket", nargs="?", default="models")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    arguments = parser.parse_args()
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", arguments.port, verbose=False)
    server.start()
    s3_backends[ACCOUNT]["aws"].create_bucket(arguments.bucket, REGION)
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.get_host_and_port()[1]}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "anything",
        "AWS_SECRET_ACCESS_KEY": "anything",
    }
    print("\n".join(f"export {name}={value}" for name, value in variables.items()), flush=True)
    signal.sigwait(ends)
    server.stop()


if __name__ == "__main__":
    main()
