"""Pages for a browser: readable without script, in light and dark, on paper and on a telephone.

They need the extra `web`. Everything here returns Markup, and every str that is put into one is escaped. page.py frames
a page and has its pieces (tables, figures), document.py the report and its sections (a run of any kind, a sweep),
site.py the leaderboards. There is no inline style, no inline handler and no address of another site.
"""
