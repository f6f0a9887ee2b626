"""`metalmark serve`: the store in a browser."""

import click

from metalmark.cli.options import DocumentedCommand, store_option


@click.command("serve", cls=DocumentedCommand)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=None, metavar="PORT",
              help="Port to listen on (default: 8585, or one that is free).")  # fmt: skip
@click.option("--token", "ask", is_flag=True, help="Ask for a token on loopback too, where others share this machine.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@store_option
def command(host: str, port: int | None, ask: bool, opens: bool, store: str | None) -> int:
    """Show runs, comparisons and what runs now in a browser, until Ctrl-C."""
    from metalmark.app.runs import existing_store
    from metalmark.errors import NotInstalledError

    path = existing_store(store)  # a file that is no store is refused before anything listens
    try:
        from metalmark.web.app import Server
    except ImportError as error:
        raise NotInstalledError(
            f"serve needs the extra `web`: {error.name} is not installed.", hint='pip install "metalmark[web]"'
        ) from error

    server = Server(path, host=host, port=port, ask=ask)
    click.echo(server.url)
    click.echo(f"Serving {path}; Ctrl-C stops it.", err=True)
    if server.beyond:
        click.echo("Other machines can reach it. Whoever has this address, with its token, sees every run.", err=True)
    if opens:
        click.launch(server.url)
    server.run()
    click.echo("Stopped.", err=True)
    return 0
