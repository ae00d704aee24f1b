"""Where a law leaves the range it was checked in, said so that a program can tell which figures are meant.

A warning that is a plain string is about all that its law gives.
"""

from __future__ import annotations


class Notice(str):
    """A sentence for people that also says which figures of its law it is about, and how far off they may be.

    Parameters
    ----------
    text : the sentence
    about : figures it is about, by the keys of a plan or their beginnings (``"tpot"``, ``"step_p99"``); none: all that
        the law gives
    within : relative error that was found there all the same; None where none can be promised [1]

    Examples
    --------
    >>> wide = Notice("P99 of TPOT within 3 %", ("tpot_p99",), within=0.03)
    >>> print(wide, wide.about, wide.within)
    P99 of TPOT within 3 % ('tpot_p99',) 0.03
    """

    about: tuple[str, ...]
    within: float | None

    def __new__(cls, text: str, about: tuple[str, ...] = (), within: float | None = None) -> Notice:
        """A string with two attributes."""
        made = super().__new__(cls, text)
        made.about, made.within = about, within
        return made
