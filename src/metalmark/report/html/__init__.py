"""Pages for a browser, from records: readable without script, in light and dark, on paper and on a telephone.

How to use it (needs the extra `web`; everything returns Markup, and every str put into one is escaped):
    body = table(columns, rows, caption="Runs")            tables.py: rows of str or Value(text, sort=, href=)
    body += from_table(sweep_table(cells))                 tables.py: any Table of report/, sorted by its figures
    body += record_section(record, ceilings=...)           record.py: all that is known of one record
    body += sweep_section(records, plans=sweep.plans)      sweep.py: what ran and what could not, with reasons
    page("Title", body)                                    page.py: one file with its styles and script, and a CSP
    page("Title", body, static="/static")                  ... links to /static/page.css, page.js, icon.svg; send a CSP
    asset("page.css"), asset("page.js"), asset("icon.svg") ... and serve these three there
    render("name.html", key=value)                         page.py: a template of html/templates/, autoescaped
No inline style, no inline handler, no address elsewhere; a figure is charts.figures.Figure → figure_block(figure).
"""
