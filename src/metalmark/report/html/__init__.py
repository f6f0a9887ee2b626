"""Pages for a browser: readable without script, in light and dark, on paper and on a telephone.

They need the extra `web`. Everything here returns Markup, and every str that is put into one is escaped. page.py frames
a page, blocks.py has its pieces (tables, facts, figures), sections.py a run of any kind and a sweep, document.py the
report, site.py the leaderboards. There is no inline style, no inline handler and no address of another site.
"""
