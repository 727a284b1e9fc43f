"""What a command's end means: exit statuses, and every error as one line on standard error."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

OK, FAILED, USAGE, NO_GATEWAY, INTERRUPTED = 0, 1, 2, 3, 130


def say_error(text: object) -> None:
    print(f"slipstream: {' '.join(str(text).split())}", file=sys.stderr)


def guarded(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command; its exit status, whatever happens."""
    try:
        code = command(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        # Only a client call raises these; importing them earlier would slow every `--help` down.
        from gateway.client_errors import Invalid, SlipstreamError, TooLarge, Unreachable
        from gateway.client_errors import NotFound as Absent

        if not isinstance(error, SlipstreamError):
            raise
        if isinstance(error, Invalid) and len(error.errors) > 1:
            for path, message in error.errors:
                say_error(f"{path}: {message}" if path else message)
        else:
            say_error(error)
        if isinstance(error, Unreachable):
            return NO_GATEWAY
        return USAGE if isinstance(error, Invalid | TooLarge | Absent) else FAILED
