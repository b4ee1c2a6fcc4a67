"""The one error that is meant for the person at the keyboard."""


class IdentError(Exception):
    """Say in one sentence what is wrong and what to do; the command line prints it and exits with code 2."""
