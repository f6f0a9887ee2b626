"""`metalmark compare`: is B really faster than A, or is it noise?"""

from __future__ import annotations

import click

from metalmark.cli.options import store_option

EPILOG = """\b
A, B, C are each a record's id (its whole cell is meant), a sweep's id, `last`, a name or a tag
(metalmark runs name, metalmark runs tag), a file of `runs export`, or `published`.
The first is the baseline. A cell is paired with the one that differs only in what is compared;
another batch size, mode, workload or data set is another question, and no speed-up.

\b
Examples:
  metalmark bench mnist-mlp -f torch,jax -d cpu --repeat 5
  metalmark compare last --by framework
  metalmark runs name last main
  metalmark compare main last --fail-if-slower 5%
  metalmark compare mine.json theirs.json --markdown
  metalmark compare last published

\b
Exit code: 0 compared; 1 a cell is slower than --fail-if-slower allows, or no longer runs;
2 bad input, or nothing that may be compared.
"""


@click.command("compare", epilog=EPILOG)
@click.argument("runs", nargs=-1, metavar="A B [C...]")
@click.option("--by", default=None, metavar="KEY[,KEY]",
              help="What is compared: framework, device, dtype, compile, machine, torch (its version) ... "
              "With one run: its cells are split by it.")  # fmt: skip
@click.option("--anyway", is_flag=True, help="Show what is no speed-up all the same, marked.")
@click.option("--fail-if-slower", "limit", default=None, metavar="5%",
              help="Exit code 1 when a cell is slower by so much, and by more than noise.")  # fmt: skip
@click.option("--noise-band", "band", default="2%", show_default=True, metavar="2%",
              help="A smaller difference is never called one.")  # fmt: skip
@click.option("--json", "form", flag_value="json", help="Every figure and reason, for programs.")
@click.option("--markdown", "form", flag_value="markdown", help="A table to paste.")
@store_option
def command(runs: tuple[str, ...], by: str | None, anyway: bool, limit: str | None, band: str, form: str | None,
            store: str | None) -> int:  # fmt: skip
    """Say whether B is faster than A, or whether it is noise.

    The processes of each cell (bench --repeat 5) are the sample: the ratio's 95% interval and the noise band
    come from how they differ. Verdicts: faster, slower, same, can't tell.
    """
    from metalmark.cli import comparing
    from metalmark.errors import UsageError
    from metalmark.store.place import store_path

    if not runs:
        raise UsageError("Compare what?", hint=f"For example: {comparing.SPLIT}. See metalmark compare --help.")
    share = None if limit is None else comparing.parse_share(limit, what="--fail-if-slower")
    least = comparing.parse_share(band, what="--noise-band")
    words = [word.strip() for word in by.split(",") if word.strip()] if by else []
    sides, keys = comparing.find_sides(runs, words, store_path(store))
    found = comparing.run(sides, by=keys, anyway=anyway, band=least)
    comparing.show(found, form)
    return 0 if share is None else comparing.judge(found, share)
