"""One text of the user's on a page that answers to clicks: ``ident explore``.

``study`` measures, ``pictures`` and ``tables`` show, ``page`` holds the controls, ``browser`` is what runs in the
browser itself, and ``serving`` starts Voilà on the notebook that shows the page.
"""
