"""`metalmark compare`: is B really better than A, or is it noise?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from metalmark.cli.complete import complete_runs
from metalmark.cli.options import DocumentedCommand, LeftOut, store_option, table_console, wide_option

if TYPE_CHECKING:
    from metalmark.results.comparison import Comparison


@click.command("compare", cls=DocumentedCommand)
@click.argument("runs", nargs=-1, metavar="A B [C...]", shell_complete=complete_runs)
@click.option("--by", default=None, metavar="KEY[,KEY]",
              help="What is compared: framework, device, dtype, compile, machine, torch (its version) ... "
              "A single run is split by it.")  # fmt: skip
@click.option("--anyway", is_flag=True, help="Show what is not like for like too, marked.")
@click.option("--target-accuracy", type=float, default=None, metavar="SHARE|PERCENT",
              help="Compare the time that trainings take to reach this accuracy: 0.86 or 86 "
              "(default: the target that they were trained with).")  # fmt: skip
@click.option("--fail-if-slower", "limit", default=None, metavar="5%",
              help="Exit with 1 when a cell takes this much more time, and more than noise explains; with 2 when "
              "it can't be told.")  # fmt: skip
@click.option("--noise-band", "band", default="2%", show_default=True, metavar="2%",
              help="Smallest difference in speed that is called a difference.")  # fmt: skip
@click.option("--json", "form", flag_value="json", help="Print every figure and reason, for programs.")
@click.option("--markdown", "form", flag_value="markdown", help="Print a table to paste.")
@wide_option
@store_option
def command(runs: tuple[str, ...], by: str | None, anyway: bool, target_accuracy: float | None, limit: str | None,
            band: str, form: str | None, store: str | None) -> int:  # fmt: skip
    """Say whether B is better than A, or whether it is noise.

    Runs are the sample: the processes of a cell (bench --repeat 5), the trainings with several seeds
    (train --repeat 3), watched runs of one name. The 95% interval and the noise band come from how they
    differ. Verdicts: faster, slower, better, worse, same, can't tell.
    """
    from metalmark.app.compare import compare, find_slower, parse_percentage

    most = None if limit is None else parse_percentage(limit, option="--fail-if-slower")
    left_out = LeftOut()
    found = compare(
        *runs, by=by or (), anyway=anyway, noise_band=band, target_accuracy=target_accuracy, store=store,
        on_damaged=left_out,
    )  # fmt: skip
    for error in found.refused:
        click.echo(f"metalmark: {error.message}\n  {error.hint}", err=True)
    show(found, form)
    if most is None:
        return left_out.exit_code
    gate = find_slower(found, most)
    for line in gate.lines:
        click.echo(line, err=True)
    if gate.unknown is not None and not gate.failed:
        raise gate.unknown
    return 1 if gate.failed else left_out.exit_code


def show(found: "Sequence[Comparison]", form: str | None) -> None:
    import msgspec

    from metalmark.report.compare_page import comparison_documents, comparison_table
    from metalmark.report.text.terminal import print_table

    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(comparison_documents(found)), indent=2))
        return
    for number, comparison in enumerate(found):
        if number:
            click.echo()
        if form == "markdown":
            from metalmark.report.text.exports import markdown

            click.echo(markdown(comparison_table(comparison)), nl=False)
        else:
            print_table(comparison_table(comparison), table_console())
