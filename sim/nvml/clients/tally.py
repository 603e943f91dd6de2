"""Counts comparisons, and prints those that fail."""

import ctypes

from pynvml import NVMLError

OK, INVALID, UNSUPPORTED, NOT_FOUND, IN_USE, FULL, VERSION = 0, 2, 3, 6, 19, 23, 25


class Tally:
    """Counts comparisons and prints those that fail."""

    def __init__(self):
        self.compared = 0
        self.mismatches = 0
        self.where = ""

    def same(self, what, found, expected):
        """Compares, unless nothing is known. A collection of several values stands for any of them."""
        if expected is None:
            return
        self.compared += 1
        several = isinstance(expected, (list, range))
        if found not in expected if several else found != expected:
            self.mismatches += 1
            print(f"{self.where}: {what}: {found!r}, expected {expected!r}")

    def true(self, what, holds):
        self.same(what, bool(holds), True)

    def answers(self, what, call, *codes):
        """The call succeeds, or fails with one of the codes. Gives its answer, or None."""
        self.compared += 1
        try:
            return call()
        except NVMLError as error:
            if error.value not in codes:
                self.mismatches += 1
                print(f"{self.where}: {what}: {error} ({error.value})")
        return None

    def refuses(self, what, call, code):
        """The call fails with just this code."""
        self.compared += 1
        try:
            result = call()
            found = OK if result is None else getattr(result, "value", result)
        except NVMLError as error:
            found = error.value
        if found != code:
            self.mismatches += 1
            print(f"{self.where}: {what}: {found!r}, expected code {code}")


tally = Tally()


def any_of(values):
    """A collection as `Tally.same` takes it for any of its members."""
    return list(values) if isinstance(values, tuple) else values


def address(handle):
    """The number that a handle is."""
    return ctypes.cast(handle, ctypes.c_void_p).value
