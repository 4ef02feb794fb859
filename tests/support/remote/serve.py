"""An S3 server in memory with an empty bucket, for those who try what ``docs/remote.md`` says without an account.

    python -m tests.support.remote.serve [BUCKET] > bucket.env &

It prints the variables that reach it, as a shell reads them, and serves until it is ended. What was put there is gone
then.
"""

from __future__ import annotations

import signal
import sys

from tests.support.remote.moto import Moto


def main(arguments: list[str]) -> None:
    (name,) = arguments or ["models"]
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = Moto()
    server.make_bucket(name)
    print("\n".join(f"export {key}={value}" for key, value in server.environment().items()), flush=True)
    signal.sigwait(ends)
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
