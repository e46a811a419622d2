"""`python -m soak --minutes 10`: run cases, print the bad ones and how to repeat them; then exit 1."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

# Before anything is imported: a process of several threads should not fork.
os.environ["OMP_NUM_THREADS"] = "1"

from .case import SHARES, Case, available_kinds, cases
from .examples import make_examples, prepare
from .pool import Verdict, verdicts


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, at most")
    parser.add_argument("--cases", type=int, help="how many, at most")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other cases")
    parser.add_argument("--kinds", default="", help=f"of {', '.join(SHARES)}; all unless given")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time")
    parser.add_argument("--case", type=Case.parse, help="run one case again, here, as files:1234")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in options.kinds.split(",") if kind] or available_kinds()
    if unknown := [kind for kind in kinds if kind not in available_kinds()]:
        parser.error(f"there is no kind {unknown[0]}; choose of {', '.join(available_kinds())}")
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as place:
        prepare()
        examples = make_examples(Path(place))
        if options.case:
            return _repeat(options.case, Path(place), examples)
        case_iterator = islice(cases(kinds, options.seed), options.cases)
        until = time.monotonic() + 60 * options.minutes
        return _report(_print_bad(verdicts(case_iterator, options.workers, Path(place), examples, until)))


def _repeat(case: Case, place: Path, examples: Path) -> int:
    folder = place / "work"
    folder.mkdir()
    reason = case.check(folder, examples)
    print(f"{case}: {reason or 'ok'}")
    return int(bool(reason))


def _print_bad(verdict_iterator: Iterable[Verdict]) -> Iterator[Verdict]:
    """Pass verdicts on and print the bad ones at once."""
    for verdict in verdict_iterator:
        if verdict.reason:
            print(f"bad  {verdict.case}  {verdict.reason}  [{verdict.activity}]", flush=True)
        yield verdict


def _report(verdict_iterator: Iterable[Verdict]) -> int:
    """A line per kind, then every bad case with the command that repeats it."""
    results = list(verdict_iterator)
    print(f"\n{'kind':<14}{'cases':>7}{'bad':>6}{'seconds':>10}")
    for kind in (*SHARES, ""):
        group = [v for v in results if kind in ("", v.case.kind)]
        if group:
            bad, seconds = sum(bool(v.reason) for v in group), sum(v.seconds for v in group)
            print(f"{kind or 'all':<14}{len(group):>7}{bad:>6}{seconds:>10.1f}")
    wrong = [v for v in results if v.reason]
    for verdict in wrong:
        print(f"\n{verdict.reason}\n    {verdict.activity}\n    python -m soak --case {verdict.case}")
    return int(bool(wrong) or not results)


if __name__ == "__main__":
    sys.exit(main())
