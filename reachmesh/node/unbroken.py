"""Work that an interrupt of the main thread must not cut in two: starting and stopping a node.

Ctrl-C raises KeyboardInterrupt between any two instructions of the main thread, and of no other. A start or a stop that ends there
leaves sockets, threads and files that nobody knows of. So both are done by a thread of their own while the main thread waits: an
interrupt is kept until the work is done.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def unbroken(work: Callable[[], None], *, interrupted: Callable[[], None]) -> None:
    """Do `work` to its end, whatever the user presses; its error is raised here. While the interpreter ends it is done in place, for no
    thread starts then.

    Args:
        interrupted: called at the first interrupt, to hasten the work; the interrupt is raised when the work is done. A second one is
            raised at once.
    """
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        work()
        return
    failed: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="reachmesh-unbroken", daemon=True)
    interrupt: BaseException | None = None
    try:
        thread.start()
        done.wait()
    except BaseException as error:
        if thread.ident is None:
            raise
        interrupt = error
    if interrupt is not None:
        interrupted()
        done.wait()
    thread.join()
    if interrupt is not None:
        raise interrupt
    if failed:
        raise failed[0]
